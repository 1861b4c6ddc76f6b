"""What may a person do, and how much of it?

The roles of a household, the rules that a role or a person has, and what they mean: which rule holds where several
speak, whether the hours are open and when they open next. Read by the configuration (`[roles.kid]`) and by the daemon
(`people.json`). It knows no request, no clock and no file: times are passed in.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, time, timedelta
from typing import Any, Literal, cast, get_args

import msgspec

from homebox.errors import UsageError

Role = Literal["admin", "adult", "kid", "guest", "app"]
ROLES: tuple[str, ...] = get_args(Role)

GUIDANCE = (
    "You are talking with a child. Be friendly and patient, use simple words and short answers. Nothing violent, "
    "sexual, hateful or dangerous: say kindly that a grown-up is the right one to ask, and offer something else. "
    "Never ask for names, addresses, pictures or passwords."
)

MAX_PREAMBLE_CHARACTERS = 8000
_DAYS = ("mo", "tu", "we", "th", "fr", "sa", "su")
_HOURS = re.compile(r"(?:(?P<days>[a-z,\- ]+?)\s+)?(?P<from>\d\d?:\d\d)\s*-\s*(?P<to>\d\d?:\d\d)")
_LOOK_AHEAD_DAYS = 8


class Rules(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """None: not said here, so the next in line says it (the person, the role in the configuration, the role's own
    default). 0, an empty list and an empty text lift a limit that the next in line would set."""

    requests: int | None = None  # answers at once, running or waiting
    queue: int | None = None  # of these, how many may wait
    tokens_per_minute: int | None = None
    tokens_per_day: int | None = None  # of the local day
    max_answer_tokens: int | None = None
    models: list[str] | None = None  # only these
    hours: list[str] | None = None  # "07:00-20:00", "sa-su 09:00-21:00"
    weight: float | None = None  # of two who always wait, one with weight 2 gets twice as much
    preamble: str | None = None  # said to the model before anything else

    def over(self, below: Rules) -> Rules:
        """These, and where they say nothing, those below."""
        said = {name: getattr(self, name) for name in self.__struct_fields__}
        return msgspec.structs.replace(below, **{name: v for name, v in said.items() if v is not None})

    def without(self, names: Iterable[str]) -> Rules:
        return msgspec.structs.replace(self, **dict.fromkeys(names))


# What a role means where neither the person nor the configuration says otherwise.
DEFAULTS: Mapping[str, Rules] = {
    "admin": Rules(),
    "adult": Rules(),
    "kid": Rules(requests=2, max_answer_tokens=1024, preamble=GUIDANCE),
    "guest": Rules(requests=4, tokens_per_minute=20_000, tokens_per_day=200_000),
    "app": Rules(),
}


def effective(role: str, own: Rules, configured: Mapping[str, Rules]) -> Rules:
    """The person's own rules over the configuration's for the role over the role's defaults."""
    return own.over(configured.get(role, Rules()).over(DEFAULTS[role]))


def check(rules: Rules) -> None:
    """Raises UsageError, whose `param` is the rule's name, for a value that cannot be meant."""
    for name in ("requests", "queue", "tokens_per_minute", "tokens_per_day", "max_answer_tokens"):
        value = getattr(rules, name)
        if value is not None and not 0 <= value < 2**53:
            raise UsageError(
                f"{name} is {value}; it must be at least 0", hint="0 means: no limit.", param=name
            )
    if rules.weight is not None and not (math.isfinite(rules.weight) and 0.01 <= rules.weight <= 100):
        raise UsageError(f"weight is {rules.weight:g}; it must be from 0.01 to 100", param="weight")
    if rules.preamble is not None and len(rules.preamble) > MAX_PREAMBLE_CHARACTERS:
        raise UsageError(
            f"the preamble has {len(rules.preamble)} characters; at most {MAX_PREAMBLE_CHARACTERS} are possible",
            param="preamble",
        )
    parse_hours(rules.hours or ())


def check_role(name: str) -> Role:
    """Raises UsageError for a word that is no role."""
    if name in ROLES:
        return cast(Role, name)
    raise UsageError(
        f"{name[:40]!r} is not a role",
        hint=_nearest(name, ROLES) or f"Roles: {', '.join(ROLES)}.",
        param="role",
    )


