"""What is going on in the whole box, as figures?

Hears every frame of the engine and every token of every turn, keeps short windows of them, and makes a `Snapshot` from
memory at any moment. Names and counters only: no text passes through here. Device figures are sampled once a second in
a thread; every other second a snapshot without its rows is kept for five minutes, so that who begins to look sees how
it came to this.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Iterator

import msgspec

import homebox
from homebox.daemon.devices import Devices
from homebox.daemon.pool_totals import PoolTotals
from homebox.daemon.streams import Phase
from homebox.daemon.supervisor import EngineState, Supervisor
from homebox.daemon.turnbook import TurnBook
from homebox.daemon.turns import Turn, TurnState
from homebox.wire import frames
from homebox.wire.events import Blocks, Device, PersonBlocks, Snapshot, StreamRow

log = logging.getLogger("homebox.monitor")

RATE_WINDOW_S = 10.0
KEPT_SAMPLES = 512
FRESH_S = 300.0  # percentiles are over the newest samples, none older than this
SAMPLE_EVERY_S = 1.0
HISTORY_EVERY_S = 2.0
HISTORY_S = 300.0
ENDED_S = 30.0  # so long a stream that has ended is still told of
KEPT_ENDED = 64


class Window:
    """Counts over the last seconds."""

    def __init__(self) -> None:
        self._counts: deque[tuple[float, int]] = deque()

    def add(self, count: int) -> None:
        self._counts.append((time.monotonic(), count))
        self._forget()

    def per_second(self) -> float:
        """Over the window, or over the time since its first count when that is shorter, but at least a second."""
        self._forget()
        if not self._counts:
            return 0.0
        span = min(RATE_WINDOW_S, max(1.0, time.monotonic() - self._counts[0][0]))
        return sum(count for _, count in self._counts) / span

    def _forget(self) -> None:
        while self._counts and self._counts[0][0] < time.monotonic() - RATE_WINDOW_S:
            self._counts.popleft()


class Samples:
    """The newest measurements, for percentiles."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, float]] = deque(maxlen=KEPT_SAMPLES)

    def add(self, value: float) -> None:
        self._samples.append((time.monotonic(), value))

    def percentile(self, share: float) -> float | None:
        """Nearest rank; None without samples."""
        since = time.monotonic() - FRESH_S
        values = sorted(value for at, value in self._samples if at >= since)
        return values[min(len(values) - 1, int(share * len(values)))] if values else None


