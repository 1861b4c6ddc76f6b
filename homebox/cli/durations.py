"""How long is `2h`?"""

from __future__ import annotations

import re

from homebox.errors import UsageError

_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


def seconds(text: str, option: str) -> float:
    """`90s`, `30m`, `2h`, `1.5d`, `1w` in seconds. Raises UsageError that names the option."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smhdw])\s*", text)
    if not found:
        raise UsageError(f"{option} {text!r} is not a length of time", hint="Write it like 30m, 2h or 7d.")
    return float(found[1]) * _UNITS_S[found[2]]
