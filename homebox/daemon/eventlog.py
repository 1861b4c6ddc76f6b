"""What has been said about a turn, and what has this reader not seen yet?

The log keeps each event as the line that goes out, numbered from 1; any number of readers follow it at their own
pace, from any number on, and none of them ever holds the turn. A reader who falls too far behind, or who asks for
lines that were let go, gets one `resync` with the whole answer instead. Knows no sockets and no engine.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import islice

import msgspec

from homebox.daemon.bell import Bell
from homebox.wire import events

BEHIND_LIMIT_BYTES = 256 * 1024
LOG_LIMIT_BYTES = 1024 * 1024
HEARTBEAT_S = 5.0


class EventLog:
    """`text` and `think` give the answer from its start, for readers who need it whole."""

    def __init__(
        self,
        text: Callable[[], str],
        limit_bytes: int = LOG_LIMIT_BYTES,
        *,
        think: Callable[[], str] = lambda: "",
    ) -> None:
        self._text, self._think = text, think
        self._limit_bytes = limit_bytes
        self._lines: deque[tuple[int, bytes]] = deque()
        self._waiting: set[Bell] = set()
        self.kept_bytes = 0
        self.written_bytes = 0  # ever
        self.last_seq = 0
        self.closed = False

    @property
    def first_seq(self) -> int:
        """The oldest line still here."""
        return self._lines[0][0] if self._lines else self.last_seq + 1

    def append(self, event: events.Event) -> None:
        self.last_seq += 1
        line = events.encode(msgspec.structs.replace(event, seq=self.last_seq)) + b"\n"
        self._lines.append((self.last_seq, line))
        self.kept_bytes += len(line)
        self.written_bytes += len(line)
        while self.kept_bytes > self._limit_bytes and len(self._lines) > 1:
            self.kept_bytes -= len(self._lines.popleft()[1])
        self._wake()

    def close(self) -> None:
        """Nothing follows."""
        self.closed = True
        self._wake()

    def _wake(self) -> None:
        while self._waiting:
            self._waiting.pop().ring()

    def read(self, after: int = 0) -> Reader:
        """A reader of everything after event number `after`."""
        return Reader(self, after)

    def since(self, seq: int) -> list[bytes]:
        """The lines after number `seq` that are still here."""
        newest = min(self.last_seq - seq, len(self._lines))
        lines = [line for _, line in islice(reversed(self._lines), newest)]
        lines.reverse()
        return lines

    def resync(self) -> bytes:
        """What stands for everything so far; the line that says how it ended is never replaced."""
        last = self.since(self.last_seq - 1)[0] if self.closed else b""
        standing_for = self.last_seq - 1 if self.closed else self.last_seq
        whole = events.Resync(seq=standing_for, text=self._text(), think=self._think())
        return events.encode(whole) + b"\n" + last

    async def grow(self, beyond_seq: int, within_s: float, bell: Bell) -> bool:
        """True once there is a line after `beyond_seq` or the log is closed, False after `within_s` seconds. `bell` is
        the caller's own."""
        while self.last_seq == beyond_seq and not self.closed:
            self._waiting.add(bell)
            if not await bell.rung(within_s):
                return False
        return True


class Reader:
    """One reader's place in a log."""

    def __init__(self, log: EventLog, after: int) -> None:
        self._log = log
        self._bell = Bell()
        self._seq = min(max(after, 0), log.last_seq)
        backlog = sum(len(line) for line in log.since(self._seq))
        self._sent_bytes = log.written_bytes - backlog
        self._allowed_bytes = backlog + BEHIND_LIMIT_BYTES  # what was there when it came is not slowness

    def take(self) -> bytes:
        """All lines that this reader has not had, or a resync in their place; empty when there is nothing new."""
        log = self._log
        if self._seq == log.last_seq:
            return b""
        missed = self._seq + 1 < log.first_seq
        if missed or log.written_bytes - self._sent_bytes > self._allowed_bytes:
            lines = log.resync()
        else:
            lines = b"".join(log.since(self._seq))
        self._seq, self._sent_bytes = log.last_seq, log.written_bytes
        self._allowed_bytes = BEHIND_LIMIT_BYTES
        return lines

    @property
    def finished(self) -> bool:
        return self._log.closed and self._seq == self._log.last_seq

    async def wait(self) -> bytes:
        """The next lines; a heartbeat when there are none for five seconds."""
        if await self._log.grow(self._seq, HEARTBEAT_S, self._bell):
            return self.take()
        return events.encode(events.Heartbeat(seq=self._seq)) + b"\n"
