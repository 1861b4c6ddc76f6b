"""The same answers asked for in three ways: one at a time, in static batches, continuously. How fast was each?

A phase is one way at one number of streams. Every round visits all phases, so that whatever else the machine does
meets all of them alike; the figures are medians of the rounds. Static and continuous phases of the same round and size
ask for answers of the same lengths. See docs/bench.md for the definitions.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from homebox.bench.client import Client, Delivered
from homebox.bench.figures import percentile
from homebox.bench.prompts import Lengths, Prompts, lengths
from homebox.bench.results import Figures, Row, Way, middle
from homebox.bench.watch import Watch

Arrivals = Literal["closed", "bursts"]
Step = Callable[[str, int, int], None]  # what is measured, requests done, of how many
TURNS = 2  # answers that a stream gets in a phase
FEWEST = 4  # answers of a phase
_WARM_TOKENS = 8
_FITTINGS = 3  # the words of a prompt are not all equally many tokens, and its tag has some, too


@dataclass(frozen=True)
class Load:
    streams: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    rounds: int = 3
    max_tokens: int = 128
    prompt_tokens: int = 100
    lengths: Lengths = "fixed"
    arrivals: Arrivals = "closed"
    ways: tuple[Way, ...] = ("one", "static", "continuous")
    seed: int = 1

    def phases(self) -> Iterator[tuple[Way, int]]:
        """One at a time is one phase: it does not get faster by how many wait. A static batch of one is the same."""
        if "one" in self.ways:
            yield "one", 1
        for count in self.streams:
            if "static" in self.ways and count > 1:
                yield "static", count
            if "continuous" in self.ways:
                yield "continuous", count


def requests(streams: int) -> int:
    """Answers of a phase: whole batches."""
    return streams * max(TURNS, -(-FEWEST // streams))


async def warm_up(client: Client, load: Load, prompts: Prompts) -> None:
    """Not counted: fits the prompts to their length in tokens, and has as many answers at once as will be."""
    for _ in range(_FITTINGS):
        done = await client.complete(prompts.next(), _WARM_TOKENS)
        prompts.fitted(load.prompt_tokens, done.prompt_tokens or prompts.words)
    most = max((count for _, count in load.phases()), default=1)
    await _together(client, prompts, [_WARM_TOKENS] * most, lambda: None)


async def measure(client: Client, watch: Watch, load: Load, prompts: Prompts, step: Step) -> list[Row]:
    phases = list(load.phases())
    found: dict[tuple[Way, int], list[Figures]] = {phase: [] for phase in phases}
    total, done = load.rounds * sum(requests(count) for _, count in phases), 0

    def one_done(what: str) -> None:
        nonlocal done
        done += 1
        step(what, done, total)

    for number in range(load.rounds):
        for way, count in phases:
            what = f"round {number + 1} of {load.rounds}, {way}, {count}"
            step(what, done, total)
            each = lengths(load.lengths, requests(count), load.max_tokens, load.seed * 1000 + number)
            found[way, count].append(
                await _phase(client, watch, load, prompts, way, count, each, lambda what=what: one_done(what))  # type: ignore[misc]
            )
    return [Row(way, count, middle(rounds), rounds) for (way, count), rounds in found.items()]


async def _phase(
    client: Client,
    watch: Watch,
    load: Load,
    prompts: Prompts,
    way: Way,
    streams: int,
    each: Sequence[int],
    one_done: Callable[[], None],
) -> Figures:
    began = time.monotonic()
    if way == "continuous":
        arrive = _bursts if load.arrivals == "bursts" else _closed
        answers = await arrive(client, prompts, each, streams, one_done)
    else:
        answers = []
        for first in range(0, len(each), streams):
            answers += await _together(client, prompts, each[first : first + streams], one_done)
    return figures(answers, sum(each), began, time.monotonic(), watch)


def figures(
    answers: Sequence[Delivered], asked_tokens: int, began_s: float, ended_s: float, watch: Watch
) -> Figures:
    ttft = [answer.ttft_s * 1e3 for answer in answers]
    gaps = [gap for answer in answers for gap in answer.gaps_ms()]
    prompt = [answer.prompt_tokens for answer in answers if answer.prompt_tokens is not None]
    tokens, wall_s = sum(answer.tokens for answer in answers), ended_s - began_s
    return Figures(
        tok_s=tokens / wall_s,
        ttft_p50_ms=percentile(ttft, 0.5) if ttft else None,
        ttft_p95_ms=percentile(ttft, 0.95) if ttft else None,
        gap_p50_ms=percentile(gaps, 0.5) if gaps else None,
        gap_p95_ms=percentile(gaps, 0.95) if gaps else None,
        wall_s=wall_s,
        requests=len(answers),
        tokens=tokens,
        asked_tokens=asked_tokens,
        prompt_tokens=fmean(prompt) if prompt else None,
        used=watch.used(began_s, ended_s),
    )


# ---- how requests arrive


async def _together(
    client: Client, prompts: Prompts, each: Sequence[int], one_done: Callable[[], None]
) -> list[Delivered]:
    """All at once; over when the last of them is."""

    async def one(tokens: int) -> Delivered:
        answer = await client.complete(prompts.next(), tokens)
        one_done()
        return answer

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(tokens)) for tokens in each]
    return [task.result() for task in tasks]


async def _closed(
    client: Client, prompts: Prompts, each: Sequence[int], streams: int, one_done: Callable[[], None]
) -> list[Delivered]:
    """So many people, of whom each asks again as soon as the answer is there."""
    left, answers = iter(each), []

    async def person() -> None:
        for tokens in left:  # one list for all: whoever is ready takes the next
            answers.append(await client.complete(prompts.next(), tokens))
            one_done()

    async with asyncio.TaskGroup() as group:
        for _ in range(streams):
            group.create_task(person())
    return answers


async def _bursts(
    client: Client, prompts: Prompts, each: Sequence[int], streams: int, one_done: Callable[[], None]
) -> list[Delivered]:
    """Half of them come at once, and again whenever so many answers have ended: the others are in the midst of theirs."""
    half, waiting = max(1, streams // 2), list(each)
    freed = asyncio.Semaphore(streams)
    tasks: list[asyncio.Task[Delivered]] = []

    async def one(tokens: int) -> Delivered:
        answer = await client.complete(prompts.next(), tokens)
        one_done()
        freed.release()
        return answer

    async with asyncio.TaskGroup() as group:
        while waiting:
            burst = [waiting.pop(0) for _ in range(min(half, len(waiting)))]
            for _ in burst:
                await freed.acquire()
            tasks += [group.create_task(one(tokens)) for tokens in burst]
    return [task.result() for task in tasks]
