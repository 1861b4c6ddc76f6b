"""Nothing typed or generated is lost: a killed daemon, a full disk, a damaged file, an older file."""

from __future__ import annotations

import os
import pwd
import signal
import sqlite3
import stat
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from homebox.client import stream
from homebox.client.connection import Daemon
from homebox.client.state import ChatState, ConnectionLost
from homebox.daemon.chats import schema
from homebox.daemon.chats.store import file_name
from homebox.wire import events

from .box import Box, read_events, running, state_with, text_of, until
from .test_serve import Process, served

ME = pwd.getpwuid(os.geteuid()).pw_name
PACE_MS = 20


def say(http: Any, chat: str, text: str, key: str, **fields: Any) -> dict[str, Any]:
    response = http.post(f"/homebox/chats/{chat}/turns", json={"key": key, "text": text, **fields})
    assert response.status_code == 200, response.text
    return response.json()  # type: ignore[no-any-return]


def tokens(daemon: Process, turn: str) -> int:
    rows = daemon.http.get("/homebox/streams").json()["streams"]
    return next((row["tokens_out"] for row in rows if row["id"] == turn), 0)


# ---- kill -9


def test_a_killed_daemon_loses_at_most_250_ms_of_an_answer_and_says_what_happened(
    model: Path, tmp_path: Path
) -> None:
    seen: list[tuple[ChatState, object]] = []

    def read_along(path: Path, turn: str) -> None:
        steps = stream.follow(Daemon(socket_path=path), turn, delays=(0.05,) * 200)
        seen.extend(steps)

    with served(model, tmp_path) as daemon:
        first = say(daemon.http, "c", "[[say=first]]", "k0")
        until(lambda: daemon.http.get("/homebox/chats/c").json()["messages"][-1]["state"] == "done")
        made = say(daemon.http, "c", f"[[forever]][[pace={PACE_MS}]]", "k1")
        reader = threading.Thread(target=read_along, args=(daemon.path, made["turn"]))
        reader.start()
        until(lambda: tokens(daemon, made["turn"]) > 40)
        made_tokens = tokens(daemon, made["turn"])
        engine = daemon.engine()
        daemon.process.kill()
        daemon.process.wait()
        until(lambda: not Path(f"/proc/{engine}").exists() or os.kill(engine, signal.SIGKILL) is None)
    with served(model, tmp_path) as daemon:
        reader.join(20)
        assert not reader.is_alive()
        view = daemon.http.get("/homebox/chats/c").json()
        assert [each["id"] for each in view["messages"]] == [
            first["question"], first["answer"], made["question"], made["answer"]
        ]  # fmt: skip
        kept = view["messages"][-1]
        assert (kept["state"], kept["detail"]) == ("stopped", "daemon restarted")
        told = read_events(daemon.http.get(f"/homebox/turns/{made['turn']}/events?after=7").content)
        resync, finished = told
        assert isinstance(resync, events.Resync) and resync.text == kept["content"] and resync.seq == 8
        assert isinstance(finished, events.Finished) and finished.seq == 9
        assert (finished.reason, finished.detail) == ("cancelled", "daemon restarted")
        lost = made_tokens - finished.usage.completion_tokens
        assert lost * PACE_MS <= 250, f"{lost} tokens of {made_tokens} are lost"
        # once: what is kept is a beginning of what the reader saw while it was written, or a little longer
        shown = seen[-1][0]
        assert any(isinstance(event, ConnectionLost) for _, event in seen)
        assert shown.done and shown.finished and shown.finished.detail == "daemon restarted"
        live = max((state.text for state, event in seen if isinstance(event, events.Text)), key=len)
        assert shown.text.startswith(live) and (
            live.startswith(kept["content"]) or kept["content"].startswith(live)
        )
        assert say(daemon.http, "c", "anything", "k1") == made, "the key still means that turn"
        again = daemon.http.post(
            f"/homebox/turns/{made['turn']}/continue", json={"key": "k2", "options": {"max_tokens": 5}}
        )
        until(lambda: daemon.http.get("/homebox/chats/c").json()["messages"][-1]["state"] == "length")
        grown = daemon.http.get("/homebox/chats/c").json()["messages"][-1]
        assert again.json()["answer"] == made["answer"] and grown["content"].startswith(kept["content"])
        assert len(grown["content"]) > len(kept["content"])