class Monitor:
    def __init__(self) -> None:
        self._started_at = time.monotonic()
        self._out, self._in = Window(), Window()
        self._ttft_ms, self._gap_ms = Samples(), Samples()
        self._last: frames.StepDone | None = None
        self._holdings: frames.Holdings | None = None
        self._totals = PoolTotals()
        self._ended: deque[tuple[float, StreamRow]] = deque(maxlen=KEPT_ENDED)
        self._step_ms: float | None = None
        self.devices: tuple[Device, ...] = ()
        self._history: deque[bytes] = deque(maxlen=int(HISTORY_S / HISTORY_EVERY_S))
        self._history_at = -HISTORY_EVERY_S
        self._sampling: asyncio.Task[None] | None = None

    # ---- what it hears

    def frame(self, frame: frames.FromEngine) -> None:
        if isinstance(frame, frames.StepDone):
            self._last = frame
            self._holdings = frame.holdings or self._holdings
            self._totals.hear(frame.pool)
            if frame.step:
                self._step_ms = frame.step_ms
            if frame.prefill_tokens:
                self._in.add(frame.prefill_tokens)
            if made := sum(len(progress.tokens) for progress in frame.progress):
                self._out.add(made)
        elif isinstance(frame, frames.Loading | frames.Ready):
            # The pool of an engine that is gone says nothing.
            self._last = self._step_ms = self._holdings = None
            self._totals.begin_again()

    def token(self, turn: Turn, gap_ms: float | None) -> None:
        """A choice of `turn` got tokens, `gap_ms` after its last ones; None for the turn's first."""
        if gap_ms is not None:
            self._gap_ms.add(gap_ms)
        elif turn.ttft_ms is not None:
            self._ttft_ms.add(turn.ttft_ms)

    def ended(self, turn: Turn) -> None:
        """The engine has let go of this turn, however it ended."""
        row = msgspec.structs.replace(
            turn.row(""), state=turn.outcome, blocks=0, position=None, age_s=turn.timing.total_ms / 1000
        )
        self._ended.appendleft((time.monotonic(), row))

    def watch(self, supervisor: Supervisor, book: TurnBook) -> None:
        """Sample the devices and keep the history from now on."""
        self._sampling = asyncio.create_task(self._sample(supervisor, book), name="device-sampler")

    async def stop(self) -> None:
        if self._sampling:
            self._sampling.cancel()
            await asyncio.gather(self._sampling, return_exceptions=True)

    async def _sample(self, supervisor: Supervisor, book: TurnBook) -> None:
        devices = Devices()
        while True:
            device = supervisor.ready.device if supervisor.ready else None
            try:
                self.devices = await asyncio.to_thread(devices.sample, supervisor.pid, device)
            except Exception:  # a driver may fail in any way; the figures are then unknown, the daemon lives
                log.exception("the devices cannot be read")
                self.devices = ()
            self._remember(supervisor, book)
            await asyncio.sleep(SAMPLE_EVERY_S)

    def _remember(self, supervisor: Supervisor, book: TurnBook) -> None:
        now = time.monotonic()
        # The sampler's own time is not waited for again: every other turn of it is one.
        if now - self._history_at > HISTORY_EVERY_S - SAMPLE_EVERY_S / 2:
            self._history_at = now
            past = msgspec.structs.replace(
                self.snapshot(supervisor, book, ""), streams=(), ended=(), past=True
            )
            self._history.append(msgspec.json.encode(past) + b"\n")

    # ---- what it says

    @property
    def history(self) -> bytes:
        """The snapshots of the last five minutes as NDJSON, oldest first, without the rows of streams."""
        return b"".join(self._history)

    def snapshot(self, supervisor: Supervisor, book: TurnBook, person: str) -> Snapshot:
        """Everything at this moment, for `person`, whose own rows are marked."""
        hits, queries, preemptions, host_hits = self._totals.totals
        rows = tuple(turn.row(person) for turn in book.live)
        ready = _serving(supervisor)
        busy = sum(stream.phase in (Phase.PREFILL, Phase.DECODE) for stream in supervisor.streams)
        return Snapshot(
            at=time.time(),
            version=homebox.__version__,
            uptime_s=self.uptime_s,
            engine="draining" if book.draining else supervisor.state,
            engine_detail=detail(supervisor),
            engine_restarts=supervisor.restarts,
            model=book.manifest.name,
            max_context=book.limits.context,
            max_running=book.max_running,
            devices=self.devices,
            blocks=self.blocks(supervisor),
            prefix_hit_rate=hits / queries if queries else None,
            preemptions=preemptions,
            host_hit_tokens=host_hits,
            running=busy,
            waiting=len(supervisor.streams) - busy,
            tok_s_out=self._out.per_second(),
            tok_s_in=self._in.per_second(),
            step_ms=self._step_ms,
            ttft_p50_ms=self._ttft_ms.percentile(0.5),
            ttft_p95_ms=self._ttft_ms.percentile(0.95),
            gap_p50_ms=self._gap_ms.percentile(0.5),
            gap_p95_ms=self._gap_ms.percentile(0.95),
            streams=rows,
            ended=tuple(self._ended_rows(person)),
            oldest_wait_s=self._oldest_wait_s(book),
            weight_bytes=ready.weight_bytes if ready else None,
            kv_bytes=ready.kv_bytes if ready else None,
            weights=ready.weights if ready else "",
            kv=ready.kv if ready else "",
            attention=ready.attention if ready else "",
        )

    def _oldest_wait_s(self, book: TurnBook) -> float | None:
        now = time.monotonic()
        return max(
            (now - turn.created_at for turn in book.live if turn.state is TurnState.WAITING), default=None
        )

    def _ended_rows(self, person: str) -> Iterator[StreamRow]:
        now = time.monotonic()
        for at, row in self._ended:
            if now - at <= ENDED_S:
                yield msgspec.structs.replace(row, mine=row.person == person, ended_s=now - at)

    def blocks(self, supervisor: Supervisor) -> Blocks | None:
        """The block pool; None while there is none."""
        ready = _serving(supervisor)
        if ready is None:
            return None
        if self._last is None:
            return Blocks(
                total=ready.total_blocks,
                used=0,
                cached=0,
                free=ready.total_blocks,
                block_size=ready.block_size,
                host_total=ready.host_blocks,
            )
        pool = self._last.pool
        held = self._holdings
        return Blocks(
            total=pool.total,
            used=pool.used,
            cached=pool.cached,
            free=pool.free,
            block_size=ready.block_size,
            people=tuple(
                PersonBlocks(person=each.person, blocks=each.blocks, doubled=each.doubled)
                for each in (held.people if held else ())
            ),
            shared=held.shared if held else 0,
            host_total=pool.host_total,
            host_used=pool.host_used,
        )

    @property
    def uptime_s(self) -> float:
        return time.monotonic() - self._started_at


def _serving(supervisor: Supervisor) -> frames.Ready | None:
    """What the engine said of itself, while it is there."""
    return supervisor.ready if supervisor.state in (EngineState.READY, EngineState.PAUSING) else None


def detail(supervisor: Supervisor) -> str:
    """What a person should know of the engine's state: who paused it, what it loads, why it was lost, what it fell back
    to."""
    if supervisor.paused:
        return supervisor.paused.words()
    if supervisor.state is EngineState.UNLOADED:
        about = f", in about {supervisor.load_s:.0f} s" if supervisor.load_s else ""
        return f"asleep; the next request loads the model{about}"
    if supervisor.detail:
        return supervisor.detail
    if loading := supervisor.loading:
        return loading.stage + (f" {loading.done}/{loading.total}" if loading.total else "")
    return "; ".join(supervisor.ready.notes) if supervisor.ready else ""
