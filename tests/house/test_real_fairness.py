"""Service is owed to people, on the real engine. Minutes, so behind the marker."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from homebox.daemon.engine_process import WORKER
from homebox.daemon.supervisor import Patience
from homebox.wire import events
from tests.daemon.box import Box, read_events, running

pytestmark = [pytest.mark.model, pytest.mark.long, pytest.mark.timeout(600)]
PROMPT_WORDS = 12


class Asker:
    """A person who always has so many requests outstanding."""

    def __init__(self, box: Box, name: str, outstanding: int, max_tokens: int) -> None:
        self.box, self.name, self.outstanding, self.max_tokens = box, name, outstanding, max_tokens
        self.http = box.client(**{"X-Homebox-As": name})
        self.turns: list[str] = []

    def keep_asking(self, rows: list[dict[str, object]]) -> None:
        mine = sum(row["person"] == self.name for row in rows)
        for _ in range(self.outstanding - mine):
            text = " ".join(
                random.choices(
                    ["red", "green", "blue", "cat", "dog", "house", "tree", "river", "stone", "cloud"],
                    k=PROMPT_WORDS,
                )
            )
            self.turns.append(
                self.box.detach(text, self.http, max_tokens=self.max_tokens, ignore_eos=True, temperature=0.0)
            )

    def service(self, rows: list[dict[str, object]]) -> float:
        """Weighted tokens so far: input once, output twice; the few cached ones of the template are not told apart."""
        live = {row["id"]: row for row in rows}
        total = 0.0
        for turn in self.turns:
            row = live.get(turn)
            total += 60 + 2 * (int(row["tokens_out"]) if row else self.max_tokens)  # type: ignore[call-overload]
        return total


@contextmanager
def asking(box: Box, *askers: Asker) -> Iterator[None]:
    stop = threading.Event()

    def work() -> None:
        while not stop.wait(0.05):
            rows = box.streams()
            for asker in askers:
                asker.keep_asking(rows)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def wait_for(condition: Callable[[], bool], within_s: float) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def waiting(box: Box) -> set[object]:
    return {row["person"] for row in box.streams() if row["state"] == "waiting"}


def test_two_people_who_always_wait_get_the_same_service_whatever_they_ask_for(
    default_model: Path, tmp_path: Path
) -> None:
    with running(default_model, tmp_path, command=WORKER, patience=Patience(), max_running=3) as box:
        hog, mia = Asker(box, "hog", 20, 60), Asker(box, "mia", 4, 60)
        with asking(box, hog, mia):
            wait_for(lambda: len(hog.turns) > 24 and len(mia.turns) > 6, within_s=120)
            wait_for(lambda: waiting(box) == {"hog", "mia"}, within_s=10)
            rows = box.streams()
            before = {asker.name: asker.service(rows) for asker in (hog, mia)}
            time.sleep(60)  # the length of the measurement
            rows = box.streams()
            got = {asker.name: asker.service(rows) - before[asker.name] for asker in (hog, mia)}
        share = got["mia"] / sum(got.values())
        print(f"weighted service in 60 s: hog {got['hog']:.0f}, mia {got['mia']:.0f}: {share:.0%}")
        assert 0.4 <= share <= 0.6


def test_one_question_beside_twenty_running_is_answered_within_two_seconds(
    default_model: Path, tmp_path: Path
) -> None:
    with running(default_model, tmp_path, command=WORKER, patience=Patience(), max_running=20) as box:
        hog = Asker(box, "hog", 30, 150)
        with asking(box, hog):
            wait_for(lambda: box.snapshot().running == 20, within_s=120)
            time.sleep(5)  # into the steady state
            first: list[float] = []
            for i in range(5):
                waiting = {row["id"] for row in box.streams() if row["state"] == "waiting"}
                assert len(waiting) >= 5 and box.snapshot().running == 20
                first.append(ttft_s(box, f"What colour is the sky, please? Number {i}."))
                rows = {row["id"]: row for row in box.streams()}
                overtaken = [i for i in waiting if i not in rows or int(rows[i]["tokens_out"]) > 2]
                assert len(overtaken) <= 1, "behind a second of the other's waiting requests"
                time.sleep(1)
        print("first token after " + ", ".join(f"{s:.2f}" for s in first) + " s")
        assert max(first) <= 2.0


def ttft_s(box: Box, text: str) -> float:
    body = {"messages": [{"role": "user", "content": text}], "options": {"max_tokens": 4}}
    started = time.monotonic()
    with (
        httpx.Client(
            transport=httpx.HTTPTransport(uds=box.socket),
            base_url="http://box",
            headers={"X-Homebox-As": "mia"},
        ) as http,
        http.stream("POST", "/homebox/ask", json=body, timeout=60) as answer,
    ):
        for line in answer.iter_lines():
            if line and isinstance(read_events(line.encode())[0], events.Text):
                return time.monotonic() - started
    raise AssertionError("no text came")
