"""Does a changed configuration count at once where it can, and never half?"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from homebox.config import Settings
from homebox.daemon.keys import Keys
from homebox.daemon.reload import LIVE, reload
from homebox.errors import UsageError

from .box import Box, running


def change(box: Box, **settings: Any) -> str:
    """Reload with these settings changed."""
    new = msgspec.convert(msgspec.structs.asdict(box.house.settings) | settings, Settings)
    return in_loop(box, lambda: new)


def in_loop(box: Box, read: Callable[[], Settings]) -> str:
    done: Future[str] = asyncio.run_coroutine_threadsafe(reload(box.server, read), box.loop)
    return done.result(10)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def models_at(address: str, headers: dict[str, str]) -> int:
    """The status of a request there."""
    return httpx.get(f"{address}/v1/models", headers=headers, verify=False).status_code


def test_limits_count_at_once_and_what_cannot_is_named(box: Box) -> None:
    said = change(box, queue_per_person=7, max_answer_tokens=5, max_running=3, threads=1)
    assert said == (
        "configuration read again, new: queue_per_person, max_answer_tokens; needs a restart: max_running, threads"
    )
    assert box.house.settings.queue_per_person == 7 and box.house.settings.max_running == 32
    assert box.chat("[[forever]]").json()["usage"]["completion_tokens"] == 5
    assert change(box) == "configuration read again, nothing new"


def test_a_configuration_that_cannot_be_changes_nothing(box: Box) -> None:
    def broken() -> Settings:
        raise UsageError("config.toml, line 2: unknown key")

    before = box.house.settings
    with pytest.raises(UsageError):
        in_loop(box, broken)
    assert box.house.settings is before and box.ready()


def test_every_live_key_is_a_setting() -> None:
    assert set(LIVE) <= set(Settings.__struct_fields__)


def test_the_network_port_opens_moves_and_closes_while_answers_run(model: Path, tmp_path: Path) -> None:
    with running(model, tmp_path) as box:
        key = {"Authorization": f"Bearer {Keys(tmp_path).new('anna')}"}
        first, second = free_port(), free_port()
        turn = box.detach("[[forever]][[pace=10]]", max_tokens=2000)

        assert "new: listen" in change(box, listen=f"127.0.0.1:{first}")
        with httpx.Client(verify=False, base_url=f"http://127.0.0.1:{first}", headers=key) as kept_alive:
            assert kept_alive.get("/v1/models").status_code == 200
            change(box, listen=f"127.0.0.1:{second}")
            with pytest.raises(httpx.TransportError):
                kept_alive.get("/v1/models")
        assert models_at(f"http://127.0.0.1:{second}", key) == 200

        with socket.create_server(("127.0.0.1", first)), pytest.raises(UsageError, match="cannot listen on"):
            change(box, listen=f"127.0.0.1:{first}", queue_per_person=3)
        assert box.house.settings.listen == f"127.0.0.1:{second}"
        assert box.house.settings.queue_per_person != 3
        assert models_at(f"http://127.0.0.1:{second}", key) == 200

        change(box, listen="")
        with pytest.raises(httpx.ConnectError):
            models_at(f"http://127.0.0.1:{second}", key)
        assert box.server.addresses == []
        assert [row["id"] for row in box.streams()] == [turn]


def test_an_answer_under_way_outlives_its_port(model: Path, tmp_path: Path) -> None:
    with running(model, tmp_path) as box:
        key = {"Authorization": f"Bearer {Keys(tmp_path).new('anna')}"}
        change(box, listen=f"127.0.0.1:{free_port()}")
        body = {
            "messages": [{"role": "user", "content": "[[forever]][[pace=10]]"}],
            "options": {"max_tokens": 50},
        }
        with httpx.stream("POST", f"{box.address}/homebox/ask", headers=key, json=body) as answer:
            lines = answer.iter_lines()
            next(lines)
            change(box, listen="")
            assert '"finished"' in list(lines)[-1]


def test_a_new_name_of_the_box_is_known_at_once(model: Path, tmp_path: Path) -> None:
    with running(model, tmp_path) as box:
        key = {"Authorization": f"Bearer {Keys(tmp_path).new('anna')}", "Host": "box.home"}
        change(box, listen=f"127.0.0.1:{free_port()}")
        assert models_at(box.address, key) == 403
        change(box, allowed_hosts=["box.home"])
        assert models_at(box.address, key) == 200
