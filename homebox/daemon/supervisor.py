"""Is there an engine, and what becomes of everybody's streams when there is none any more?

Starts the engine process, passes streams to it, and replaces it when it dies or stalls: each live stream is submitted
again as prompt + tokens so far, so a crash is a pause. Streams that were in the running step are suspects: they go in
first, one at a time and alone, so that a request which kills every engine takes nobody along; at its second death it
ends with an error. A pause and an idle box have no engine process at all: what was not finished is held, and goes on in
the same way. Knows no text, no HTTP and no limits; `turns` listens, `monitor` observes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import NamedTuple

import msgspec

from homebox import errors
from homebox.daemon.engine_process import WORKER, EngineProcess
from homebox.daemon.engine_state import CLOSED, DORMANT, EngineState, Happened, after
from homebox.daemon.live import Live
from homebox.daemon.patience import Patience, Retries
from homebox.daemon.silence import Silence, left_loading, left_working
from homebox.daemon.streams import Listener, Phase, Stream
from homebox.wire import frames
from homebox.wire.pause import Pause

log = logging.getLogger("homebox.engine")

GPU = "cuda"  # how the name of a device begins that may be lost, and whose memory does not survive a suspend
HOPELESS = ("usage_error",)  # a fault that another try with the same settings only repeats
PAUSED_RETRY_S = 60.0  # when to come again, where nobody knows how long a pause lasts


def signal_name(number: int) -> str:
    """`SIGKILL`, or the number of one that has no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _last_words(process: EngineProcess, status: int, fault: errors.HomeboxError | None) -> str:
    """Why an engine is gone, from what it said and how it left."""
    if isinstance(fault, errors.DeviceMissing):
        return fault.message
    said = fault.message if fault else (process.last_words[-1] if process.last_words else "")
    left = f"killed by {signal_name(-status)}" if status < 0 else f"exit status {status}"
    return f"{left}: {said}" if said else left


class End(NamedTuple):
    """How one engine's life ended."""

    asked_for: bool
    ready_for_s: float | None  # None if it never was


