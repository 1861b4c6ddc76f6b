"""The protocol of our own clients, end to end: nothing is lost, nothing is doubled, nobody sees another's words."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import msgspec
import pytest

from homebox.wire import events

from .box import Box, running, text_of, until


def test_an_answer_arrives_as_numbered_events(box: Box) -> None:
    told = box.ask("[[say=hello_there]]")
    assert text_of(told) == "hello there"
    last = told[-1]
    assert isinstance(last, events.Finished) and last.reason == "stop" and last.error is None
    assert last.usage.prompt_tokens > 5 and last.usage.completion_tokens > 1
    assert (
        last.timing.ttft_ms is not None
        and last.timing.total_ms >= last.timing.ttft_ms >= last.timing.queue_ms
    )
    assert [event.seq for event in told] == list(range(1, len(told) + 1))
    kinds = [type(event) for event in told]
    assert kinds.index(events.Started) < kinds.index(events.Text) < kinds.index(events.Stats)


def test_text_comes_at_most_twenty_times_a_second(box: Box) -> None:
    told = box.ask("[[forever]][[pace=5]] go", max_tokens=100)
    texts = [event for event in told if isinstance(event, events.Text)]
    finished = told[-1]
    assert isinstance(finished, events.Finished) and finished.usage.completion_tokens == 100
    # The first at once, then with each beat of 50 ms, and what is left at the end.
    assert len(texts) <= 3 + finished.timing.total_ms / 50


def test_thoughts_are_told_apart_from_the_answer(box: Box) -> None:
    told = box.ask("[[say=<think>_the_soup_</think>the_answer]]")
    assert "".join(event.text for event in told if isinstance(event, events.Think)).strip() == "the soup"
    assert text_of(told) == "the answer"


def test_leaving_an_ask_frees_its_blocks(box: Box) -> None:
    body = {"messages": [{"role": "user", "content": "[[forever]][[pace=5]]"}]}
    with box.http.stream("POST", "/homebox/ask", json=body) as response:
        lines = response.iter_lines()
        next(lines)
        until(lambda: any(row["tokens_out"] for row in box.streams()))
    until(box.idle, 2)


def test_a_detached_ask_goes_on_and_can_be_read_later(box: Box) -> None:
    turn = box.detach("[[say=hello_there]]")
    assert text_of(box.events(turn)) == "hello there"


def test_a_reader_who_was_cut_off_loses_and_doubles_nothing(box: Box) -> None:
    turn = box.detach("[[forever]][[pace=2]] on", max_tokens=120)
    heard: list[events.Event] = []
    while not (heard and isinstance(heard[-1], events.Finished)):
        after = heard[-1].seq if heard else 0
        with box.http.stream("GET", f"/homebox/turns/{turn}/events?after={after}") as response:
            for _, line in zip(range(3), response.iter_lines(), strict=False):
                heard.append(events.decode_event(line))
    assert [event.seq for event in heard] == list(range(1, len(heard) + 1))
    assert heard == box.events(turn)
    assert text_of(heard) == text_of(box.events(turn))


def test_an_answer_goes_on_over_the_death_of_its_engine_and_is_the_same(box: Box) -> None:
    whole = text_of(box.ask("[[forever]][[pace=10]] a story", max_tokens=40, seed=3))
    turn = box.detach("[[forever]][[pace=10]] a story", max_tokens=40, seed=3)
    until(lambda: box.tokens(turn) > 5)
    os.kill(box.http.get("/health").json()["engine_pid"], signal.SIGKILL)
    lost = until(lambda: (r := box.http.get("/health")).status_code == 503 and r).json()
    assert lost["state"] == "restarting" and lost["restarts"] == 1
    told = box.events(turn)
    assert text_of(told) == whole
    assert any(isinstance(event, events.EngineLost) and event.safe_tokens > 5 for event in told)
    assert box.http.get("/health").json()["state"] == "ready"


def test_a_request_that_kills_every_engine_ends_in_words_and_the_others_live(box: Box) -> None:
    others = [box.detach(f"[[forever]][[pace=10]] {i}", max_tokens=60) for i in range(3)]
    until(lambda: all(map(box.tokens, others)))
    told = box.ask("[[die=3]][[pace=10]]")
    end = told[-1]
    assert isinstance(end, events.Finished) and end.reason == "error" and end.error
    assert end.error["code"] == "engine_failed" and "2 times" in end.error["message"]
    for turn in others:
        finished = box.events(turn)[-1]
        assert isinstance(finished, events.Finished) and finished.reason == "length"
        assert finished.usage.completion_tokens == 60


def test_cancelling_returns_when_the_blocks_are_free_and_keeps_the_text(box: Box) -> None:
    turn = box.detach("[[forever]][[pace=5]] on")
    until(lambda: box.tokens(turn) > 3)
    assert box.http.delete(f"/homebox/turns/{turn}").json() == {"turn": turn, "reason": "cancelled"}
    assert box.idle()
    told = box.events(turn)
    end = told[-1]
    assert isinstance(end, events.Finished) and end.reason == "cancelled" and "owner" in end.detail
    assert text_of(told)
    assert box.http.delete(f"/homebox/turns/{turn}").status_code == 200  # again: it has ended


def test_a_queued_turn_is_withdrawn(model: Path, tmp_path: Path) -> None:
    with running(model, tmp_path, max_running=1) as box:
        first = box.detach("[[forever]][[pace=5]] one")
        until(lambda: box.tokens(first))
        second = box.detach("[[forever]] two")
        until(lambda: box.house.book.turn(second).position)  # the engine's word, not our first guess
        row = next(row for row in box.streams() if row["id"] == second)
        assert row["state"] == "waiting" and row["position"] == 1
        assert box.http.delete(f"/homebox/turns/{second}").status_code == 200
        queued = box.events(second)[0]
        assert isinstance(queued, events.Queued) and queued.position == 1
        assert box.tokens(first) and box.http.delete(f"/homebox/turns/{first}").status_code == 200


def test_a_dialects_request_can_be_cancelled_by_the_id_that_the_monitor_lists(box: Box) -> None:
    body = {"messages": [{"role": "user", "content": "[[forever]][[pace=5]]"}], "stream": True}
    with box.http.stream("POST", "/v1/chat/completions", json=body) as response:
        row = until(lambda: next((row for row in box.streams() if row["tokens_out"]), None))
        assert row["id"].startswith("chatcmpl-")
        assert box.http.delete(f"/homebox/turns/{row['id']}").status_code == 200
        lines = [line for line in response.iter_lines() if line]
    assert "cancelled" in msgspec.json.decode(lines[-1].removeprefix("data: "))["error"]["message"]
    assert box.idle()


def test_a_typo_in_our_own_protocol_is_refused(box: Box) -> None:
    answer = box.http.post("/homebox/ask", json={"messages": [], "optoins": {}})
    assert answer.status_code == 400 and "optoins" in answer.json()["error"]["message"]


def test_a_person_sees_only_their_own_turns(box: Box) -> None:
    anna, ben = (box.client(**{"X-Homebox-As": name}) for name in ("anna", "ben"))
    with anna, ben:
        turn = box.detach("[[forever]][[pace=5]]", anna)
        until(lambda: box.tokens(turn))
        assert ben.get(f"/homebox/turns/{turn}/events").status_code == 404
        assert ben.delete(f"/homebox/turns/{turn}").status_code == 403
        row = next(row for row in ben.get("/homebox/monitor").json()["streams"] if row["id"] == turn)
        assert row["person"] == "anna" and not row["mine"]
        assert box.http.delete(f"/homebox/turns/{turn}").status_code == 200  # an administrator


def test_the_monitor_tells_figures_and_never_words(box: Box) -> None:
    turn = box.detach("[[forever]][[pace=5]] supersecret", max_tokens=200)
    until(lambda: box.tokens(turn) > 10)
    body = box.http.get("/homebox/monitor").content
    assert b"supersecret" not in body
    snapshot = events.decode_snapshot(body)
    row = snapshot.streams[0]
    assert (snapshot.engine, snapshot.model, snapshot.running, row.state) == ("ready", "tiny", 1, "decode")
    assert snapshot.tok_s_out > 0 and snapshot.ttft_p50_ms and snapshot.gap_p95_ms and snapshot.blocks
    assert snapshot.blocks.used > 0 and row.mine and row.blocks > 0 and row.tok_s and row.tokens_in > 0
    device = until(lambda: next((d for d in box.snapshot().devices if d.util_percent is not None), None))
    assert device.kind == "cpu" and device.memory_used_bytes and device.memory_total_bytes
    with box.http.stream("GET", "/homebox/monitor?interval=0.2") as response:
        lines = response.iter_lines()
        first, second = (events.decode_snapshot(next(lines)) for _ in range(2))
    assert second.at > first.at
    box.http.delete(f"/homebox/turns/{turn}")


def test_requests_wait_while_the_engine_loads_and_health_says_how_far_it_is(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOMEBOX_SCRIPT_LOAD", f"wait:{tmp_path / 'go'}")
    with running(model, tmp_path, ready=False) as box:
        turn = box.detach("[[say=hello]]")
        health = until(lambda: (h := box.http.get("/health").json())["state"] == "loading" and h)
        assert health["progress"]["stage"] == "weights" and health["progress"]["total"] == 3
        with box.http.stream("GET", f"/homebox/turns/{turn}/events") as response:
            first = events.decode_event(next(response.iter_lines()))
            assert isinstance(first, events.Queued) and first.position == 1
        (tmp_path / "go").touch()
        assert text_of(box.events(turn)) == "hello"


def test_events_of_an_open_connection_are_read_as_they_come(box: Box) -> None:
    body = {
        "messages": [{"role": "user", "content": "[[forever]][[pace=20]]"}],
        "options": {"max_tokens": 30},
    }
    with box.http.stream("POST", "/homebox/ask", json=body) as response:
        assert response.headers["content-type"] == "application/x-ndjson"
        seen = [events.decode_event(line) for line in response.iter_lines()]
    assert sum(isinstance(event, events.Text) for event in seen) > 3
