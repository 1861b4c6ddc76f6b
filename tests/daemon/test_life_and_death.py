"""What one part's end, or somebody outside, does to the others: backups, signals, kills, full disks, odd clocks."""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import pytest

from homebox.daemon.keys import Keys
from homebox.daemon.usage import Usage
from tests import forks
from tests.forks import SERVER, Fork

from .box import Box, read_events, running, state_with, text_of, until
from .test_chats_survive import fill, say
from .test_chats_survive import small_disk as small_disk
from .test_serve import served

COPY = "import sys, pathlib; from homebox.backup.save import copy_database; copy_database(*map(pathlib.Path, sys.argv[1:]))"


def test_a_program_that_looks_at_a_file_meanwhile_costs_nothing_that_is_said_after_it(
    model: Path, tmp_path: Path
) -> None:
    with served(model, tmp_path) as daemon:
        say(daemon.http, "c", "[[say=one]]", "k1")
        assert daemon.http.get("/homebox/chats/c").status_code == 200  # both connections are open now
        (path,) = (tmp_path / "chats").glob("*.db")
        assert forks.run([sys.executable, "-c", COPY, str(path), str(tmp_path / "copy.db")]).returncode == 0
        second = say(daemon.http, "c2", "[[say=two]]", "k2")
        daemon.process.kill()
        daemon.process.wait()
    with served(model, tmp_path) as daemon:
        kept = daemon.http.get("/homebox/chats/c2")
        assert kept.status_code == 200 and kept.json()["messages"][1]["id"] == second["answer"]


def test_a_daemon_starts_on_a_full_disk_answers_and_says_what_cannot_be_kept(
    model: Path, small_disk: Path
) -> None:
    state = state_with(model, small_disk)
    ballast = fill(small_disk)
    with served(model, state) as daemon:
        until(lambda: daemon.http.get("/health").json()["state"] == "ready")
        assert text_of(read_events(daemon.ask("[[say=hello]]").content)) == "hello"
        for path, body in (
            ("/homebox/keys", {"person": "anna"}),
            ("/homebox/pause", {}),
            ("/homebox/chats/c/turns", {"key": "k", "text": "hi"}),
        ):
            refused = daemon.http.post(path, json=body)
            error = refused.json()["error"]
            assert (refused.status_code, error["code"]) == (507, "no_space"), refused.text
            assert str(small_disk) in error["hint"] or str(small_disk) in error["message"]
        assert daemon.http.put("/homebox/people/anna", json={"role": "kid"}).status_code == 507
        assert daemon.http.get("/health").json()["state"] == "ready"
        ballast.unlink()
        assert daemon.http.post("/homebox/keys", json={"person": "anna"}).status_code == 200
        daemon.process.terminate()
        assert daemon.process.wait(20) == 0


def test_who_is_who_being_unreadable_is_said_at_the_start(model: Path, tmp_path: Path) -> None:
    state = state_with(model, tmp_path)
    (state / "people.json").write_text('{"people": [')
    with served(model, state) as daemon:
        daemon.process.terminate()
        _, said = daemon.process.communicate(timeout=20)
        assert daemon.process.returncode == 0
        first = said[: said.index("listening on")]
        assert "people.json" in first and "Restore it from a backup" in first


HANG_UP_EARLY = """
import asyncio, os, signal, sys
from homebox.config import Settings
from homebox.daemon import logs, serve

logs.configure("text")
built = serve.build
def build(*args, **more):
    os.kill(os.getpid(), signal.SIGHUP)
    return built(*args, **more)
serve.build = build
settings = Settings(state_dir=sys.argv[1], socket=sys.argv[1] + "/api.sock", model="tiny")
asyncio.run(serve.run(settings, command=("false",), reread=lambda: settings))
"""


def test_a_hang_up_while_the_daemon_is_put_together_is_a_reload_and_not_its_end(
    model: Path, tmp_path: Path
) -> None:
    state = state_with(model, tmp_path)
    command = [sys.executable, "-c", HANG_UP_EARLY, str(state)]
    with Fork(
        command, imports=SERVER, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr
        lines = iter(process.stderr.readline, "")
        assert any("configuration read again" in line for line in lines)
        process.terminate()
        assert process.wait(20) == 0


def test_a_part_that_fails_at_the_end_costs_the_others_nothing(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken() -> None:
        raise RuntimeError("a defect")

    with running(model, tmp_path) as box:
        made = box.say("c", "[[say=hello]]", "k").json()
        box.events(made["turn"])
        monkeypatch.setattr(box.house.exchange, "close", broken)
    assert not Path(box.socket).exists()
    used = asyncio.run(Usage(tmp_path).read(1, None))
    assert [counts.requests for _, _, counts in used] == [1]


def waits_for(descriptor: int) -> bool:
    """Whether somebody waits for the lock on this file."""
    name = f":{os.fstat(descriptor).st_ino} "
    return any("->" in line and name in line for line in Path("/proc/locks").read_text().splitlines())


def test_an_act_of_administration_is_in_the_record_though_who_did_it_has_left(box: Box) -> None:
    made = box.http.post("/homebox/keys", json={"person": "anna"}).json()
    with (box.house.keys.path.parent / "keys.lock").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with socket.socket(socket.AF_UNIX) as leaving:
            leaving.connect(box.socket)
            leaving.sendall(f"DELETE /homebox/keys/{made['id']} HTTP/1.1\r\nHost: box\r\n\r\n".encode())
            until(lambda: waits_for(held.fileno()))
        assert box.http.get("/health").status_code == 200  # the end of that connection was seen, too
    lines = until(lambda: [each for each in box.house.audit.read() if each["what"] == "key.revoke"])
    assert [line["target"] for line in lines] == [made["id"]]


def test_a_revoked_key_ends_its_chat_turn_with_the_text_kept_also_after_a_defect(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(model, tmp_path, listen="127.0.0.1:0") as box:
        keys = Keys(tmp_path)
        key, spare = keys.new("anna"), keys.new("anna")
        look, failed = box.house.warden.look, threading.Event()

        def fails_once() -> None:
            if not failed.is_set():
                failed.set()
                raise RuntimeError("a defect")
            look()

        with anna(box, key) as http, anna(box, spare) as other:
            made = say(http, "c", "[[forever]][[pace=10]]", "k")
            until(lambda: box.tokens(made["turn"]) > 5)
            monkeypatch.setattr(box.house.warden, "look", fails_once)
            assert failed.wait(10)
            keys.revoke(key.split("_")[1])
            until(lambda: other.get("/homebox/chats/c").json()["messages"][1]["state"] == "stopped")
            kept = other.get("/homebox/chats/c").json()["messages"][1]
            assert kept["content"] and kept["detail"] == "the key was revoked"
            assert http.get("/homebox/chats/c").status_code == 401


def anna(box: Box, key: str) -> httpx.Client:
    return box.far(Authorization=f"Bearer {key}")
