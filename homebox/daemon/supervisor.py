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
from functools import partial

from homebox import errors
from homebox.daemon.blame import blame
from homebox.daemon.engine_process import EngineProcess
from homebox.daemon.engine_state import EngineState, Happened, after
from homebox.daemon.patience import Patience, Retries
from homebox.daemon.silence import Silence, left_loading, left_working
from homebox.daemon.streams import Listener, Stream
from homebox.wire import frames

log = logging.getLogger("homebox.engine")

WORKER = (sys.executable, "-m", "homebox.engine.worker")
DEATHS_ALLOWED = 2
HOPELESS = ("usage_error",)  # a fault that another try with the same settings only repeats
NAMES_AHEAD = 8  # a place names at most so many persons before it


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
        self._silence = Silence(self._silence_left, self._stalled)
        self._steps: dict[int, frames.StepStarted] = {}  # launched and not done
        self._fault: str | None = None
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
        self._silence.stop()
        for stream in self.streams:
            self._end(stream, "cancelled", "the daemon is stopping")

    def submit(self, submit: frames.Submit, listener: Listener) -> Stream:
        """Take a request. It waits here while there is no engine. Raises Unavailable when there will be none soon."""
        if self.state in (EngineState.FAILED, EngineState.STOPPED):
            raise self.unavailable()
        stream = Stream(submit, listener)
        if not self._streams:
            self._silence.heard()  # silence is only a stall from now on
        self._streams[stream.id] = stream
        self._admit()
        if not stream.submitted:
            self._tell_places()
        self._silence.watch()
        return stream

    def abort(self, stream: Stream) -> None:
        """Withdraw it; it ends when the engine has confirmed that its blocks are free, or now if no engine has it."""
        if stream.aborting or stream.id not in self._streams:
            return
        stream.abort()
        if stream.submitted and self._process:
            self._process.send(frames.Abort(stream.id))
            self._silence.watch()
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
        retries = Retries(self._patience)
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
            pause_s = retries.ended(ready_for)
            if retries.hopeless or self.refused:
                self._give_up(retries.failures)
            if self.refused:
                self.hopeless.set()
                return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause_s)

    async def _life(self) -> float | None:
        """One engine, from spawn to burial. Returns for how many seconds it was ready, None if it never was."""
        self._silence.heard()
        self._fault, ready_at = None, None
        try:
            process = self._process = await EngineProcess.spawn(self._command)
        except OSError as error:
            self._bury(f"it cannot be started: {error}")
            return None
        if self._stopping.is_set():
            process.kill()
        process.send(self._start)
        self._silence.watch()
        async for frame in process.frames():
            heard_at = self._silence.heard()
            if isinstance(frame, frames.Ready):
                ready_at = heard_at
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
                self._silence.watch()
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
        held = [stream for stream in self._streams.values() if stream.submitted]
        blamed, suspected = blame(self._steps.values(), held) if had_been_ready else (set(), set())
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

    def _move(self, what: Happened) -> None:
        before, self.state = self.state, after(self.state, what)
        if before is not self.state:
            log.info("engine: %s, now %s", what, self.state)

    # ---- silence

    def _silence_left(self) -> float | None:
        """Seconds until the engine counts as stalled; None while its silence means nothing."""
        if self._process is None:
            return None
        if self.state is not EngineState.READY:
            return left_loading(self._patience, self._silence.heard_at)
        if not self._streams:
            return None
        return left_working(self._patience, self._silence.heard_at, self._steps.values(), self.streams)

    def _stalled(self, silent_s: float) -> None:
        if self._process:
            self._fault = f"it stalled: silent for {silent_s:.1f} s, killed"
            self._process.kill()
