"""Are the queue's limits kept, with numbers, and does everybody who leaves leave nothing behind?"""

from __future__ import annotations

import contextlib
import random
import socket
import threading
import time
from pathlib import Path

import httpx
import msgspec

from homebox.wire import events

from .box import Box, running, text_of, until


def test_a_full_queue_is_a_429_with_the_numbers_and_a_time_to_come_back(model: Path, tmp_path: Path) -> None:
    with running(model, tmp_path, max_running=1, queue_per_person=2, queue_total=3) as box:
        turns = [box.detach("[[forever]][[pace=5]]") for _ in range(3)]
        until(lambda: box.tokens(turns[0]))
        for stream in (False, True):
            answer = box.chat("[[say=hello]]", stream=stream)
            error = answer.json()["error"]
            assert answer.status_code == 429 and int(answer.headers["retry-after"]) >= 1
            assert (
                error["type"] == "rate_limit_error"
                and "2 requests waiting; the queue holds 2" in error["message"]
            )
            assert "x-should-retry" not in answer.headers
        with box.client(**{"X-Homebox-As": "ben"}) as ben:
            turns.append(box.detach("[[forever]]", ben))
            total = box.chat("[[say=hello]]", ben)
            assert total.status_code == 429 and "3 requests are waiting" in total.json()["error"]["message"]
        native = box.http.post("/homebox/ask", json={"messages": [{"role": "user", "content": "x"}]})
        assert native.status_code == 429 and native.json()["error"]["numbers"]["yours"] == 2
        for turn in reversed(turns):
            assert box.http.delete(f"/homebox/turns/{turn}").status_code == 200
        assert box.chat("[[say=hello]]").status_code == 200


def test_free_slots_are_no_queue(model: Path, tmp_path: Path) -> None:
    with running(model, tmp_path, max_running=4, queue_per_person=1) as box:
        answer = box.chat("[[forever]]", n=4, max_tokens=5)
        assert answer.status_code == 200 and len(answer.json()["choices"]) == 4
        impossible = box.chat("[[forever]]", n=6, max_tokens=5)
        assert impossible.status_code == 400 and impossible.json()["error"]["param"] == "n"


def test_places_and_who_is_ahead_are_told_as_they_change(model: Path, tmp_path: Path) -> None:
    with running(model, tmp_path, max_running=1) as box:
        turns = []
        for name, tokens in (("dad", 160), ("leo", 5), ("mia", 5)):
            with box.client(**{"X-Homebox-As": name}) as client:
                turns.append(box.detach("[[forever]][[pace=5]]", client, max_tokens=tokens))
        with box.client(**{"X-Homebox-As": "mia"}) as mia:
            told = [
                events.decode_event(line)
                for line in mia.get(f"/homebox/turns/{turns[2]}/events").content.splitlines()
            ]
        queued = [(e.position, e.waiting, e.ahead) for e in told if isinstance(e, events.Queued)]
        assert queued[-1] == (1, 1, ()) and (2, 2, ("leo",)) in queued
        assert isinstance(told[-1], events.Finished) and told[-1].timing.queue_ms > 50


def test_fifty_random_disconnects_leave_nothing_behind(box: Box) -> None:
    dice = random.Random(7)

    def leave_early(seed: int, after_s: float, path: str, stream: bool) -> None:
        words = "[[forever]][[pace=2]] " + "soup " * dice.choice((1, 120))
        body = {"messages": [{"role": "user", "content": words}]} | (
            {"stream": stream} if "v1" in path else {}
        )
        raw = msgspec.json.encode(body)
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(box.socket)
            head = f"POST {path} HTTP/1.1\r\nHost: box\r\nContent-Type: application/json\r\nContent-Length: {len(raw)}\r\n\r\n"
            connection.sendall(head.encode() + raw)
            time.sleep(after_s)  # a random moment to leave is the thing under test

    threads = [
        threading.Thread(
            target=leave_early,
            args=(
                i,
                dice.uniform(0, 0.3),
                dice.choice(("/v1/chat/completions", "/homebox/ask")),
                dice.random() < 0.5,
            ),
        )
        for i in range(50)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    until(box.idle, 1)
    assert text_of(box.ask("[[say=hello]]")) == "hello"
    assert box.house.supervisor.restarts == 0


def test_a_reader_who_stops_reading_holds_nobody(box: Box) -> None:
    body = msgspec.json.encode({"messages": [{"role": "user", "content": "[[forever]]"}], "stream": True})
    with socket.socket(socket.AF_UNIX) as stuck:
        stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        stuck.connect(box.socket)
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: box\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        stuck.sendall(head.encode() + body)
        assert text_of(box.ask("[[say=hello]]")) == "hello"
        until(box.idle)  # the engine has finished the stuck one's answer, too
        with contextlib.suppress(httpx.HTTPError):
            assert box.chat("[[say=hello]]").status_code == 200


def test_who_waits_has_a_place_before_the_engine_has_said_one(model: Path, tmp_path: Path) -> None:
    with running(model, tmp_path, max_running=1) as box:
        first = box.detach("[[forever]][[pace=1500]]")  # the engine hears of the others after this step
        until(lambda: next(row for row in box.streams() if row["id"] == first)["state"] != "waiting")
        turns = [box.detach("hello") for _ in range(2)]
        rows = {row["id"]: row for row in box.streams()}
        assert [rows[turn]["position"] for turn in turns] == [1, 2]