def test_what_a_stopping_daemon_cuts_off_is_kept_and_says_so(model: Path, tmp_path: Path) -> None:
    with served(model, tmp_path, drain_s=0.1) as daemon:
        made = say(daemon.http, "c", "[[forever]][[pace=10]]", "k")
        until(lambda: tokens(daemon, made["turn"]) > 5)
        daemon.process.send_signal(signal.SIGTERM)
        told = read_events(daemon.http.get(f"/homebox/turns/{made['turn']}/events").content)
        assert daemon.process.wait(10) == 0
    with served(model, tmp_path) as daemon:
        kept = daemon.http.get("/homebox/chats/c").json()["messages"][-1]
        assert (kept["state"], kept["detail"]) == ("stopped", "daemon restarting")
        assert kept["content"] == text_of(told)


# ---- a full disk


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of four megabytes."""
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(place)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    yield place
    subprocess.run(["umount", str(place)], check=False)


def fill(disk: Path) -> Path:
    """Leave no byte."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as out:
        for size in (65536, 4096, 1):
            try:
                while True:
                    out.write(b"x" * size)
            except OSError:
                continue
    return ballast


def test_a_full_disk_is_said_and_everything_is_saved_once_there_is_room(
    model: Path, tmp_path: Path, small_disk: Path
) -> None:
    state = state_with(model, tmp_path / "state")
    (state / "chats").symlink_to(small_disk)
    with running(model, state) as box:
        made = say(box.http, "old", "[[say=an_old_answer]]", "k0")
        box.events(made["turn"])
        growing = say(box.http, "c", "[[forever]][[pace=10]]", "k1", options={"max_tokens": 150})
        until(lambda: box.tokens(growing["turn"]) > 10)
        ballast = fill(small_disk)
        refused = box.say("old", "[[say=never]]", "k2")
        error = refused.json()["error"]
        assert refused.status_code == 507 and error["code"] == "no_space", refused.text
        assert error["numbers"]["free_bytes"] < error["numbers"]["needed_bytes"]
        told = box.events(growing["turn"])
        notice = next(event for event in told if isinstance(event, events.Notice))
        assert notice.code == "no_space" and "bytes free" in notice.message
        end = told[-1]
        assert isinstance(end, events.Finished) and end.reason == "length", "the answer went on to its end"
        whole = text_of(told)
        assert [text for _, text in talk(box, "old")] == ["[[say=an_old_answer]]", "an old answer"]
        assert talk(box, "c")[-1][1] == whole, "what is not on disk is shown from memory"
        assert box.say("c", "more", "k3").status_code == 507
        ballast.unlink()
        more = say(box.http, "c", "[[say=fine]]", "k4")
        box.events(more["turn"])
        assert [text for _, text in talk(box, "c")][1:] == [whole, "[[say=fine]]", "fine"]
    opened = schema.open_file(small_disk / file_name(ME))
    assert opened.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
    kept = dict(opened.execute("SELECT id, text FROM messages").fetchall())
    assert kept[growing["answer"]] == whole and kept[made["answer"]] == "an old answer"
    assert "[[say=never]]" not in kept.values() and "more" not in kept.values()
    assert not opened.execute("SELECT * FROM growth").fetchall()
    opened.close()


def test_a_daemon_killed_on_a_full_disk_leaves_a_file_that_opens(
    model: Path, tmp_path: Path, small_disk: Path
) -> None:
    state = state_with(model, tmp_path / "state")
    (state / "chats").symlink_to(small_disk)
    with served(model, state) as daemon:
        say(daemon.http, "old", "[[say=an_old_answer]]", "k0")
        until(lambda: daemon.http.get("/homebox/chats/old").json()["messages"][-1]["state"] == "done")
        made = say(daemon.http, "c", "[[forever]][[pace=10]]", "k1")
        until(lambda: tokens(daemon, made["turn"]) > 20)
        ballast = fill(small_disk)
        until(lambda: tokens(daemon, made["turn"]) > 60)
        daemon.process.kill()
        daemon.process.wait()
    ballast.unlink()
    with served(model, state) as daemon:
        assert daemon.http.get("/homebox/chats/old").json()["messages"][-1]["content"] == "an old answer"
        kept = daemon.http.get("/homebox/chats/c").json()["messages"][-1]
        assert kept["state"] == "stopped" and kept["content"]


def talk(box: Box, chat: str) -> list[tuple[str, str]]:
    response = box.http.get(f"/homebox/chats/{chat}")
    assert response.status_code == 200, response.text
    return [(each["role"], each["content"]) for each in response.json()["messages"]]


# ---- a damaged file


