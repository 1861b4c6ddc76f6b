"""Is there an engine, and what becomes of everybody's streams when there is none any more?

Starts the engine process, passes streams to it, and replaces it when it dies or stalls: each live stream is submitted
again as prompt + tokens so far, so a crash is a pause. Streams that were in the running step are suspects: they go in
first, one at a time and alone, so that a request which kills every engine takes nobody along; at its second death it
ends with an error. Knows no text, no HTTP and no limits; `turns` listens, `monitor` observes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

from homebox import errors
from homebox.daemon.engine_process import EngineProcess
from homebox.daemon.streams import Listener, Stream
from homebox.wire import frames

log = logging.getLogger("homebox.engine")

WORKER = (sys.executable, "-m", "homebox.engine.worker")
DEATHS_ALLOWED = 2
HOPELESS = ("usage_error",)  # a fault that another try with the same settings only repeats
LOOK_AGAIN_S = 0.5  # how long a silence that seems too long is given once more
NAMES_AHEAD = 8  # a place names at most so many persons before it


class EngineState(StrEnum):
    STARTING = "starting"
    LOADING = "loading"
    READY = "ready"
    RESTARTING = "restarting"
    FAILED = "failed"
    STOPPED = "stopped"


class Happened(StrEnum):
    PROGRESS = "progress"  # a Loading frame
    READY = "ready"
    DIED = "died"
    GAVE_UP = "gave up"  # it died too often before it was ready
    STOPPED = "stopped"


# A new engine after a death stays `restarting` until it is ready: what loads then is a loss, not a start.
_MOVES: dict[Happened, dict[EngineState, EngineState]] = {
    Happened.PROGRESS: {EngineState.STARTING: EngineState.LOADING},
    Happened.READY: {state: EngineState.READY for state in EngineState if state is not EngineState.STOPPED},
    Happened.DIED: {
        EngineState.STARTING: EngineState.RESTARTING,
        EngineState.LOADING: EngineState.RESTARTING,
        EngineState.READY: EngineState.RESTARTING,
    },
    Happened.GAVE_UP: {EngineState.RESTARTING: EngineState.FAILED},
    Happened.STOPPED: dict.fromkeys(EngineState, EngineState.STOPPED),
}


@dataclass(frozen=True)
class Patience:
    """How long is waited for what, in seconds."""

    stall_s: float = 10.0  # a live stream exists and no frame comes: this, or
    stall_factor: float = 20.0  # so many times what the running step was predicted to take
    loading_s: float = 120.0  # no frame while loading
    backoff_s: tuple[float, ...] = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
    healthy_s: float = 60.0  # ready for so long: the next death starts the back-off from its beginning
    tries: int = 5  # deaths before ready, in a row, until it is called failed
    retry_failed_s: float = 30.0
    stop_s: float = 5.0


def signal_name(number: int) -> str:
    """`SIGKILL`, or the number of one that has no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class Supervisor:
    """One engine, replaced as often as needed. Everything runs on the event loop that called `start`."""

    def __init__(
        self,
        start: frames.Start,
        *,
        command: Sequence[str] = WORKER,
        patience: Patience | None = None,
        observers: Sequence[Callable[[frames.FromEngine], None]] = (),
    ) -> None:
        self._start = start
        self._command = command
        self._patience = patience or Patience()
        self._observers = observers
        self._process: EngineProcess | None = None
        self._task: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        self._watch_timer: asyncio.TimerHandle | None = None
        self._heard_at = 0.0
        self._steps: dict[int, frames.StepStarted] = {}  # launched and not done
        self._fault: str | None = None
        self._late = False  # silence was too long once, and is looked at a second time
        self._streams: dict[str, Stream] = {}  # in the order in which they came
        self.state = EngineState.STARTING
        self.ready: frames.Ready | None = None
        self.loading: frames.Loading | None = None
        self.detail = ""  # the last loss, in words
        self.refused: errors.HomeboxError | None = None  # why no engine can ever start with these settings
        self.hopeless = asyncio.Event()  # set when `refused` is, and everybody has been told
        self.restarts = 0

    # ---- what others ask

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def streams(self) -> Sequence[Stream]:
        """Everything live, oldest first."""
        return tuple(self._streams.values())

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="engine-supervisor")

    async def stop(self, *, kill: bool = False) -> None:
        """End the engine, at once with `kill`; what is still live ends as cancelled."""
        self._stopping.set()
        loaded = self.state is EngineState.READY
        self._move(Happened.STOPPED)
        process = self._process
        if process:
            process.send(frames.Stop())
            # One that still loads has nothing to finish, and would hear us only when it has loaded.
            if kill or not loaded or not await process.left(self._patience.stop_s):
                process.kill()
        if self._task:
            await self._task
        if self._watch_timer:
            self._watch_timer.cancel()
        for stream in self.streams:
            self._end(stream, "cancelled", "daemon restarting")

    def submit(self, submit: frames.Submit, listener: Listener) -> Stream:
        """Take a request. It waits here while there is no engine. Raises Unavailable when there will be none soon."""
        if self.state in (EngineState.FAILED, EngineState.STOPPED):
            raise self.unavailable()
        stream = Stream(submit, listener)
        if not self._streams:
            self._heard_at = time.monotonic()  # silence is only a stall from now on
        self._streams[stream.id] = stream
        self._admit()
        if not stream.submitted:
            self._tell_places()
        self._watch()
        return stream

    def abort(self, stream: Stream) -> None:
        """Withdraw it; it ends when the engine has confirmed that its blocks are free, or now if no engine has it."""
        if stream.aborting or stream.id not in self._streams:
            return
        stream.abort()
        if stream.submitted and self._process:
            self._process.send(frames.Abort(stream.id))
            self._watch()
            return
        self._end(stream, "cancelled", "")
        self._admit()
        self._tell_places()

    def unavailable(self) -> errors.Unavailable:
        """Why nothing is answered now, and when to come again."""
        if self.state is EngineState.STOPPED:
            return errors.Unavailable("the daemon is stopping", retry_after_s=5)
        return errors.Unavailable(
            f"the engine does not start: {self.detail or 'it is gone'}",
            hint="homebox doctor says what to do; the next attempt follows by itself.",
            retry_after_s=self._patience.retry_failed_s,
        )

    # ---- one engine after the other

    async def _run(self) -> None:
        rapid = failures = 0
        while not self._stopping.is_set():
            try:
                ready_for = await self._life()
            except Exception as error:  # a defect here must not leave a house without an engine, and silent
                log.exception("the supervisor failed")
                if self._process:
                    self._process.kill()
                self._process, ready_for = None, None
                self._bury(f"the supervisor failed: {error}")
            if self._stopping.is_set():
                break
            self.restarts += 1
            failures = failures + 1 if ready_for is None else 0
            if ready_for is not None and ready_for >= self._patience.healthy_s:
                rapid = 0
            pause = self._patience.backoff_s[min(rapid, len(self._patience.backoff_s) - 1)]
            rapid += 1
            if failures >= self._patience.tries or self.refused:
                self._give_up(failures)
                pause = self._patience.retry_failed_s
            if self.refused:
                self.hopeless.set()
                return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause)

    async def _life(self) -> float | None:
        """One engine, from spawn to burial. Returns for how many seconds it was ready, None if it never was."""
        self._heard_at = time.monotonic()
        self._fault, ready_at = None, None
        try:
            process = self._process = await EngineProcess.spawn(self._command)
        except OSError as error:
            self._bury(f"it cannot be started: {error}")
            return None
        if self._stopping.is_set():
            process.kill()
        process.send(self._start)
        self._watch()
        async for frame in process.frames():
            self._heard_at = time.monotonic()
            if isinstance(frame, frames.Ready):
                ready_at = self._heard_at
            try:
                self._take(frame)
            except Exception:  # a defect of ours is not the engine's end, and must not become everybody's
                log.exception("a frame could not be handled: %s", type(frame).__name__)
        await process.left(0.5)  # so that the status is its own, not our kill
        status = await process.gone()
        self._process = None
        if not self._stopping.is_set():
            said = self._fault or (process.last_words[-1] if process.last_words else "")
            left = f"killed by {signal_name(-status)}" if status < 0 else f"exit status {status}"
            self._bury(f"{left}: {said}" if said else left)
        return None if ready_at is None else time.monotonic() - ready_at

    def _give_up(self, failures: int) -> None:
        self._move(Happened.GAVE_UP)
        log.error("the engine ended %d times before it was ready: %s", failures, self.detail)
        for stream in self.streams:
            self._end(stream, "error", "", self.unavailable())

    # ---- frames

    def _take(self, frame: frames.FromEngine) -> None:
        match frame:
            case frames.Loading():
                self.loading = frame
                self._move(Happened.PROGRESS)
            case frames.Ready():
                self.ready, self.loading, self.detail = frame, None, ""
                self._move(Happened.READY)
                self._watch()
                log.info(
                    "engine %d ready on %s: %d blocks of %d",
                    frame.pid,
                    frame.device,
                    frame.total_blocks,
                    frame.block_size,
                )
                self._admit()
            case frames.StepStarted():
                self._steps[frame.step] = frame
                for name in frame.requests:
                    if stream := self._streams.get(name):
                        self._tell(stream, stream.in_step)
            case frames.StepDone():
                self._step_done(frame)
            case frames.Refused():
                if stream := self._streams.get(frame.id):
                    self._end(
                        stream, "error", "", errors.from_dict({"code": frame.code, "message": frame.message})
                    )
                    self._admit()
            case frames.Fault():
                self._fault = frame.message
                if self.ready is None and frame.code in HOPELESS:
                    self.refused = errors.from_dict({"code": frame.code, "message": frame.message})
        for observe in self._observers:
            observe(frame)

    def _step_done(self, done: frames.StepDone) -> None:
        self._steps.pop(done.step, None)
        for progress in done.progress:
            stream = self._streams.get(progress.id)
            if stream is None:
                continue
            self._tell(stream, partial(stream.progress, progress))
            if progress.finish == "error":
                self._end(
                    stream,
                    "error",
                    progress.detail,
                    errors.EngineFailed(progress.detail or "the model failed"),
                )
            elif progress.finish:
                self._end(stream, progress.finish, progress.detail)
        places = done.places or ()
        for place in places:
            if stream := self._streams.get(place.id):
                self._tell(stream, partial(stream.place, place.position, len(places), place.ahead))
        if done.progress:
            self._admit()

    def _tell(self, stream: Stream, what: Callable[[], None]) -> None:
        """A defect in what listens to one stream ends that stream, and nobody else's."""
        try:
            what()
        except Exception:
            log.exception("stream %s cannot be delivered", stream.id)
            self._end(stream, "error", "", errors.EngineFailed("the answer could not be turned into text"))
            if self._process:
                self._process.send(frames.Abort(stream.id))

    def _admit(self) -> None:
        """Submit what may go in now: a lone suspect if there is one, else everybody who waits here."""
        if self.state is not EngineState.READY or self._process is None:
            return
        suspects = [stream for stream in self._streams.values() if stream.suspect]
        if suspects:
            chosen = [] if any(stream.submitted for stream in suspects) else suspects[:1]
        else:
            chosen = [stream for stream in self._streams.values() if not stream.submitted]
        for stream in chosen:
            stream.submitted = True
            self._process.send(stream.again(exclusive=stream.suspect))

    def _tell_places(self) -> None:
        """The places of those who wait in the daemon: the engine knows only of those whom it has."""
        held = [stream for stream in self._streams.values() if not stream.submitted]
        ahead: dict[str, None] = {}  # each once, in order
        for index, stream in enumerate(held):
            names = tuple(list(ahead)[:NAMES_AHEAD])
            self._tell(stream, partial(stream.place, index + 1, len(held), names))
            ahead.setdefault(stream.submit.person)

    # ---- ends

    def _end(
        self,
        stream: Stream,
        reason: frames.FinishReason,
        detail: str,
        error: errors.HomeboxError | None = None,
    ) -> None:
        if self._streams.pop(stream.id, None) is None:
            return
        try:
            stream.listener.ended(reason, detail, error)
        except Exception:
            log.exception("the end of stream %s cannot be delivered", stream.id)

    def _bury(self, why: str) -> None:
        """The engine is gone: count the deaths, end what may not go on, keep the rest for the next one."""
        had_been_ready = self.state is EngineState.READY
        self.detail = why
        self.loading = None
        self._move(Happened.DIED)
        log.warning("the engine is gone: %s; %d live", why, len(self._streams))
        blamed, suspected = self._blame(had_been_ready)
        self._steps.clear()
        for stream in self.streams:
            if stream.aborting:
                self._end(stream, "cancelled", "")
                continue
            if stream.id in blamed:
                stream.died_with()
            if stream.id in suspected:
                stream.suspect = True
            if stream.deaths >= DEATHS_ALLOWED:
                failed = errors.EngineFailed(
                    f"the engine died {stream.deaths} times while it worked on this request",
                    hint="Other requests go on. A shorter or different prompt may work.",
                )
                self._end(stream, "error", why, failed)
            elif stream.submitted:
                self._tell(stream, stream.lose)
        self._tell_places()

    def _blame(self, had_been_ready: bool) -> tuple[set[str], set[str]]:
        """For the death of an engine: against whom it counts, and who is tried alone from now on.

        Everybody in a running step counts. Between steps (while planning, or killed from outside) it counts against
        the suspect that was in, or the only one there was; else anybody may be the cause, and all are tried alone."""
        in_step = {name for step in self._steps.values() for name in step.requests}
        if in_step or not had_been_ready:
            return in_step, in_step
        held = [stream for stream in self._streams.values() if stream.submitted]
        certain = [stream for stream in held if stream.suspect] or (held if len(held) == 1 else [])
        names = {stream.id for stream in certain}
        return names, names or {stream.id for stream in held}

    def _move(self, what: Happened) -> None:
        before, self.state = self.state, _MOVES[what].get(self.state, self.state)
        if before is not self.state:
            log.info("engine: %s, now %s", what, self.state)

    # ---- silence

    def _watch(self) -> None:
        """Look again when the silence could have become too long; called whenever that moment may come earlier."""
        if self._watch_timer:
            self._watch_timer.cancel()
        left = self._silence_left()
        self._watch_timer = (
            None if left is None else asyncio.get_running_loop().call_later(max(left, 0.0), self._look)
        )

    def _look(self) -> None:
        left = self._silence_left()
        if left is None or left > 0 or self._process is None:
            self._late = False
            self._watch()
        elif not self._late:
            # If it was this loop that stood still (a stopped process, a swapped-out machine), what the engine said
            # meanwhile is read before we look again.
            self._late = True
            self._watch_timer = asyncio.get_running_loop().call_later(LOOK_AGAIN_S, self._look)
        else:
            self._late = False
            self._fault = f"it stalled: silent for {time.monotonic() - self._heard_at:.1f} s, killed"
            self._process.kill()

    def _silence_left(self) -> float | None:
        """Seconds until the engine counts as stalled; None while its silence means nothing."""
        now = time.monotonic()
        if self._process is None:
            return None
        if self.state is not EngineState.READY:
            return self._heard_at + self._patience.loading_s - now
        if not self._streams:
            return None
        predicted_s = max((step.predicted_ms for step in self._steps.values()), default=0.0) / 1000
        limit = max(self._patience.stall_s, self._patience.stall_factor * predicted_s)
        # An abort that is never confirmed is a stall as well, however much is said about others.
        since = min([self._heard_at, *(s.aborted_at for s in self._streams.values() if s.aborted_at)])
        return since + limit - now