def convert(data: Any, where: str = "") -> Rules:
    """Rules from a table of a file or a body. Raises UsageError that names an unknown or wrong one."""
    inside = f"{where}: " if where else ""
    if not isinstance(data, dict):
        raise UsageError(f"{inside}rules are a table of names and values")
    for key in data:
        if key not in Rules.__struct_fields__:
            hint = _nearest(str(key), Rules.__struct_fields__)
            raise UsageError(
                f"{inside}unknown rule {str(key)[:40]!r}",
                hint=hint or f"Rules: {', '.join(Rules.__struct_fields__)}.",
            )
    try:
        rules = msgspec.convert(data, Rules)
        check(rules)
    except msgspec.ValidationError as error:
        name = re.search(r"\$\.(\w+)", str(error))
        said = str(error).partition(" - at ")[0]
        raise UsageError(f"{inside}{name[1] if name else 'rules'}: {said[:1].lower()}{said[1:]}") from None
    except UsageError as error:
        raise UsageError(f"{inside}{error.message}", hint=error.hint, param=error.param) from None
    return rules


def convert_roles(data: Any, where: str = "") -> dict[str, Rules]:
    """The table `[roles]` of a configuration file. Raises UsageError."""
    inside = f"{where}: " if where else ""
    if not isinstance(data, dict):
        raise UsageError(f"{inside}roles is a table, like [roles.kid]")
    for name in data:
        try:
            check_role(str(name))
        except UsageError as error:
            raise UsageError(f"{inside}[roles.{name}]: {error.message}", hint=error.hint) from None
    return {name: convert(table, f"{inside}[roles.{name}]") for name, table in data.items()}


def _nearest(word: str, known: Sequence[str]) -> str | None:
    near = difflib.get_close_matches(word, known, 1)
    return f"Did you mean {near[0]!r}?" if near else None


# ---- hours


@dataclass(frozen=True)
class Window:
    """From `start` to `end` minutes after midnight; `end` beyond 24 hours is the next morning. `days` are weekdays,
    0 for Monday; None is every day that no other window names."""

    start: int
    end: int
    days: frozenset[int] | None = None


def parse_hours(hours: Iterable[str]) -> list[Window]:
    """Raises UsageError."""
    return [_window(text) for text in hours]


def is_open(hours: Sequence[Window], at: datetime) -> bool:
    """Whether one of the windows holds the local time `at`. No windows: always."""
    if not hours:
        return True
    minutes = at.hour * 60 + at.minute
    today, before = _of_day(hours, at.weekday()), _of_day(hours, (at.weekday() - 1) % 7)
    return any(w.start <= minutes < w.end for w in today) or any(minutes + 1440 < w.end for w in before)


def opens_at(hours: Sequence[Window], at: datetime) -> datetime | None:
    """When a window begins after the local time `at`; None where there is none in a week."""
    for later in range(_LOOK_AHEAD_DAYS):
        midnight = datetime.combine(at.date() + timedelta(days=later), time.min)
        starts = [midnight + timedelta(minutes=w.start) for w in _of_day(hours, midnight.weekday())]
        if coming := [start for start in starts if start > at]:
            return min(coming)
    return None


def _of_day(hours: Sequence[Window], weekday: int) -> list[Window]:
    """A day that is named has the windows that name it, and only these."""
    named = [window for window in hours if window.days is not None and weekday in window.days]
    return named or [window for window in hours if window.days is None]


def _window(text: str) -> Window:
    match = _HOURS.fullmatch(text.strip().lower())
    if match is None:
        raise _bad_hours(text)
    start, end = _minutes(match["from"], text), _minutes(match["to"], text)
    if start == end or start == 1440:
        raise _bad_hours(text)
    days = _weekdays(match["days"], text) if match["days"] else None
    return Window(start, end if end > start else end + 1440, days)


def _minutes(clock: str, text: str) -> int:
    hours, minutes = map(int, clock.split(":"))
    if minutes > 59 or hours * 60 + minutes > 1440:
        raise _bad_hours(text)
    return hours * 60 + minutes


def _weekdays(words: str, text: str) -> frozenset[int]:
    days: set[int] = set()
    for part in words.replace(" ", "").split(","):
        first, _, last = part.partition("-")
        if first not in _DAYS or (last or first) not in _DAYS:
            raise _bad_hours(text)
        begin, end = _DAYS.index(first), _DAYS.index(last or first)
        days |= {(begin + i) % 7 for i in range((end - begin) % 7 + 1)}
    return frozenset(days)


def _bad_hours(text: str) -> UsageError:
    return UsageError(
        f"{text[:40]!r} is not hours of a day",
        hint='Write them like "07:00-20:00", "22:00-02:00" or "sa-su 09:00-21:00".',
        param="hours",
    )
