"""Is what was used counted by day, person and key, kept, and never in the way of an answer?"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from pathlib import Path

import pytest

from homebox.daemon.usage import Counts, Usage
from homebox.errors import Unavailable

from .box import running, state_with, text_of
from .test_limits import Clock

DAY_S = 86400


def read(usage: Usage, days: int, person: str | None = None) -> list[tuple[str, str, int, int]]:
    rows = asyncio.run(usage.read(days, person))
    return [(day, name, counts.requests, counts.counted) for day, name, counts in rows]


def test_counts_are_by_local_day_and_person_over_all_keys(tmp_path: Path) -> None:
    clock = Clock()
    usage = Usage(tmp_path, clock=clock)
    first = usage.day()
    usage.add("anna", "k1", Counts(requests=1, counted=5))
    usage.add("anna", "k2", Counts(requests=1, counted=7))
    usage.add("ben", None, Counts(requests=1, counted=1))
    asyncio.run(usage.flush())
    usage.add("anna", "k1", Counts(counted=10))
    assert (usage.today("anna"), usage.today("ben"), usage.today("mia")) == (22, 1, 0)
    clock.now += DAY_S
    assert usage.today("anna") == 0
    usage.add("anna", None, Counts(requests=1, counted=3))
    second = usage.day()
    assert read(usage, 1) == [(second, "anna", 1, 3)]
    assert read(usage, 2) == [(second, "anna", 1, 3), (first, "anna", 2, 22), (first, "ben", 1, 1)]
    assert read(usage, 2, "ben") == [(first, "ben", 1, 1)]
    assert usage.path.stat().st_mode & 0o777 == 0o600
    assert Usage(tmp_path, clock=clock).people_today() == {"anna": 3}


def test_what_cannot_be_written_is_kept_and_written_later(tmp_path: Path) -> None:
    usage = Usage(tmp_path / "state", clock=Clock())
    (tmp_path / "state").write_text("in the way")
    usage.add("anna", None, Counts(counted=5))
    asyncio.run(usage.flush())
    (tmp_path / "state").unlink()
    usage.add("anna", None, Counts(counted=2))
    assert [row[3] for row in read(usage, 1)] == [7]


@pytest.mark.parametrize("kind", ["broken", "newer"])
def test_a_file_that_cannot_be_read_is_left_alone_and_answers_go_on(
    model: Path, tmp_path: Path, kind: str
) -> None:
    state = state_with(model, tmp_path)
    path = state / "usage.db"
    if kind == "broken":
        path.write_bytes(b"no database, and long enough to look like one" * 100)
    else:
        with sqlite3.connect(path) as db:
            db.execute("PRAGMA user_version = 99")
    before = path.read_bytes()
    with running(model, state) as box:
        assert text_of(box.ask("[[say=hello]]")) == "hello"
        answer = box.http.get("/homebox/usage")
        assert answer.status_code == 503 and str(path) in answer.json()["error"]["message"]
    assert path.read_bytes() == before


def test_a_newer_file_is_refused_with_both_versions(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "usage.db") as db:
        db.execute("PRAGMA user_version = 99")
    with pytest.raises(Unavailable, match="schema 99, this version reads up to 1"):
        read(Usage(tmp_path, clock=Clock()), 1)


def test_a_clock_that_is_put_back_over_midnight_forgives_nothing(tmp_path: Path) -> None:
    clock = Clock()
    usage = Usage(tmp_path, clock=clock)
    usage.add("anna", None, Counts(counted=5))
    clock.now += DAY_S
    usage.add("anna", None, Counts(counted=3))
    clock.now -= DAY_S
    assert usage.today("anna") == 5
    clock.now += DAY_S
    assert usage.today("anna") == 3


def test_who_asks_and_leaves_loses_no_counts(tmp_path: Path) -> None:
    usage = Usage(tmp_path, clock=Clock())
    usage.add("anna", None, Counts(requests=1, counted=5))

    async def ask_and_leave() -> None:
        busy = threading.Event()
        usage._thread.submit(busy.wait, 10)  # the disk is slow
        asked = asyncio.create_task(usage.read(1, None))
        await asyncio.sleep(0)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        busy.set()
        await usage.stop()

    asyncio.run(ask_and_leave())
    assert read(Usage(tmp_path, clock=Clock()), 1) == [(usage.day(), "anna", 1, 5)]
