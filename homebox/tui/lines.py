"""How does somebody's text become one line that takes so many cells of a terminal and no more?

Titles, names and snippets come from people, models and files: they are sanitised here, laid on one line and cut by
cells, never by characters, since a character may take two or none. It knows no widgets.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len, set_cell_size

from homebox.client.sanitise import clean

_BARS = "▁▂▃▄▅▆▇█"


def line(text: str) -> str:
    """`text` without what drives a terminal, on one line."""
    return " ".join(clean(text).split())


def cut(text: str, cells: int) -> str:
    """A line of at most `cells`; what is missing is said by an ellipsis."""
    if cell_len(text) <= cells:
        return text
    return set_cell_size(text, cells - 1).rstrip() + "…" if cells > 0 else ""


def both_ends(left: str, right: str, cells: int) -> str:
    """`left` cut so that `right` stands at the end of a line of `cells`."""
    if not right:
        return cut(left, cells)
    room = cells - cell_len(right) - 1
    if room < 1:
        return cut(right, cells)
    return set_cell_size(cut(left, room), room) + " " + right


def graph(values: Sequence[float | None], cells: int, top: float | None = None) -> str:
    """The last values as bars, one a cell: an unknown one is a gap, zero is the lowest bar. `top` is the value of the
    highest bar, else the highest of them."""
    shown = values[-cells:] if cells > 0 else ()
    high = top or max((value for value in shown if value), default=0.0)
    return "".join(" " if value is None else _bar(value, high) for value in shown)


def _bar(value: float, high: float) -> str:
    share = min(1.0, max(0.0, value / high)) if high else 0.0
    return _BARS[min(len(_BARS) - 1, int(share * len(_BARS)))]
