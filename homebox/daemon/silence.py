"""When does an engine's silence count as a stall?

`Silence` keeps the one timer that goes off when the engine has said nothing for too long. It looks twice: if it was
this loop that stood still (a stopped process, a swapped-out machine), what the engine said meanwhile is read before
anybody is blamed. It knows no process; what a stall leads to is the supervisor's.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable

from homebox.daemon.patience import Patience
from homebox.daemon.streams import Stream
from homebox.wire.frames import StepStarted

LOOK_AGAIN_S = 0.5  # how long a silence that seems too long is given once more


class Silence:
    """`left` says how many seconds more may pass in silence, None while silence means nothing; `stalled` hears for
    how many seconds nothing was said."""

    def __init__(self, left: Callable[[], float | None], stalled: Callable[[float], None]) -> None:
        self._left, self._stalled = left, stalled
        self._timer: asyncio.TimerHandle | None = None
        self._late = False  # silence was too long once, and is looked at a second time
        self.heard_at = 0.0

    def heard(self) -> float:
        """The engine has spoken, or silence counts only from now on. Returns this moment."""
        self.heard_at = time.monotonic()
        return self.heard_at

    def watch(self) -> None:
        """Look again when the silence could have become too long; called whenever that moment may come earlier."""
        self.stop()
        if (left := self._left()) is not None:
            self._timer = asyncio.get_running_loop().call_later(max(left, 0.0), self._look)

    def stop(self) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        left = self._left()
        if left is None or left > 0:
            self._late = False
            self.watch()
        elif not self._late:
            self._late = True
            self._timer = asyncio.get_running_loop().call_later(LOOK_AGAIN_S, self._look)
        else:
            self._late = False
            self._stalled(time.monotonic() - self.heard_at)


def left_loading(patience: Patience, heard_at: float) -> float:
    """Seconds until an engine that loads counts as stalled."""
    return heard_at + patience.loading_s - time.monotonic()


def left_working(
    patience: Patience, heard_at: float, steps: Iterable[StepStarted], streams: Iterable[Stream]
) -> float:
    """Seconds until an engine with these live streams and running steps counts as stalled."""
    predicted_s = max((step.predicted_ms for step in steps), default=0.0) / 1000
    limit = max(patience.stall_s, patience.stall_factor * predicted_s)
    # An abort that is never confirmed is a stall as well, however much is said about others.
    since = min([heard_at, *(stream.aborted_at for stream in streams if stream.aborted_at)])
    return since + limit - time.monotonic()
