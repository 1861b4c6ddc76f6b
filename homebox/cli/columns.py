"""How do rows become columns that stand below each other on a terminal?

Widths are terminal cells, not characters: a Chinese letter takes two, a combining accent none. On a terminal rows fit into
its width; a pipe gets them whole, for who reads on. It knows nothing of what the rows say.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from homebox.client.lines import width as cells
from homebox.client.sanitise import clean

CUT = "…"
_NARROWEST = 20  # a last column that is less wide is not wrapped: a word a line is no table


def cut(text: str, room: int) -> str:
    """One line of at most `room` cells; what is cut ends in a mark."""
    line = " ".join(text.split())
    if cells(line) <= room:
        return line
    kept, used = "", 1
    for char in line:
        used += cells(char)
        if used > room:
            break
        kept += char
    return kept.rstrip() + CUT


def padded(text: str, room: int) -> str:
    return text + " " * (room - cells(text))


def room() -> int | None:
    """The width of the terminal that standard output is; None where nothing has to fit."""
    if not sys.stdout.isatty():
        return None
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or 80
    except OSError:
        return 80


def table(rows: Sequence[Sequence[str]], within: int | None = None) -> list[str]:
    """Columns as wide as their widest cell, two spaces apart. The last is as it is, or goes on below itself where it does
    not fit."""
    rows = [[clean(cell) for cell in row] for row in rows]
    widths = [max(cells(row[place]) for row in rows) for place in range(len(rows[0]) - 1)]
    indent = sum(widths) + 2 * len(widths)
    lines: list[str] = []
    for *first, last in rows:
        head = "".join(padded(cell, width) + "  " for cell, width in zip(first, widths, strict=True))
        lines += flow(head, last.split(" "), within, indent, between=" ")
    return lines


def flow(head: str, parts: Sequence[str], within: int | None, indent: int, between: str = "  ") -> list[str]:
    """The parts behind `head`, in as many lines as they need; the later ones begin at `indent`."""
    if within is None or within - indent < _NARROWEST:
        return [(head + between.join(parts)).rstrip()]
    lines, line, fresh = [], head, True
    for part in parts:
        if not fresh and cells(line + between + part) > within:
            lines.append(line.rstrip())
            line, fresh = " " * indent, True
        line, fresh = line + ("" if fresh else between) + part, False
    return [*lines, line.rstrip()]
