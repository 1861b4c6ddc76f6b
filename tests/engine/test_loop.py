"""The loop around the steps: what it costs, in which order it speaks, and what goes on beside a step that is computed."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Callable
from types import FrameType

import pytest

from homebox.bench.overhead import House, Loop
from homebox.engine.ahead import Ahead
from homebox.engine.blocks import Group, KVSpace
from homebox.engine.core import PLACES_A_STEP, Engine, StepRunner
from homebox.engine.plan import StepPlan, StepResult
from homebox.engine.scheduler import Limits, Scheduler
from homebox.engine.worker import Outbox
from homebox.wire import frames
from homebox.wire.frames import FromEngine, Place, Sampling, StepDone, StepStarted, Submit
from tests.engine.null_model import NullRunner, expected

PATIENCE_S = 20.0


class Told:
    """An engine on the null model, and what it says and does, in order."""

    def __init__(
        self, depth: int = 1, running: int = 4, runner: Callable[[KVSpace], StepRunner] = NullRunner
    ) -> None:
        space = KVSpace([Group((0,))], [512], 4)
        self.events: list[FromEngine | str] = []
        self.now = 0.0
        self.engine = Engine(
            Scheduler(Limits(256, max_running=running), space), runner(space), self.events.append,
            depth=depth, clock=lambda: self.now, flush=lambda: self.events.append("flush"),
        )  # fmt: skip

    def submit(self, *names: str, max_tokens: int = 30) -> None:
        for name in names:
            self.engine.submit(Submit(name, name[0], [1, 2, 3], Sampling(max_tokens, temperature=0.0)))

    @property
    def places(self) -> list[list[Place]]:
        return [e.places for e in self.events if isinstance(e, StepDone) and e.places is not None]

    def tokens(self, name: str) -> list[int]:
        done = [e for e in self.events if isinstance(e, StepDone)]
        return [t for e in done for p in e.progress if p.id == name for t in p.tokens]


def test_a_long_line_hears_each_place_once_and_a_few_in_each_step() -> None:
    told = Told(running=1)
    told.submit(*(f"{'abc'[i % 3]}{i}" for i in range(400)), max_tokens=200)
    told.engine.step()
    left = told.places[0][-1].id
    gone = [seq.id for seq in told.engine.scheduler.waiting if seq.id not in {p.id for p in told.places[0]}][
        7
    ]
    told.engine.abort(left)
    told.engine.abort(gone)
    for _ in range(4):
        told.engine.step()
    assert [len(part) for part in told.places[:3]] == [PLACES_A_STEP, PLACES_A_STEP, PLACES_A_STEP]
    heard = [place for part in told.places for place in part]
    positions = [place.position for place in heard]
    assert len({place.id for place in heard}) == len(heard) == 398, "399 wait, and one left before its turn"
    assert positions == sorted(positions) and positions[-1] == 399
    assert gone not in {place.id for place in heard} and left in {place.id for place in heard}
    told.now += 1.0
    told.engine.step()
    assert told.places[-1][0].position == 1, "then the line as it is now is told"


def test_what_was_made_and_who_is_next_leave_together_before_the_next_step_is_launched() -> None:
    class Launching(NullRunner):
        def launch(self, plan: StepPlan) -> StepPlan:
            told.events.append("launch")
            return super().launch(plan)

    told = Told(runner=Launching)
    told.submit("a", max_tokens=3)
    while told.engine.step():
        pass
    kinds = [e if isinstance(e, str) else type(e).__name__ for e in told.events]
    step = ["StepStarted", "flush", "launch", "StepDone"]
    assert kinds == [*step, *step, *step, "flush"]


class Gated(NullRunner):
    """Computes a step only once the next one has been announced, or nothing is left to announce."""

    def __init__(self, space: KVSpace) -> None:
        super().__init__(space)
        self.announced = threading.Semaphore(0)

    def collect(self, plan: StepPlan) -> StepResult:
        assert self.announced.acquire(timeout=PATIENCE_S), "the next step is planned only after this one"
        return super().collect(plan)


def test_with_depth_two_the_next_step_is_planned_while_one_is_computed() -> None:
    gates: list[Gated] = []

    def runner(space: KVSpace) -> StepRunner:
        gates.append(Gated(space))
        return Ahead(gates[0])

    told = Told(depth=2, runner=runner)
    emit = told.events.append

    def announced(frame: FromEngine) -> None:
        emit(frame)
        if isinstance(frame, StepStarted) and frame.step > 1:
            gates[0].announced.release()

    told.engine._emit = announced
    told.submit("a", "b", max_tokens=9)
    for _ in range(8):
        told.engine.step()
    gates[0].announced.release(3)
    while told.engine.step():
        pass
    assert told.tokens("a") == told.tokens("b") == expected([1, 2, 3], 9, 256)


def test_what_fails_on_the_thread_of_a_step_fails_the_loop() -> None:
    class Broken(NullRunner):
        def collect(self, plan: StepPlan) -> StepResult:
            raise RuntimeError("the device is gone")

    told = Told(depth=2, runner=lambda space: Ahead(Broken(space)))
    told.submit("a")
    with pytest.raises(RuntimeError, match="the device is gone") as caught:
        told.engine.step()
    assert any(entry.name == "collect" and "test_loop" in str(entry.path) for entry in caught.traceback)


def test_a_daemon_that_does_not_read_stops_nobody_and_hears_everything_later() -> None:
    ours, theirs = socket.socketpair()
    outbox = Outbox(ours)
    said = [StepStarted(step, 1.0, ["x" * 1000]) for step in range(1000)]  # more than a socket holds

    def speak() -> None:
        for frame in said:
            outbox.emit(frame)
            outbox.flush()

    speaker = threading.Thread(target=speak, daemon=True)
    speaker.start()
    speaker.join(PATIENCE_S)
    assert not speaker.is_alive(), "the engine waits for a daemon that does not read"
    draining = threading.Thread(target=outbox.drain, daemon=True)
    draining.start()
    theirs.settimeout(PATIENCE_S)
    splitter = frames.Splitter("from_engine")
    heard: list[object] = []
    while len(heard) < len(said):
        heard += splitter.feed(theirs.recv(1 << 18))
    assert heard == said
    draining.join(PATIENCE_S)
    ours.close()
    theirs.close()


def calls_a_step(house: House, steps: int = 48) -> float:
    """How many functions a step calls: what it costs, whatever else this machine does."""
    loop = Loop(house)
    for _ in range(20):
        loop.step()
    count = 0

    def called(frame: FrameType, event: str, arg: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    for _ in range(steps):
        line = len(loop.scheduler.waiting)
        sys.setprofile(called)
        loop._engine.step()
        sys.setprofile(None)
        loop._slept += 0.02
        for _ in range(line - len(loop.scheduler.waiting)):
            loop._submit(256)
    return count / steps


def test_a_step_costs_what_runs_and_not_what_waits_or_how_long_the_texts_are() -> None:
    few = calls_a_step(House(streams=8, context=256))
    assert calls_a_step(House(streams=32, context=256)) < 4.5 * few
    assert calls_a_step(House(streams=8, context=8192)) < 1.5 * few  # a prompt comes in now and then
    # Both lines are so long that some of them hear their places in each step.
    long = calls_a_step(House(streams=8, context=256, waiting=9000))
    assert long < few + 12 * PLACES_A_STEP
    assert calls_a_step(House(streams=8, context=256, waiting=18_000)) < 1.05 * long