class Supervisor:
    """One engine, replaced as often as needed. Everything runs on the event loop that called `start`."""

    def __init__(
        self,
        start: frames.Start,
        *,
        command: Sequence[str] = WORKER,
        early: EngineProcess | None = None,
        patience: Patience | None = None,
        observers: Sequence[Callable[[frames.FromEngine], None]] = (),
    ) -> None:
        """`early`: the first engine's process, if it was started before us."""
        self._start = start
        self._early = early
        self._command = command
        self._patience = patience or Patience()
        self._observers = observers
        self._process: EngineProcess | None = None
        self._task: asyncio.Task[None] | None = None
        self._nudge = asyncio.Event()  # the state was changed by somebody else than the loop of lives
        self._drained = asyncio.Event()  # a pause has left `pausing`
        self._absent = asyncio.Event()  # no process is there, none is being started
        self._absent.set()
        self._idle_since = 0.0
        self._silence = Silence(self._silence_left, self._stalled)
        self._steps: dict[int, frames.StepStarted] = {}  # launched and not done
        self._fault: errors.HomeboxError | None = None
        self._live = Live(broken=self._let_go, ended=self._one_ended)
        self.state = EngineState.STARTING
        self.ready: frames.Ready | None = None
        self.loading: frames.Loading | None = None
        self.detail = ""  # the last loss, in words
        self.paused: Pause | None = None  # while pausing or paused
        self.load_s: float | None = None  # how long the last load took
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
        return tuple(self._live)

    @property
    def _no_device(self) -> bool:
        return isinstance(self._fault, errors.DeviceMissing)

    @property
    def idle_s(self) -> float:
        """For how long a ready engine has had nothing to do; 0 for any other."""
        if self.state is not EngineState.READY or self._live:
            return 0.0
        return time.monotonic() - self._idle_since

    def start(self, paused: Pause | None = None) -> None:
        """Begin with an engine, or with a pause that was there before."""
        if paused:
            self.paused = paused
            self._move(Happened.PAUSED)
        self._task = asyncio.create_task(self._run(), name="engine-supervisor")

    async def stop(self, *, kill: bool = False) -> None:
        """End the engine, at once with `kill`; what is still live ends as cancelled."""
        self._move(Happened.STOPPED)
        self._nudge.set()
        if self._process:
            await self._process.dismiss(0.0 if kill else self._patience.stop_s)
        if self._task:
            await self._task
        self._silence.stop()
        for stream in self._live:
            self._live.end(stream, "cancelled", "daemon restarting")

    def submit(self, submit: frames.Submit, listener: Listener) -> Stream:
        """Take a request. It waits here while there is no engine. Raises Unavailable when there will be none soon."""
        if self.state in CLOSED:
            raise self.unavailable()
        if self.state is EngineState.UNLOADED:
            self.resume()
        stream = Stream(submit, listener)
        # The last place, until the engine says which one it is.
        stream.position = 1 + sum(other.phase is Phase.WAITING for other in self._live)
        if not self._live:
            self._silence.heard()  # silence is only a stall from now on
        self._live.add(stream)
        self._admit()
        if not stream.submitted:
            self._live.tell_places()
        self._silence.watch()
        return stream

    def abort(self, stream: Stream) -> None:
        """Withdraw it; it ends when the engine has confirmed that its blocks are free, or now if no engine has it."""
        if stream.aborting or stream not in self._live:
            return
        stream.abort()
        if stream.submitted and self._process:
            self._process.send(frames.Abort(stream.id))
            self._silence.watch()
            return
        self._live.end(stream, "cancelled")
        self._admit()
        self._live.tell_places()

    def unavailable(self) -> errors.Unavailable:
        """Why nothing is answered now, and when to come again."""
        if self.state is EngineState.STOPPED:
            return errors.Unavailable("the daemon is stopping", retry_after_s=5)
        if self.paused:
            left_s = self.paused.left_s()
            return errors.Paused(
                f"the box is paused {self.paused.words()}",
                hint="homebox resume ends the pause.",
                retry_after_s=PAUSED_RETRY_S if left_s is None else left_s,
            )
        return errors.Unavailable(
            f"the engine does not start: {self.detail or 'it is gone'}",
            hint="homebox doctor says what to do; the next attempt follows by itself.",
            retry_after_s=self._patience.retry_failed_s,
        )

    # ---- an engine that somebody wants to be away

    def pause(self, pause: Pause, within_s: float) -> Coroutine[None, None, None]:
        """Take nothing more, let what runs finish for so long, then end the process; the rest is held until `resume`.
        What it returns ends when no process is there, or when somebody has resumed or paused again meanwhile. Each
        call has a `Pause` of its own."""
        self._move(Happened.PAUSED)
        self.paused = pause
        self._nudge.set()
        if self._absent.is_set():  # else they are told when the process is gone
            self._live.engine_left(pause)
        return self._make_way(pause, within_s)

    async def _make_way(self, pause: Pause, within_s: float) -> None:
        if self.state is EngineState.PAUSING and self._live.submitted:
            self._drained.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._drained.wait(), within_s)
        if self.paused is not pause or self.state is EngineState.STOPPED:
            return
        self._move(Happened.DRAINED)
        await self._leave()

    async def unload(self) -> None:
        """End the process of an engine that nobody uses; the next request starts one. Returns when it is gone."""
        if self._live:
            return
        self._move(Happened.IDLE)
        if self.state is EngineState.UNLOADED:
            await self._leave()

    def resume(self) -> None:
        """There should be an engine: ends a pause, or an idle time."""
        self.paused = None
        self._move(Happened.WANTED)
        self._nudge.set()
        self._admit()

    async def replace(self, why: str) -> None:
        """The engine is there and cannot be trusted any more. Live streams go on with another; nobody is to blame."""
        if self._process is None:
            return
        self.detail = why
        self._move(Happened.DIED)
        await self._process.dismiss(0.0)

    def wake(self) -> None:
        """Silence counts from now on: the machine, or this process, has slept."""
        self._silence.heard()
        for stream in self._live:
            if stream.aborting:
                stream.abort()
        self._silence.watch()

    async def _leave(self) -> None:
        if self._process:
            await self._process.dismiss(self._patience.stop_s)
        await self._absent.wait()

    # ---- one engine after the other

    async def _run(self) -> None:
        retries = Retries(self._patience)
        while self.state is not EngineState.STOPPED:
            if self.state in DORMANT and self._early:  # a box that was paused has no engine's process
                early, self._early = self._early, None
                await early.gone()
                continue  # somebody may have resumed meanwhile
            if self.state in DORMANT:
                await self._rest(None)
                continue
            end = await self._one_life()
            if self.state is EngineState.STOPPED:
                return
            if self._no_device:
                await self._rest(self._patience.device_s)  # it may come; no try is one too many
                continue
            if end.asked_for:
                self.restarts += self.state is EngineState.RESTARTING
                continue
            self.restarts += 1
            pause_s = retries.ended(end.ready_for_s)
            if retries.hopeless or self.refused:
                self._give_up(retries.failures)
            if self.refused:
                self.hopeless.set()
                return
            await self._rest(pause_s)

    async def _rest(self, for_s: float | None) -> None:
        """For so long, or until the state is changed by somebody else."""
        self._nudge.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._nudge.wait(), for_s)

    async def _one_life(self) -> End:
        self._absent.clear()
        try:
            return await self._life()
        except Exception as error:  # a defect here must not leave a house without an engine, and silent
            log.exception("the supervisor failed")
            if self._process:
                self._process.kill()
            self._process = None
            self._bury(f"the supervisor failed: {error}", was_ready=False)
            return End(False, None)
        finally:
            self._absent.set()

    async def _life(self) -> End:
        """One engine, from spawn to burial."""
        self._silence.heard()
        self._fault = None
        try:
            process = self._process = self._early or await EngineProcess.spawn(self._command)
            self._early = None
        except OSError as error:
            self._bury(f"it cannot be started: {error}", was_ready=False)
            return End(False, None)
        if self.state in DORMANT or self.state is EngineState.STOPPED:
            await process.dismiss(0.0)
        process.send(self._start)
        self._silence.watch()
        async for frame in process.frames():
            heard_at = self._silence.heard()
            if process.dismissed and isinstance(frame, frames.Loading | frames.Ready):
                continue  # the state is not about this engine any more
            if isinstance(frame, frames.Ready):
                if self._start.device == "auto" and frame.device.startswith(GPU):
                    # Whoever had a GPU waits for it if it is lost: nobody's answer goes on at a tenth of the speed unasked.
                    self._start = msgspec.structs.replace(self._start, device=frame.device.split()[0])
                process.ready_at, self.load_s = heard_at, heard_at - process.started_at
            try:
                self._take(frame)
            except Exception:  # a defect of ours is not the engine's end, and must not become everybody's
                log.exception("a frame could not be handled: %s", type(frame).__name__)
        await process.left(0.5)  # so that the status is its own, not our kill
        status = await process.gone()
        self._process = None
        ready_for_s = None if process.ready_at is None else time.monotonic() - process.ready_at
        if self.state is not EngineState.STOPPED:
            if process.dismissed:
                self.loading = None
                self._steps.clear()
                self._live.engine_left(self.paused)
            else:
                self._bury(_last_words(process, status, self._fault), was_ready=ready_for_s is not None)
        return End(process.dismissed, ready_for_s)

    def _give_up(self, failures: int) -> None:
        self._move(Happened.GAVE_UP)
        if self.state is not EngineState.FAILED:  # somebody has paused it meanwhile
            return
        log.error("the engine ended %d times before it was ready: %s", failures, self.detail)
        for stream in self._live:
            self._live.end(stream, "error", "", self.unavailable())

    # ---- frames

    def _take(self, frame: frames.FromEngine) -> None:
        match frame:
            case frames.Loading():
                self.loading = frame
                self._move(Happened.PROGRESS)
            case frames.Ready():
                self.ready, self.loading, self.detail = frame, None, ""
                self._move(Happened.READY)
                self._idle_since = time.monotonic()
                self._silence.watch()
                log.info(
                    "engine %d ready on %s after %.1f s: %d blocks of %d",
                    frame.pid,
                    frame.device,
                    self.load_s or 0.0,
                    frame.total_blocks,
                    frame.block_size,
                )
                self._admit()
            case frames.StepStarted():
                self._steps[frame.step] = frame
                for name in frame.requests:
                    if (stream := self._live.get(name)) and stream.phase is not Phase.DECODE:  # else it knows
                        self._live.tell(stream, stream.in_step)
            case frames.StepDone():
                self._step_done(frame)
            case frames.Refused():
                if stream := self._live.get(frame.id):
                    self._live.end(
                        stream, "error", "", errors.from_dict({"code": frame.code, "message": frame.message})
                    )
                    self._admit()
            case frames.Fault():
                self._fault = errors.from_dict({"code": frame.code, "message": frame.message})
                if self.ready is None and frame.code in HOPELESS:
                    self.refused = self._fault
        for observe in self._observers:
            observe(frame)

    def _step_done(self, done: frames.StepDone) -> None:
        self._steps.pop(done.step, None)
        for progress in done.progress:
            stream = self._live.get(progress.id)
            if stream is None:
                continue
            self._live.tell(stream, stream.progress, progress)
            if progress.finish == "error":
                self._live.end(
                    stream,
                    "error",
                    progress.detail,
                    errors.EngineFailed(progress.detail or "the model failed"),
                )
            elif progress.finish:
                self._live.end(stream, progress.finish, progress.detail)
        for place in done.places or ():
            if stream := self._live.get(place.id):
                # A long line is told a while after it was counted.
                waiting = max(done.waiting, place.position)
                self._live.tell(stream, stream.place, place.position, waiting, place.ahead)
        if done.progress:
            self._admit()

    def _let_go(self, stream: Stream) -> None:
        if self._process:
            self._process.send(frames.Abort(stream.id))

    def _one_ended(self) -> None:
        self._idle_since = time.monotonic()
        if self.state is EngineState.PAUSING and not self._live.submitted:
            self._move(Happened.DRAINED)

    def _admit(self) -> None:
        if self.state is not EngineState.READY or self._process is None:
            return
        for stream in self._live.next_in():
            stream.submitted = True
            self._process.send(stream.again(exclusive=stream.suspect))

    # ---- ends

    def _bury(self, why: str, *, was_ready: bool) -> None:
        """The engine is gone, and nobody asked for it."""
        self.detail = why
        self.loading = None
        before = self.state
        self._move(Happened.NO_DEVICE if self._no_device else Happened.DIED)
        if self.state is not before or not self._no_device:  # hours without a device are told once
            log.warning("the engine is gone: %s; %d live", why, len(self._live))
        self._live.engine_died(why, self._steps.values(), was_ready=was_ready, pause=self.paused)
        self._steps.clear()

    def _move(self, what: Happened) -> None:
        before, self.state = self.state, after(self.state, what)
        if before is not self.state:
            log.info("engine: %s, now %s", what, self.state)
            if before is EngineState.PAUSING:
                self._drained.set()

    # ---- silence

    def _silence_left(self) -> float | None:
        """Seconds until the engine counts as stalled; None while its silence means nothing."""
        if self._process is None or self._process.dismissed:
            return None
        if self._process.ready_at is None:
            return left_loading(self._patience, self._silence.heard_at)
        if not self._live:
            return None
        return left_working(self._patience, self._silence.heard_at, self._steps.values(), self._live)

    def _stalled(self, silent_s: float) -> None:
        if self._process:
            self._fault = errors.EngineFailed(f"it stalled: silent for {silent_s:.1f} s, killed")
            self._process.kill()
