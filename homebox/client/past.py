"""How did it come to this? The last five minutes of the box as series of figures.

Fed with snapshots, the daemon's own history first, it gives one value for each column of a graph, or None where nothing
is known. A snapshot that was already heard (the history is told again after a reconnect) counts once. Pure.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

from homebox.wire.events import Snapshot

SPAN_S = 300.0
KEPT = 2048


def _util(now: Snapshot) -> float | None:
    known = [device.util_percent for device in now.devices if device.util_percent is not None]
    return sum(known) / len(known) if known else None


SERIES: dict[str, Callable[[Snapshot], float | None]] = {
    "util": _util,
    "out": lambda now: now.tok_s_out,
    "in": lambda now: now.tok_s_in,
    "running": lambda now: now.running,
    "waiting": lambda now: now.waiting,
    "step": lambda now: now.step_ms,
    "ttft": lambda now: None if now.ttft_p50_ms is None else now.ttft_p50_ms / 1000,
}


class Past:
    def __init__(self) -> None:
        self._points: deque[tuple[float, dict[str, float | None]]] = deque(maxlen=KEPT)

    def add(self, now: Snapshot) -> None:
        """Nothing of what is older than the newest is heard again."""
        if self._points and now.at <= self._points[-1][0]:
            return
        self._points.append((now.at, {name: value(now) for name, value in SERIES.items()}))
        while now.at - self._points[0][0] > 2 * SPAN_S:
            self._points.popleft()

    def series(self, name: str, columns: int, *, interval_s: float = 2.0) -> list[float | None]:
        """The mean in each of `columns` spans of time, the newest last. A span without a point, as there is one between
        two that are `interval_s` apart, has the value of the one before."""
        if not self._points or columns < 1:
            return [None] * max(0, columns)
        step = max(SPAN_S / columns, 0.1)
        newest = math.floor(self._points[-1][0] / step)
        sums: dict[int, list[float]] = {}
        heard: dict[int, float] = {}  # when something was last known, unknown figures too
        for at, values in self._points:
            place = columns - 1 - (newest - math.floor(at / step))
            if place >= 0:
                heard[place] = at
                if (value := values[name]) is not None:
                    sums.setdefault(place, []).append(value)
        holds = math.ceil(2.5 * interval_s / step)
        return [_at(place, sums, heard, holds) for place in range(columns)]


def _at(place: int, sums: dict[int, list[float]], heard: dict[int, float], holds: int) -> float | None:
    for back in range(holds + 1):
        if place - back in heard:
            found = sums.get(place - back)
            return sum(found) / len(found) if found else None
    return None
