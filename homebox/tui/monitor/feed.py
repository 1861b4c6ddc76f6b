"""What does the daemon say of the box, from now on, whatever becomes of the connection?

A thread of its own that asks who we are, reads snapshots, first those of the last five minutes, and after a break tries
again with growing pauses. It touches no widget: what it hears it hands to functions that may be called from any thread.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

import msgspec

from homebox.client.connection import SILENCE_S, Daemon, Reply
from homebox.errors import HomeboxError, NotAllowed, NotFound
from homebox.wire.events import Snapshot, decode_snapshot
from homebox.wire.people import PersonRow

RETRY_S = (1.0, 2.0, 5.0)


class Feed(threading.Thread):
    """`arrived`, `known` and `away` (why, and seconds to the next try) are called in this thread."""

    def __init__(
        self,
        daemon: Daemon,
        interval_s: float,
        *,
        arrived: Callable[[Snapshot], object],
        known: Callable[[PersonRow], object],
        away: Callable[[HomeboxError, float], object],
    ) -> None:
        super().__init__(name="monitor-feed", daemon=True)
        self._daemon = daemon
        self._interval_s = interval_s
        self._arrived, self._known, self._away = arrived, known, away
        self._leave = threading.Event()
        self._lock = threading.Lock()
        self._reply: Reply | None = None
        self._tries = 0

    def run(self) -> None:
        while not self._leave.is_set():
            try:
                self._listen()
                error = HomeboxError("the daemon ended the connection")
            except HomeboxError as why:
                error = why
            if self._leave.is_set():
                return
            pause_s = RETRY_S[min(self._tries, len(RETRY_S) - 1)]
            self._tries += 1
            self._away(error, pause_s)
            self._leave.wait(pause_s)

    def stop(self) -> None:
        """From any thread, at once; the thread ends by itself."""
        self._leave.set()
        with self._lock:
            if self._reply is not None:
                self._reply.hang_up()

    def _listen(self) -> None:
        """One connection, to its end. Raises HomeboxError."""
        try:
            # Who may look and is not told who they are, as with some keys, stops nobody else's streams.
            with contextlib.suppress(NotAllowed, NotFound):
                self._known(msgspec.convert(self._daemon.json("GET", "/homebox/me"), PersonRow))
            path = f"/homebox/monitor?interval={self._interval_s:g}&history=1"
            with self._daemon.open("GET", path, timeout_s=self._interval_s + SILENCE_S) as reply:
                self._hold(reply)
                for line in reply.lines():
                    if self._leave.is_set():
                        return
                    self._arrived(decode_snapshot(line))
                    self._tries = 0
        except (msgspec.DecodeError, msgspec.ValidationError):
            raise HomeboxError(
                "the daemon said something that this version does not understand",
                hint="homebox version compares the two.",
            ) from None
        finally:
            self._hold(None)

    def _hold(self, reply: Reply | None) -> None:
        with self._lock:
            self._reply = reply
            if reply is not None and self._leave.is_set():
                reply.hang_up()
