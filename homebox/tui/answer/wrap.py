"""Where does a text break, so that no row is wider than so many cells?

At blanks; between wide characters (CJK, emoji), but not before what closes a sentence; and inside a word only where the
word alone is wider than the row. Nothing is lost but the blanks at which it breaks. Widths are cells of a terminal.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from rich.cells import cell_len, split_graphemes

# Characters of one cell each: with these alone, cells and characters are the same. (Counting is not enough: a wide
# character and a joiner of no width are two characters in two cells.)
_NARROW = " -~\u00a0-\u00ac\u00ae-\u02ff\u0370-\u0482\u2010-\u2027\u2030-\u205e\u2190-\u21ff\u2200-\u22ff\u2500-\u259f"
_only_narrow = re.compile(f"[{_NARROW}]*").fullmatch

# These do not begin a row.
_CLOSING = frozenset("、。，．！？：；）」』】〉》”’％…ー々" + ",.!?:;)]}%")


class Break(NamedTuple):
    """One row: characters `start` to `end`. `joined` as in `rows.Row`."""

    start: int
    end: int
    joined: str | None


def wrap(text: str, width: int) -> list[Break]:
    """At least one row, and for each line of the text its own."""
    rows: list[Break] = []
    at = 0
    for line in text.split("\n"):
        if len(line) <= width and cell_len(line) <= width:
            rows.append(Break(at, at + len(line), None))
        elif _only_narrow(line):
            rows += _narrow(line, width, at)
        else:
            rows += _wide(line, width, at)
        at += len(line) + 1
    return rows


def fold(line: str, width: int) -> list[Break]:
    """As `wrap`, but at the cell: for code."""
    if _only_narrow(line):
        starts = range(0, len(line) or 1, width)
        return [Break(at, min(at + width, len(line)), "" if at else None) for at in starts]
    rows: list[Break] = []
    start = used = 0
    for begin, _, cells in split_graphemes(line)[0]:
        if used + cells > width and begin > start:
            rows.append(Break(start, begin, "" if rows else None))
            start, used = begin, 0
        used += cells
    rows.append(Break(start, len(line), "" if rows else None))
    return rows


@lru_cache(maxsize=256)
def _row_of(width: int) -> re.Pattern[str]:
    """As many characters as fit up to a blank or the end; where no blank is among them, as many as fit."""
    return re.compile(rf"(?s)(.{{1,{width}}}(?=[ \t]|$)|.{{1,{width}}})[ \t]*")


def _narrow(line: str, width: int, at: int) -> list[Break]:
    rows: list[Break] = []
    joined: str | None = None
    for found in _row_of(width).finditer(line):
        start, end = found.span(1)
        end = start + len(line[start:end].rstrip(" \t")) if start else end
        rows.append(Break(at + start, at + end, joined))
        joined = " " if found.end() > found.end(1) or line[found.end(1) - 1] in " \t" else ""
    return rows


def _wide(line: str, width: int, at: int) -> list[Break]:
    """Grapheme by grapheme. `chance` is the last place where the row may end and the next one begin."""
    rows: list[Break] = []
    start = used = 0
    chance: tuple[int, int, int] | None = (
        None  # where the row would end, where the next begins, cells up to there
    )
    was_wide = was_blank = False
    joined: str | None = None
    for begin, _, cells in split_graphemes(line)[0]:
        char = line[begin]
        blank = char in " \t"
        if begin > start and not blank:
            if was_blank:
                chance = (_trimmed(line, start, begin), begin, used)
            elif (was_wide or cells > 1) and char not in _CLOSING:
                chance = (begin, begin, used)
        if used + cells > width and begin > start and not blank:
            stop, following, gone = chance or (begin, begin, used)
            rows.append(Break(at + start, at + stop, joined))
            joined = " " if following > stop else ""
            start, used, chance = following, used - gone, None
        used += cells
        was_wide, was_blank = cells > 1, blank
    rows.append(Break(at + start, at + (_trimmed(line, start, len(line)) if rows else len(line)), joined))
    return rows


def _trimmed(line: str, start: int, end: int) -> int:
    return start + len(line[start:end].rstrip(" \t"))
