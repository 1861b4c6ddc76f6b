"""Does who begins to look see the last five minutes, and does who waits hear how long?"""

from __future__ import annotations

from pathlib import Path

import pytest

from homebox.daemon import monitor as monitors
from homebox.daemon import turnbook
from homebox.daemon.monitor import Monitor
from homebox.wire import events

from .box import Box, running, until


def watched(box: Box, query: str, count: int) -> list[events.Snapshot]:
    found: list[events.Snapshot] = []
    with box.http.stream("GET", f"/homebox/monitor?{query}") as response:
        assert response.status_code == 200
        for line in response.iter_lines():
            found.append(events.decode_snapshot(line))
            if len(found) == count:
                break
    return found


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitors, "SAMPLE_EVERY_S", 0.01)
    monkeypatch.setattr(monitors, "HISTORY_EVERY_S", 0.02)


def test_a_new_monitor_first_sees_the_past_and_then_the_present(
    quick: None, model: Path, tmp_path: Path
) -> None:
    with running(model, tmp_path) as box:
        turn = box.detach("[[forever]][[pace=10]]", max_tokens=5000)
        until(lambda: box.tokens(turn))
        held = box.house.monitor.history.count(b"\n")
        until(lambda: box.house.monitor.history.count(b"\n") >= held + 3)
        past = box.house.monitor.history.count(b"\n")
        told = watched(box, "interval=0.2&history=1", past + 2)
        plain = watched(box, "interval=0.2", 1)
        box.http.delete(f"/homebox/turns/{turn}")
    assert [one.at for one in told] == sorted(one.at for one in told)
    assert told[0].engine in ("starting", "loading") and told[past - 1].running == 1
    assert not any(one.streams for one in told[:past]) and told[-1].streams
    assert plain[0].streams
    assert [one.past for one in told] == [not one.streams for one in told]


def test_the_past_is_bounded(box: Box) -> None:
    monitor = Monitor()
    for _ in range(1000):
        monitor._history_at = -1e9
        monitor._remember(box.house.supervisor, box.house.book)
    assert monitor.history.count(b"\n") == 150 and len(monitor.history) < 256 * 1024


@pytest.mark.parametrize("query", ["history=1", "interval=1&history=yes", "interval=1&history="])
def test_an_impossible_wish_for_the_past_is_refused(box: Box, query: str) -> None:
    response = box.http.get(f"/homebox/monitor?{query}")
    assert response.status_code == 400 and response.json()["error"]["param"] == "history"


def test_who_waits_is_told_how_long_once_it_can_be_known(model: Path, tmp_path: Path) -> None:
    with running(model, tmp_path, max_running=1) as box:

        def wait_behind(name: str) -> events.Queued:
            first = box.detach("[[forever]][[pace=5]]", max_tokens=5000)
            until(lambda: box.tokens(first))
            turn = box.detach(f"[[say=hello]] {name}")
            until(lambda: any(row["position"] == 1 for row in box.streams()))
            box.http.delete(f"/homebox/turns/{first}")
            told = box.events(turn)
            return next(event for event in told if isinstance(event, events.Queued))

        assert wait_behind("nobody knows").eta_s is None
        box.house.book._durations_s.clear()
        box.house.book._durations_s.extend([8.0] * (turnbook.ENOUGH_TO_GUESS - 1) + [1000.0])
        assert wait_behind("the usual").eta_s == 8.0
