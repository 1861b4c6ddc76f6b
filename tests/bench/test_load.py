"""Do requests arrive as each way of asking says, and are the figures those of the definitions?"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from typing import Any

import pytest

from homebox.bench import load
from homebox.bench.client import Delivered
from homebox.bench.load import Load, figures, measure, requests
from homebox.bench.prompts import Prompts, lengths
from homebox.bench.results import Figures, Used, middle
from homebox.bench.watch import Watch


class Server:
    """Answers in virtual time: a token a tick for everybody who is there. Notes who was there with whom."""

    def __init__(self) -> None:
        self.there: list[int] = []  # how many were, as each came
        self.lengths: list[int] = []
        self.prompts: list[str] = []
        self._now = 0

    async def complete(self, prompt: str, max_tokens: int) -> Delivered:
        self.prompts.append(prompt)
        self.lengths.append(max_tokens)
        self._now += 1
        self.there.append(self._now)
        for _ in range(max_tokens):
            await asyncio.sleep(0)
        self._now -= 1
        return Delivered(sent_s=0.0, at_s=[0.1, 0.2], done_s=0.2, tokens=max_tokens, prompt_tokens=100)


class Blind(Watch):
    def __init__(self) -> None:
        return

    def used(self, since_s: float, until_s: float) -> Used:
        return Used()


def arrive(way: Any, each: Sequence[int], streams: int) -> Server:
    server, done = Server(), itertools.count()
    answers = asyncio.run(way(server, Prompts(1), each, streams, lambda: next(done)))
    assert len(answers) == len(each) == next(done) and sorted(server.lengths) == sorted(each)
    return server


def test_in_a_closed_loop_each_asks_again_as_soon_as_answered() -> None:
    server = arrive(load._closed, [3, 30, 3, 3, 3, 3, 3, 3], 2)
    assert max(server.there) == 2
    assert server.there[1:] == [2] * 7, "somebody waited beside a free place"


def test_in_bursts_half_of_them_come_at_once() -> None:
    server = arrive(load._bursts, [3, 6, 20, 20, 20, 20, 20, 20], 4)
    assert server.there[:4] == [1, 2, 3, 4] and max(server.there) == 4
    assert server.there[4:6] == [3, 4], "the next burst did not wait until half of the answers had ended"


@pytest.mark.parametrize("kind", ["fixed", "mixed"])
def test_a_static_batch_waits_for_its_last(kind: Any) -> None:
    server, seen = Server(), list[tuple[str, int, int]]()
    wanted = Load((3,), rounds=2, max_tokens=40, lengths=kind, ways=("static",))
    rows = asyncio.run(measure(server, Blind(), wanted, Prompts(1), lambda *step: seen.append(step)))  # type: ignore[arg-type]
    assert server.there == [1, 2, 3] * 4 and len(set(server.prompts)) == 12
    (row,) = rows
    assert (row.way, row.streams, len(row.rounds)) == ("static", 3, 2)
    assert sum(found.tokens for found in row.rounds) == sum(server.lengths)
    assert [found.asked_tokens for found in row.rounds] == [found.tokens for found in row.rounds]
    assert seen[-1][1:] == (12, 12) and seen[0] == ("round 1 of 2, static, 3", 0, 12)


def test_every_round_visits_all_phases_and_both_ways_get_the_same_lengths() -> None:
    server, seen = Server(), list[str]()
    wanted = Load((1, 2), rounds=2, max_tokens=30, lengths="mixed")
    rows = asyncio.run(measure(server, Blind(), wanted, Prompts(1), lambda what, *_: seen.append(what)))  # type: ignore[arg-type]
    phases = ["one, 1", "continuous, 1", "static, 2", "continuous, 2"]
    assert [what for what, _ in itertools.groupby(seen)] == [
        f"round {n} of 2, {p}" for n in (1, 2) for p in phases
    ]
    asked = [[found.asked_tokens for found in row.rounds] for row in rows]
    assert asked[2] == asked[3] and asked[2][0] != asked[2][1]


@pytest.mark.parametrize("streams", [1, 2, 3, 5, 32])
def test_a_phase_is_whole_batches(streams: int) -> None:
    assert requests(streams) % streams == 0 and requests(streams) >= max(4, 2 * streams)


def test_figures_are_those_of_the_definitions() -> None:
    answers = [
        Delivered(sent_s=10.0, at_s=[10.1, 10.2, 10.4], done_s=10.4, tokens=4, prompt_tokens=90),
        Delivered(sent_s=10.0, at_s=[10.3, 10.8], done_s=10.8, tokens=2, prompt_tokens=110),
    ]
    found = figures(answers, 8, 10.0, 12.0, Blind())
    assert (found.tok_s, found.tokens, found.asked_tokens, found.requests) == (3.0, 6, 8, 2)
    assert found.ttft_p50_ms == pytest.approx(300) and found.ttft_p95_ms == pytest.approx(300)
    assert found.gap_p50_ms == pytest.approx(200) and found.gap_p95_ms == pytest.approx(500)
    assert (found.prompt_tokens, found.wall_s) == (100, 2.0)


def test_the_middle_of_rounds_is_taken_figure_by_figure() -> None:
    def one(tok_s: float, ttft: float | None, busy: float | None) -> Figures:
        return Figures(tok_s, ttft, ttft, None, None, 1.0, 4, 10, 10, 100.0, Used("cpu", busy))

    found = middle([one(1.0, 30.0, 90.0), one(3.0, 10.0, None), one(2.0, 20.0, 70.0)])
    assert (found.tok_s, found.ttft_p50_ms, found.gap_p50_ms) == (2.0, 20.0, None)
    assert (found.used.device, found.used.device_percent, found.requests) == ("cpu", 80.0, 4)


def test_lengths_and_prompts_are_seeded_and_no_prompt_begins_like_another() -> None:
    assert lengths("mixed", 50, 128, 7) == lengths("mixed", 50, 128, 7) != lengths("mixed", 50, 128, 8)
    assert set(lengths("mixed", 500, 20, 1)) == {16, 17, 18, 19, 20} and lengths("fixed", 2, 9, 1) == [9, 9]
    assert set(lengths("mixed", 5, 9, 1)) == {9}
    first, again = Prompts(3, 20), Prompts(3, 20)
    told = [first.next() for _ in range(5)]
    assert [text.partition(": ")[2] for text in told] == [again.next().partition(": ")[2] for _ in range(5)]
    assert len({text.partition(": ")[0] for text in told}) == 5
    first.fitted(wanted_tokens=100, measured_tokens=40)
    assert first.words == 50
