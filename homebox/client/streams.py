"""Which streams does somebody want to see, and in which order?

Filter and order of the monitor's rows, for the screen and for `top --once` alike: `user=dad tok_s<10`, words that must
all hold. A comparison names a column; a free word is looked for in user, state, model, client and id. What is unknown
is neither less nor more than anything, and comes last in every order. Pure; it knows no screen.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from homebox.errors import UsageError
from homebox.wire.events import Snapshot, StreamRow

Value = str | float | None

# How a row's state is said; how it ended, for one that has.
STATES = {
    "waiting": "wait",
    "prefill": "prefill",
    "decode": "decode",
    "replay": "replay",
    "held": "held",
    "stop": "done",
    "length": "length",
    "cancelled": "stopped",
    "error": "failed",
}


def _seconds(ms: float | None) -> float | None:
    return None if ms is None else ms / 1000


TEXTS: dict[str, Callable[[StreamRow], str]] = {
    "user": lambda row: row.person,
    "state": lambda row: STATES.get(row.state, row.state),
    "model": lambda row: row.model,
    "client": lambda row: row.client,
    "id": lambda row: row.id,
}
NUMBERS: dict[str, Callable[[StreamRow], float | None]] = {
    "in": lambda row: row.tokens_in,
    "cached": lambda row: row.cached,
    "out": lambda row: row.tokens_out,
    "max": lambda row: row.max_tokens,
    "tok_s": lambda row: row.tok_s,
    "ttft": lambda row: _seconds(row.ttft_ms),
    "queue": lambda row: _seconds(row.queue_ms),
    "blocks": lambda row: row.blocks,
    "age": lambda row: row.age_s,
}
COLUMNS = (
    "user", "state", "model", "in", "cached", "out", "max", "tok_s", "ttft", "queue", "blocks", "age", "client", "id",
)  # fmt: skip

_COMPARISON = re.compile(r"([A-Za-z_]+)(<=|>=|!=|=|~|<|>)(.*)")
_COMPARE: dict[str, Callable[[float, float], bool]] = {
    "=": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}
_HINT = (
    "Like: user=dad tok_s<10 state=decode; a free word is looked for in user, state, model, client and id."
)

Test = Callable[[StreamRow], bool]


@dataclass(frozen=True)
class Filter:
    """`text` as it was typed; all `tests` must hold."""

    text: str = ""
    tests: tuple[Test, ...] = ()

    def __call__(self, row: StreamRow) -> bool:
        return all(test(row) for test in self.tests)


@dataclass(frozen=True)
class Order:
    """Numbers with the largest first, words from a to z; `reverse` turns it round."""

    column: str = "age"
    reverse: bool = False

    @property
    def falling(self) -> bool:
        return (self.column in NUMBERS) != self.reverse


@dataclass(frozen=True)
class View:
    """What somebody wants to see of the streams."""

    order: Order = Order()
    filter: Filter = Filter()
    mine: bool = False

    def __call__(self, rows: Iterable[StreamRow]) -> list[StreamRow]:
        kept = [row for row in rows if (row.mine or not self.mine) and self.filter(row)]
        value = _value(self.order.column)
        known = [row for row in kept if value(row) is not None]
        known.sort(
            key=lambda row: value(row) or 0 if self.order.column in NUMBERS else str(value(row)).lower()
        )
        if self.order.falling:
            known.reverse()
        return known + [row for row in kept if value(row) is None]

    def narrowed(self, now: Snapshot) -> Snapshot:
        """The same moment with only the rows that are wanted, in their order."""
        from msgspec.structs import replace

        return replace(now, streams=tuple(self(now.streams)), ended=tuple(self(now.ended)))


def _value(column: str) -> Callable[[StreamRow], Value]:
    return TEXTS.get(column) or NUMBERS[column]


def parse_order(said: str) -> Order:
    """`tok_s`, or `-tok_s` for the other way round. Raises UsageError."""
    column = said.removeprefix("-").lower()
    if column not in COLUMNS:
        raise UsageError(f"there is no column {said[:40]!r} to sort by", hint=_columns(column))
    return Order(column, said.startswith("-"))


def parse_filter(text: str) -> Filter:
    """Raises UsageError that says at which character what is wrong."""
    tests = tuple(_test(found[0], found.start() + 1) for found in re.finditer(r"\S+", text))
    return Filter(text.strip(), tests)


def _test(word: str, at: int) -> Test:
    parts = _COMPARISON.fullmatch(word)
    if parts is None:
        if word[0] in "<>=!~" or any(sign in word for sign in "<>="):
            raise UsageError(f"filter, character {at}: {word[:40]!r} compares no column", hint=_HINT)
        return _free(word.lower())
    name, sign, said = parts[1].lower(), parts[2], parts[3]
    there = at + parts.start(3)
    if name not in COLUMNS:
        raise UsageError(f"filter, character {at}: there is no column {name[:40]!r}", hint=_columns(name))
    if not said:
        raise UsageError(f"filter, character {there}: nothing comes after {name}{sign}", hint=_HINT)
    return _number(name, sign, said, at, there) if name in NUMBERS else _text(name, sign, said, at, there)


def _number(name: str, sign: str, said: str, at: int, there: int) -> Test:
    if sign not in _COMPARE:
        raise UsageError(
            f"filter, character {at + len(name)}: {name} is a number, and {sign} is for words", hint=_HINT
        )
    try:
        wanted = float(said)
    except ValueError:
        raise UsageError(f"filter, character {there}: {said[:40]!r} is not a number", hint=_HINT) from None
    value, compare = NUMBERS[name], _COMPARE[sign]

    def test(row: StreamRow) -> bool:
        found = value(row)
        return found is not None and compare(found, wanted)

    return test


def _text(name: str, sign: str, said: str, at: int, there: int) -> Test:
    value, wanted = TEXTS[name], said.lower()
    if name == "state" and sign in ("=", "!="):
        wanted = STATES.get(wanted, wanted)
        if wanted not in STATES.values():
            near = difflib.get_close_matches(wanted, STATES.values(), 1)
            known = f"Did you mean {near[0]}?" if near else f"States: {', '.join(STATES.values())}."
            raise UsageError(f"filter, character {there}: there is no state {said[:40]!r}", hint=known)
    if sign == "=":
        return lambda row: value(row).lower() == wanted
    if sign == "!=":
        return lambda row: value(row).lower() != wanted
    if sign == "~":
        return lambda row: wanted in value(row).lower()
    raise UsageError(
        f"filter, character {at + len(name)}: {name} is a word, and {sign} is for numbers", hint=_HINT
    )


def _free(word: str) -> Test:
    return lambda row: any(word in value(row).lower() for value in TEXTS.values())


def _columns(name: str) -> str:
    near = difflib.get_close_matches(name, COLUMNS, 1)
    return f"Did you mean {near[0]}?" if near else f"Columns: {', '.join(COLUMNS)}."
