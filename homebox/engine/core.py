"""The loop: plan, launch, collect, tell.

    submit, abort -> Scheduler.plan -> Runner.launch ... Runner.collect -> Scheduler.commit -> frames to the daemon

`Engine` has no socket and no thread: whoever owns it calls `step` while there is work and hands it requests in
between, which is when they take effect. With `depth` 2 the next step is launched before the oldest is read back.

A step wakes the daemon once: what the last one made and the announcement of the next one go out together (`flush`), before
the next one is launched, so that whatever it does to this process, the daemon knows who was in it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, NamedTuple, Protocol

from homebox.engine.plan import StepPlan, StepResult
from homebox.engine.scheduler import Scheduler
from homebox.wire.frames import FromEngine, Holdings, Place, Progress, StepDone, StepStarted, Submit

PLACES_EVERY_S = 0.1
PLACES_A_STEP = 128  # a long line hears its places over several steps: nobody who runs waits for that
HOLDINGS_EVERY_S = 1.0
HOLDINGS_REST = (
    200  # after a look at who holds what, so many times as long without one: half a percent at most
)


class StepRunner(Protocol):
    def launch(self, plan: StepPlan) -> Any: ...

    def collect(self, handle: Any) -> StepResult: ...


class MeasuredRunner(StepRunner, Protocol):
    def measure(self, tokens: int) -> float:
        """Milliseconds of a step of so many prompt tokens of nobody."""


class Flight(NamedTuple):
    """A launched step."""

    plan: StepPlan
    handle: Any
    started_at: float
    plan_ms: float


class Engine:
    def __init__(
        self,
        scheduler: Scheduler,
        runner: StepRunner,
        emit: Callable[[FromEngine], None],
        *,
        depth: int = 1,
        clock: Callable[[], float] = time.monotonic,
        flush: Callable[[], None] = lambda: None,
    ) -> None:
        """`emit` may hold frames back until `flush` is called."""
        self.scheduler = scheduler
        self._runner = runner
        self._emit = emit
        self._depth = depth
        self._clock = clock
        self._flush = flush
        self._flights: deque[Flight] = deque()
        self._places_at = float("-inf")
        self._places: Iterator[Place] | None = None  # being told
        self._holdings_at = self._holdings_rest = float("-inf")

    def submit(self, request: Submit) -> None:
        if (refused := self.scheduler.submit(request)) is not None:
            self._emit(refused)

    def abort(self, request_id: str) -> None:
        self.scheduler.abort(request_id)

    @property
    def idle(self) -> bool:
        """Nothing to compute, nothing in flight."""
        return not self._flights and not self.scheduler.live

    def step(self) -> bool:
        """Launch what can be launched, collect one step. False where there was none to collect: the caller waits for
        the next request."""
        if ended := self.scheduler.take_ended():
            self._tell(
                ended
            )  # whoever stopped an answer waits for the step that was under way, not for another one
        while len(self._flights) < self._depth and self._launch():
            pass
        if not self._flights:
            ended = self.scheduler.take_ended()
            if ended or self.scheduler.queue_changed:
                self._tell(ended)
            self._flush()
            return False
        flight = self._flights.popleft()
        result = self._runner.collect(flight.handle)
        progress = self.scheduler.commit(flight.plan, result)
        self._tell(progress + self.scheduler.take_ended(), flight, result.step_ms)
        return True

    def _launch(self) -> bool:
        before = self._clock()
        plan = self.scheduler.plan(before)
        if plan is None:
            return False
        self._emit(StepStarted(plan.step, plan.predicted_ms, [row.id for row in plan.rows]))
        self._flush()
        started = self._clock()
        handle = self._runner.launch(plan)
        self._flights.append(Flight(plan, handle, started, (started - before) * 1e3))
        return True

    def _tell(self, progress: list[Progress], flight: Flight | None = None, step_ms: float = 0.0) -> None:
        now = self._clock()
        self._emit(
            StepDone(
                step=flight.plan.step if flight else 0,
                progress=progress,
                pool=self.scheduler.pool_state(),
                running=len(self.scheduler.running),
                waiting=len(self.scheduler.waiting),
                started_at=flight.started_at if flight else now,
                step_ms=step_ms,
                plan_ms=flight.plan_ms if flight else 0.0,
                decode_rows=flight.plan.decode_rows if flight else 0,
                prefill_tokens=flight.plan.prefill_tokens if flight else 0,
                places=self._next_places(now),
                holdings=self._holdings(now),
            )
        )

    def _next_places(self, now: float) -> list[Place] | None:
        """The next so many places, where any has changed since they were told."""
        if self._places is None:
            if not self.scheduler.queue_changed or now - self._places_at < PLACES_EVERY_S:
                return None
            self._places = self.scheduler.places()
            self.scheduler.queue_changed, self._places_at = False, now
        found = list(islice(self._places, PLACES_A_STEP))
        if len(found) < PLACES_A_STEP:
            self._places = None
        return found

    def _holdings(self, now: float) -> Holdings | None:
        """Who holds which blocks, when somebody has come or gone, and now and then as they grow."""
        scheduler = self.scheduler
        wanted = scheduler.holders_changed or now - self._holdings_at >= HOLDINGS_EVERY_S
        if scheduler.running and not (wanted and now >= self._holdings_rest):
            return None
        found = scheduler.holdings()
        scheduler.holders_changed = False
        self._holdings_at, self._holdings_rest = now, now + HOLDINGS_REST * (self._clock() - now)
        return found
