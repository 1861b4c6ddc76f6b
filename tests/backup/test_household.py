"""A running box is saved and brought back elsewhere: every person finds every message, key and rule."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import httpx
import pytest

from homebox.backup.restore import restore
from homebox.backup.save import save_to_file
from homebox.daemon.keys import Keys
from tests.daemon.box import Box, read_events, running, state_with
from tests.daemon.tiny_model import build

PEOPLE = ("anna", "BEN_" + "X" * 56)  # one whose name is as long as a name can be when it is written down


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("models"))


def say(client: httpx.Client, chat: str, number: int) -> None:
    body = {"key": f"k{number}", "text": f"[[say=answer_{chat}_{number}]] question {number}"}
    made = client.post(f"/homebox/chats/{chat}/turns", json=body)
    assert made.status_code == 200, made.text
    read_events(client.get(f"/homebox/turns/{made.json()['turn']}/events").content)


def seen(box: Box, keys: dict[str, str]) -> dict[str, Any]:
    """All that each person can see of their own."""
    out: dict[str, Any] = {}
    for person, key in keys.items():
        with box.far(**{"x-api-key": key}) as client:
            chats = client.get("/homebox/chats").json()["chats"]
            shown = {each["id"]: client.get(f"/homebox/chats/{each['id']}?all=1").json() for each in chats}
            me = client.get("/homebox/me").json()
            found = client.get("/homebox/chats/search?q=answer").json()
            out[person] = (chats, shown, me["role"], me["rules"], found)
    return out


def test_a_running_household_is_saved_and_lives_on_elsewhere(model: Path, tmp_path: Path) -> None:
    state = state_with(model, tmp_path / "state")
    keys = {person: Keys(state).new(person) for person in PEOPLE}
    file = tmp_path / "house.tar.gz"
    with running(model, state, listen="127.0.0.1:0") as box:
        assert box.http.put("/homebox/people/anna", json={"role": "kid"}).status_code == 200
        for key in keys.values():
            with box.far(**{"x-api-key": key}) as client:
                for chat in ("c1", "c2"):
                    for number in range(3):
                        say(client, chat, number)
                assert client.put("/homebox/draft", json={"text": "not yet said"}).status_code == 200
        before = seen(box, keys)
        saved = save_to_file(file, state, tmp_path / "etc")
        assert not saved.left_out and not saved.manifest.damaged
    elsewhere = tmp_path / "elsewhere"
    restore(file, elsewhere, tmp_path / "etc")
    shutil.copytree(model, elsewhere / "models" / model.name)
    with running(model, elsewhere, listen="127.0.0.1:0") as box:
        assert seen(box, keys) == before
    assert {len(shown["c1"]["messages"]) for _, shown, *_ in before.values()} == {6}
