"""What does a step cost before and after the arithmetic?

    python -m homebox.bench.overhead [--steps 200] [--json]

A model that computes nothing under the real loop: scheduling, committing, and the frames to the daemon, as bytes. Streams
end and others take their places, as in a house that always has more to ask than may run. One thing grows at a time: streams,
context, blocks of memory, the line of those who wait. Prints milliseconds a step (median, p95, and their parts), and for
each series the exponent by which the median grows: 1 is linear, 0 is not at all. Times are of the processor, so that whatever
else this machine does is not counted.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Sequence as Seq
from typing import NamedTuple

from homebox.engine.blocks import Group, KVSpace
from homebox.engine.core import Engine
from homebox.engine.plan import Outcome, StepPlan, StepResult
from homebox.engine.scheduler import Limits, Scheduler
from homebox.wire import frames
from homebox.wire.frames import FromEngine, Sampling, Submit

BLOCK_SIZE = 16
STEP_S = 0.02  # how long the steps pretend to take: what happens so often a second happens so often here
ANSWER_TOKENS = 256
PEOPLE = 8
WARM_STEPS = 50


class House(NamedTuple):
    """`context`: tokens of each prompt; `blocks` 0 is what the streams need and as much again; `waiting`: requests
    beyond the streams that run."""

    streams: int = 64
    context: int = 1024
    blocks: int = 0
    waiting: int = 0


SERIES: dict[str, list[House]] = {
    "streams": [House(streams=n) for n in (1, 4, 16, 64, 256)],
    "context": [House(context=n) for n in (256, 1024, 4096, 8192, 32768)],
    "blocks": [House(blocks=n) for n in (10_000, 50_000, 200_000)],
    "waiting": [House(waiting=n) for n in (0, 100, 1_000, 10_000)],
}


class NullRunner:
    """Computes nothing, and says that it took `STEP_S`."""

    def launch(self, plan: StepPlan) -> StepPlan:
        return plan

    def collect(self, plan: StepPlan) -> StepResult:
        made = tuple(Outcome(token=7) if row.sample else Outcome() for row in plan.rows)
        return StepResult(plan.step, made, STEP_S * 1e3)


class Clocked(Scheduler):
    """A scheduler that says how long it was at it."""

    plan_s = commit_s = 0.0

    def plan(self, now: float) -> StepPlan | None:
        started = time.thread_time()
        plan = super().plan(now)
        self.plan_s += time.thread_time() - started
        return plan

    def commit(self, plan: StepPlan, result: StepResult) -> list[frames.Progress]:
        started = time.thread_time()
        progress = super().commit(plan, result)
        self.commit_s += time.thread_time() - started
        return progress


class Cost(NamedTuple):
    """Of one step, in ms. What is neither plan nor commit is the loop and its frames."""

    all_ms: float
    plan_ms: float
    commit_ms: float
    bytes: int


class Loop:
    """An engine without a model, full of work."""

    def __init__(self, house: House) -> None:
        self._house = house
        tokens = house.context + ANSWER_TOKENS
        need = house.streams * -(-tokens // BLOCK_SIZE)
        space = KVSpace([Group((0,))], [max(house.blocks, 2 * need)], BLOCK_SIZE)
        limits = Limits(
            tokens + 1,
            max_running=house.streams,
            max_chunk_tokens=1 << 20,
            prefill_step_ms=1e9,
            decode_step_ms=1e9,
        )
        self.scheduler = Clocked(limits, space)
        self._slept = 0.0
        self._bytes = 0
        self._serial = 0
        self._engine = Engine(self.scheduler, NullRunner(), self._send, clock=self._now)
        self._fill(space)

    def _now(self) -> float:
        return time.perf_counter() + self._slept

    def _send(self, frame: FromEngine) -> None:
        self._bytes += len(frames.encode(frame))

    def _fill(self, space: KVSpace) -> None:
        """Streams whose ends are spread over time, then all the memory that they leave with known content, then the line."""
        for i in range(self._house.streams):
            self._submit(1 + (i * 37) % ANSWER_TOKENS)
        while len(self.scheduler.waiting):
            self._engine.step()
        pool = space.pools[0]
        while self._house.blocks and pool.free > self._house.streams:
            block = pool.allocate()
            pool.seal(block, (0, (block,) * BLOCK_SIZE, "old"))
            pool.give_back([block])
        for _ in range(self._house.waiting + 1):
            self._submit(ANSWER_TOKENS)

    def _submit(self, max_tokens: int) -> None:
        self._serial += 1
        prompt = [self._serial] * self._house.context
        sampling = Sampling(max_tokens, temperature=0.0)
        self._engine.submit(Submit(f"{self._serial:032}", f"person{self._serial % PEOPLE}", prompt, sampling))

    def step(self) -> Cost:
        scheduler, line = self.scheduler, len(self.scheduler.waiting)
        self._slept += STEP_S
        self._bytes, scheduler.plan_s, scheduler.commit_s = 0, 0.0, 0.0
        started = time.thread_time()
        self._engine.step()
        elapsed = time.thread_time() - started
        for _ in range(line - len(scheduler.waiting)):
            self._submit(ANSWER_TOKENS)
        return Cost(elapsed * 1e3, scheduler.plan_s * 1e3, scheduler.commit_s * 1e3, self._bytes)


class Figures(NamedTuple):
    house: House
    median_ms: float
    p95_ms: float
    most_ms: float
    plan_ms: float
    commit_ms: float
    rest_ms: float
    bytes: int


def measure(house: House, steps: int) -> Figures:
    loop = Loop(house)
    for _ in range(WARM_STEPS):
        loop.step()
    costs = [loop.step() for _ in range(steps)]
    whole = sorted(cost.all_ms for cost in costs)
    return Figures(
        house,
        median_ms=statistics.median(whole),
        p95_ms=whole[int(0.95 * len(whole))],
        most_ms=whole[-1],
        plan_ms=statistics.median(cost.plan_ms for cost in costs),
        commit_ms=statistics.median(cost.commit_ms for cost in costs),
        rest_ms=statistics.median(cost.all_ms - cost.plan_ms - cost.commit_ms for cost in costs),
        bytes=int(statistics.mean(cost.bytes for cost in costs)),
    )


def exponent(sizes: Seq[float], ms: Seq[float]) -> float:
    """The slope of a line through the logarithms."""
    points = [(math.log(max(size, 1)), math.log(y)) for size, y in zip(sizes, ms, strict=True)]
    slope, _ = statistics.linear_regression([x for x, _ in points], [y for _, y in points])
    return slope


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--series", default=",".join(SERIES), help="which of: %(default)s")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    found: dict[str, list[Figures]] = {}
    for name in args.series.split(","):
        found[name] = [measure(house, args.steps) for house in SERIES[name]]
    if args.json:
        print(json.dumps({n: [f._asdict() | {"house": f.house._asdict()} for f in found[n]] for n in found}))
        return
    base = House()
    print(
        f"ms a step; where nothing else is said, {base.streams} streams with {base.context} tokens of context"
    )
    print(f"{'':>16}{'median':>9}{'p95':>8}{'most':>8}{'plan':>8}{'commit':>8}{'rest':>8}{'bytes':>8}")
    for name, rows in found.items():
        for f in rows:
            print(
                f"{name + ' ' + str(getattr(f.house, name)):>16}{f.median_ms:9.3f}{f.p95_ms:8.3f}{f.most_ms:8.2f}"
                f"{f.plan_ms:8.3f}{f.commit_ms:8.3f}{f.rest_ms:8.3f}{f.bytes:8}"
            )
        grows = exponent([getattr(f.house, name) for f in rows], [f.median_ms for f in rows])
        print(f"{'':>16}grows with the power {grows:.2f}")


if __name__ == "__main__":
    main()
