"""How does a person write a rule, and how is it read back to them?

`50k` and `1.5M` for tokens, `90d` for a time to live, `@FILE` for a text; and a line for each rule that holds. It knows
no daemon.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from homebox.client.sanitise import clean
from homebox.errors import UsageError
from homebox.rules import Rules

_TIMES = {"": 1, "k": 1_000, "m": 1_000_000}
_SPANS_S = {"m": 60, "h": 3600, "d": 86400, "w": 7 * 86400, "y": 365 * 86400}
_NONE = "none"
_LONGEST_PREVIEW = 60


def count(text: str, option: str) -> int:
    """`50k` is 50000; 0 and `none` lift the limit. Raises UsageError."""
    if text.lower() == _NONE:
        return 0
    match = re.fullmatch(r"(\d{1,12}(?:\.\d{1,6})?)([kKmM]?)", text.replace("_", ""))
    if match is None or (value := round(float(match[1]) * _TIMES[match[2].lower()], 6)) != int(value):
        raise UsageError(
            f"{option} {text!r} is not a number of tokens", hint='Write it like "50000", "50k" or "2M".'
        )
    return int(value)


def several(words: Sequence[str], *, commas: bool) -> list[str]:
    """The values of an option that may be given again; `none` alone is an empty list, which lifts the rule."""
    parts = [
        part.strip() for word in words for part in (word.split(",") if commas else [word]) if part.strip()
    ]
    return [] if [part.lower() for part in parts] == [_NONE] else parts


def text_or_file(text: str) -> str:
    """`@FILE` is what the file holds. Raises UsageError."""
    if not text.startswith("@"):
        return text
    try:
        return Path(text[1:]).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        said = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise UsageError(f"--preamble {text}: {said}") from None


def expiry(text: str) -> float:
    """`90d` from now, or a day like 2027-01-31 to its end, in unix seconds. Raises UsageError."""
    if match := re.fullmatch(r"(\d{1,6})([mhdwy])", text.lower()):
        return time.time() + int(match[1]) * _SPANS_S[match[2]]
    try:
        return datetime.strptime(text, "%Y-%m-%d").timestamp() + 86400
    except ValueError:
        raise UsageError(
            f"--expires {text!r} is no time", hint='Write it like "12h", "90d", "1y" or "2027-01-31".'
        ) from None


def day(unix: float | None, otherwise: str = "never") -> str:
    return otherwise if unix is None else time.strftime("%Y-%m-%d", time.localtime(unix))


def lines(rules: Rules) -> list[tuple[str, str]]:
    """Name and value of each rule that holds, as it would be typed."""
    found: list[tuple[str, str]] = []
    for name in rules.__struct_fields__:
        value = getattr(rules, name)
        if not value:
            continue
        if isinstance(value, list):
            value = ", ".join(value)
        elif isinstance(value, float):
            value = f"{value:g}"
        text = " ".join(clean(str(value)).split())
        found.append((name, text if len(text) <= _LONGEST_PREVIEW else text[: _LONGEST_PREVIEW - 3] + "..."))
    return found
