"""What do our own clients read about a turn? Its life told as events of `wire/events.py`, into the turn's log.

Text is gathered so that a stream has at most 20 text events a second, each with its absolute character offset. For
turns with one choice, which is what the native protocol has.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

from homebox.daemon.answer import Delta
from homebox.daemon.bell import to_beat
from homebox.daemon.eventlog import EventLog
from homebox.daemon.turns import Turn, Watcher
from homebox.wire import events
from homebox.wire.pause import Pause

TEXT_EVERY_S = 0.05
PREFILL_EVERY_S = 0.1
STATS_EVERY_S = 0.5


class Keeper(Protocol):
    """Who keeps an answer beyond its turn."""

    def grew(self, delta: Delta) -> None: ...

    def ended(self, tell: Callable[[], None]) -> None:
        """Calls `tell` once the answer is kept, or its reader was told why it is not."""
        ...


class Narrator(Watcher):
    """`keeper` gets every piece of the answer, and the end is told once it has all of it."""

    def __init__(self, turn: Turn, keeper: Keeper | None = None) -> None:
        self._turn, self._keeper = turn, keeper
        self._answer = turn.choices[0].answer
        self.log = EventLog(lambda: self._answer.text, think=lambda: self._answer.think[: self._thought])
        self._offset = len(self._answer.text)  # characters of the answer that are in the log
        self._thought = len(self._answer.think)  # and of its thoughts, whose events carry no offset
        if self._answer.tokens:  # it goes on: a reader begins with what is there
            self._answer.take()
            self.log.append(events.Resync(text=self._answer.text, think=self._answer.think))
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

    def notice(self, code: str, message: str) -> None:
        """Something that the reader should know; too late once the end was told."""
        if not self.log.closed:
            self.log.append(events.Notice(code=code, message=message))

    def grew(self) -> None:
        if self._timer is not None:
            return
        now = time.monotonic()
        if now - self._text_at >= TEXT_EVERY_S:
            self._flush()
        else:
            self._timer = asyncio.get_running_loop().call_later(to_beat(TEXT_EVERY_S), self._flush)

    def done(self) -> None:
        self._flush()
        self._stats()
        if self._keeper:
            self._keeper.ended(self._end)
        else:
            self._end()

    def _end(self) -> None:
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

    def _flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        delta = self._answer.take()
        if self._keeper and delta:
            self._keeper.grew(delta)
        if delta.think:
            self.log.append(events.Think(text=delta.think))
            self._thought += len(delta.think)
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
