"""Has the machine slept? One clock goes on during a suspend and one stands still; what lies between is the sleep."""

from __future__ import annotations

import time
from collections.abc import Callable

SHORTEST_S = 5.0


def _boot_clock() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class SleepWatch:
    """`boottime` counts a suspend, `monotonic` does not; both in seconds."""

    def __init__(
        self,
        boottime: Callable[[], float] = _boot_clock,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._boottime, self._monotonic = boottime, monotonic
        self._ahead_s = boottime() - monotonic()

    def slept_s(self) -> float:
        """Seconds slept since the last call; 0 if fewer than `SHORTEST_S`."""
        ahead_s = self._boottime() - self._monotonic()
        slept_s = ahead_s - self._ahead_s
        if slept_s < SHORTEST_S:
            return 0.0
        self._ahead_s = ahead_s
        return slept_s