@pytest.mark.parametrize("how", ["garbage", "middle", "short"])
def test_a_damaged_file_is_named_left_alone_and_no_concern_of_others(
    model: Path, tmp_path: Path, how: str
) -> None:
    with running(model, tmp_path) as box:
        for number in range(8):
            box.events(say(box.http, f"c{number}", "[[say=hello]]" + " word" * 90, f"k{number}")["turn"])
    path = tmp_path / "chats" / file_name(ME)
    good = path.read_bytes()
    damaged = {
        "garbage": os.urandom(len(good)),
        "middle": good[:8192] + b"\xa5" * (len(good) - 16384) + good[-8192:],
        "short": good[: len(good) // 2],
    }[how]
    path.write_bytes(damaged)
    with running(model, tmp_path) as box:
        for response in (box.http.get("/homebox/chats"), box.say("c0", "x", "k")):
            error = response.json()["error"]
            assert response.status_code == 500 and error["code"] == "unusable_file", response.text
            assert str(path) in error["message"] and "homebox restore" in error["hint"]
        assert text_of(box.ask("[[say=hello]]")) == "hello"
        assert box.ready()
    assert path.read_bytes() == damaged


# ---- an older or newer file

OLD = {version: Path(__file__).with_name(f"chats_v{version}.sql") for version in (1, 2)}


@pytest.mark.parametrize("version", OLD)
def test_a_file_of_an_older_version_opens_is_brought_up_and_keeps_every_message(
    model: Path, tmp_path: Path, version: int
) -> None:
    state = state_with(model, tmp_path)
    path = state / "chats" / file_name(ME)
    path.parent.mkdir()
    old = sqlite3.connect(path)
    old.executescript(OLD[version].read_text())
    before = old.execute(
        "SELECT id, parent, role, text, think FROM messages WHERE state <> 'growing' ORDER BY n"
    ).fetchall()
    assert old.execute("PRAGMA user_version").fetchone() == (version,) and len(before) >= 6
    old.close()
    with running(model, state) as box:
        assert box.http.get("/homebox/chats").json()["chats"][0]["title"] == "Grüße aus Lissabon"
        assert len(box.http.get("/homebox/chats/search?q=pastel").json()["found"]) >= 2
        cut = box.http.get("/homebox/chats/c-cut").json()["messages"][-1]
        assert (cut["state"], cut["content"]) == ("stopped", "Once upon a time")
        box.events(say(box.http, "c-tree", "[[say=and_on]]", "new")["turn"])
        again = say(box.http, "c-tree", "said twice", "key-1")
        assert again["turn"] == "t-old-1", "keys of old turns still mean them"
        gone = box.http.delete("/homebox/chats/c-tree/messages/m-q2")
        assert gone.status_code == 200 and "market" not in box.http.get("/homebox/chats/c-tree?all=1").text
        assert box.http.post("/homebox/chats/c-tree/messages/m-q2/undelete", json={}).status_code == 200
        draft = {1: "", 2: "half a thought"}[version]
        assert box.http.get("/homebox/chats/c-tree/draft").json() == {"text": draft}
    new = sqlite3.connect(path)
    assert new.execute("PRAGMA user_version").fetchone() == (schema.VERSION,)
    after = new.execute("SELECT id, parent, role, text, think FROM messages ORDER BY n").fetchall()
    assert set(before) <= set(after)
    new.close()
    backup = path.with_name(f"{path.name}.v{version}.bak")
    kept = sqlite3.connect(backup)
    assert kept.execute("PRAGMA user_version").fetchone() == (version,)
    assert len(kept.execute("SELECT * FROM messages").fetchall()) == len(before) + 1
    kept.close()
    assert stat.S_IMODE(backup.stat().st_mode) == 0o600


def test_an_upgrade_that_fails_half_way_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.db"
    old = sqlite3.connect(path)
    old.executescript(OLD[1].read_text())
    old.close()
    monkeypatch.setattr(
        schema, "STEPS", (schema.STEPS[0], schema.STEPS[1] + "SELECT no_such_column FROM chats;")
    )
    with pytest.raises(sqlite3.OperationalError):
        schema.open_file(path)
    after = sqlite3.connect(path)
    assert after.execute("PRAGMA user_version").fetchone() == (1,)
    assert not after.execute("SELECT * FROM sqlite_master WHERE name = 'drafts'").fetchall()
    after.close()


def test_a_file_of_a_newer_version_is_refused_and_left_alone(model: Path, tmp_path: Path) -> None:
    state = state_with(model, tmp_path)
    path = state / "chats" / file_name(ME)
    path.parent.mkdir()
    newer = sqlite3.connect(path)
    newer.executescript(f"CREATE TABLE surprise (x); PRAGMA user_version = {schema.VERSION + 1};")
    newer.close()
    before = path.read_bytes()
    with running(model, state) as box:
        refused = box.http.get("/homebox/chats")
        assert refused.status_code == 500 and "newer homebox" in refused.json()["error"]["message"]
    assert path.read_bytes() == before
