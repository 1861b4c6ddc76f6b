"""How is one figure said? An unknown one is `n/a`, never 0."""

from __future__ import annotations

GIB = 2**30


def duration(total_s: float) -> str:
    """`3d04h`, `2h05m`, `7m03s` or `12s`."""
    minutes, secs = divmod(int(total_s), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}d{hours:02}h"
    if hours:
        return f"{hours}h{minutes:02}m"
    return f"{minutes}m{secs:02}s" if minutes else f"{secs}s"


def age(total_s: float) -> str:
    return f"{total_s:.1f}" if total_s < 1000 else duration(total_s)


def seconds(ms: float | None) -> str:
    return "n/a" if ms is None else f"{ms / 1000:.2f}"


def whole(value: float | None) -> str:
    return "n/a" if value is None else f"{value:,.0f}"


def percent(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.0f}%"


def unit(value: float | None, name: str) -> str:
    return f"n/a {name}" if value is None else f"{value:,.0f} {name}"


def share(value: float | None, limit: float | None, name: str) -> str:
    """`312/450 W`; without a known limit `312 W`."""
    return unit(value, name) if limit is None else f"{whole(value)}/{limit:,.0f} {name}"


def gib(size: float | None) -> str:
    return "n/a" if size is None else f"{size / GIB:.1f}"


def clock(mhz: float | None) -> str:
    return "n/a GHz" if mhz is None else f"{mhz / 1000:.1f} GHz"


def rate(tokens_s: float) -> str:
    """Tokens in a second: small ones with their tenths."""
    return f"{tokens_s:,.1f}" if tokens_s < 100 else f"{tokens_s:,.0f}"
