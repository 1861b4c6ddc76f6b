"""Who has paused the box, since when, until when, and why? Said by the daemon, shown by its clients, kept over a restart."""

from __future__ import annotations

import time

import msgspec

_DAY_S = 86400


class Pause(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Times in unix seconds; `until` None: until somebody resumes."""

    by: str
    since: float
    until: float | None = None
    reason: str = ""

    def left_s(self, now: float | None = None) -> float | None:
        """Seconds until it ends by itself, at least 0; None if it does not."""
        return None if self.until is None else max(0.0, self.until - (time.time() if now is None else now))

    def words(self, now: float | None = None) -> str:
        """`by anna since 20:14, until 22:14: a game`, in the clock of this machine."""
        now = time.time() if now is None else now
        until = "" if self.until is None else f", until {_clock(self.until, now)}"
        return f"by {self.by} since {_clock(self.since, now)}{until}" + (self.reason and f": {self.reason}")


def _clock(at: float, now: float) -> str:
    """A time of day, with its day where that is not today."""
    moment, today = time.localtime(at), time.localtime(now)
    if moment[:3] == today[:3]:
        return time.strftime("%H:%M", moment)
    return time.strftime("%a %H:%M" if abs(at - now) < 6 * _DAY_S else "%Y-%m-%d %H:%M", moment)
