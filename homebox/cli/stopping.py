"""Who may end an answer early, and how does the reader find out?

While an answer is read the main thread waits for the socket. Ctrl-C, SIGTERM and the deadline all do the same: note
the reason and hang up, so that the reader sees the end of its stream at a known point, with everything that arrived
in hand, instead of an exception in the middle of a write. A second Ctrl-C kills the process in the usual way.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from types import FrameType
from typing import Any

from homebox.client.connection import Reply
from homebox.errors import TimedOut

EXIT_CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}


class Stopping:
    """Use as a context around one answer; call `watch` once there is a reply to hang up."""

    def __init__(self, timeout_s: float | None) -> None:
        self.timeout_s = timeout_s
        self.signal: int | None = None
        self._deadline = math.inf
        self._reply: Reply | None = None
        self._before: dict[signal.Signals, Any] = {}
        self._timer = threading.Timer(timeout_s, self._on_deadline) if timeout_s is not None else None

    @property
    def timed_out(self) -> bool:
        return time.monotonic() >= self._deadline

    @property
    def stopped(self) -> bool:
        return self.timed_out or self.signal is not None

    @property
    def exit_code(self) -> int:
        """130 or 143 after a signal, else 0."""
        return EXIT_CODES[signal.Signals(self.signal)] if self.signal is not None else 0

    def timeout_error(self) -> TimedOut:
        return TimedOut(
            f"the answer was not finished within {self.timeout_s:g} s",
            hint="Allow more with --timeout, or ask for less with --max-tokens.",
        )

    def watch(self, reply: Reply) -> None:
        self._reply = reply
        if self.stopped:
            reply.hang_up()

    def __enter__(self) -> Stopping:
        for number in EXIT_CODES:
            self._before[number] = signal.signal(number, self._on_signal)
        if self._timer and self.timeout_s is not None:
            self._deadline = time.monotonic() + self.timeout_s
            self._timer.daemon = True
            self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._timer:
            self._timer.cancel()
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        self.signal = number
        if self._reply is None:
            raise KeyboardInterrupt  # still connecting: there is nothing to keep
        self._reply.hang_up()

    def _on_deadline(self) -> None:
        if self._reply is not None:
            self._reply.hang_up()
