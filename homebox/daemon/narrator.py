"""What do our own clients read about a turn? Its life told as events of `wire/events.py`, into the turn's log.

Text is gathered so that a stream has at most 20 text events a second, each with its absolute character offset. For
turns with one choice, which is what the native protocol has.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from homebox.daemon.eventlog import EventLog
from homebox.daemon.turns import Turn, Watcher
from homebox.wire import events
from homebox.wire.pause import Pause

TEXT_EVERY_S = 0.05
PREFILL_EVERY_S = 0.1
STATS_EVERY_S = 0.5


class Narrator(Watcher):
    """`on_done` hears the whole answer when the turn has ended, however it did."""

    def __init__(self, turn: Turn, on_done: Callable[[str], None] | None = None) -> None:
        self._turn, self._on_done = turn, on_done
        self._answer = turn.choices[0].answer
        self.log = EventLog(lambda: self._answer.text)
        self._offset = 0  # characters of the answer that are in the log
        self._text_at = self._stats_at = self._prefill_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        turn.watcher = self

    def queued(self, position: int, waiting: int, ahead: tuple[str, ...]) -> None:
        eta_s = self._turn.eta_s(position)
        self.log.append(events.Queued(position=position, waiting=waiting, ahead=ahead, eta_s=eta_s))

    def started(self) -> None:
        self.log.append(events.Started(queue_ms=self._turn.timing.queue_ms))

    def prefilled(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self._prefill_at >= PREFILL_EVERY_S:
            self._prefill_at = now
            self.log.append(events.Prefill(done=done, total=total))

    def lost(self) -> None:
        self._flush()
        self.log.append(events.EngineLost(safe_tokens=self._turn.tokens_out))

    def paused(self, pause: Pause) -> None:
        self._flush()
        self.log.append(events.Paused(pause=pause, safe_tokens=self._turn.tokens_out))

    def going_down(self, grace_s: float) -> None:
        self.log.append(events.GoingDown(grace_s=grace_s))

    def grew(self) -> None:
        if self._timer is not None:
            return
        wait = self._text_at + TEXT_EVERY_S - time.monotonic()
        if wait <= 0:
            self._flush()
        else:
            self._timer = asyncio.get_running_loop().call_later(wait, self._flush)

    def done(self) -> None:
        self._flush()
        self._stats()
        turn, choice = self._turn, self._turn.choices[0]
        self.log.append(
            events.Finished(
                reason=choice.finish or "error",
                usage=turn.usage,
                timing=turn.timing,
                detail=choice.detail,
                error=choice.error.as_dict() if choice.error else None,
            )
        )
        self.log.close()
        if self._on_done:
            self._on_done(self._answer.text)

    def _flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        delta = self._answer.take()
        if delta.think:
            self.log.append(events.Think(text=delta.think))
        if delta.text:
            self.log.append(events.Text(text=delta.text, offset=self._offset))
            self._offset += len(delta.text)
        self._text_at = time.monotonic()
        if not self.log.closed and self._text_at - self._stats_at >= STATS_EVERY_S:
            self._stats()

    def _stats(self) -> None:
        turn = self._turn
        self._stats_at = time.monotonic()
        self.log.append(
            events.Stats(
                tokens=turn.tokens_out,
                tok_s=turn.tok_s,
                ttft_ms=turn.ttft_ms,
                ctx_used=turn.tokens_in + turn.tokens_out,
                ctx_max=turn.context,
            )
        )
