"""How does a report look as a plot of characters? Pure.

One mark a measured point, dots between them; streams stand evenly apart, as each is twice the last.
"""

from __future__ import annotations

from itertools import pairwise, zip_longest

from homebox.bench.results import TITLES, Report, Way
from homebox.bench.series import Plot, plots
from homebox.client.lines import nice_top

ROWS = 11  # odd, so that half of the top is a row
_WIDEST = 52
_LABEL = 7  # cells of the figures at the left
_MARKS: dict[Way, str] = {"one": "─", "static": "○", "continuous": "●"}
_ASCII: dict[Way, str] = {"one": "-", "static": "o", "continuous": "*"}
_GAP = "   "


def lines(report: Report, *, cells: int, ascii: bool) -> list[str]:
    """Throughput, and latency beside it where there is room, else below."""
    throughput, latency, _ = plots(report)
    if not throughput.curves:
        return []
    marks = _ASCII if ascii else _MARKS
    beside = cells >= 2 * 36 + len(_GAP)
    each = min(_WIDEST, (cells - len(_GAP)) // 2 if beside else cells)
    left, right = (_drawn(plot, each, marks, ascii) for plot in (throughput, latency))
    shown = (
        [f"{a:{each}}{_GAP}{b}".rstrip() for a, b in zip_longest(left, right, fillvalue="")]
        if beside
        else [*left, "", *right]
    )
    key = "   ".join(f"{marks[curve.way]} {TITLES[curve.way]}" for curve in throughput.curves)
    return [*shown, "", f"{key}   (across: streams)"]


def _drawn(plot: Plot, cells: int, marks: dict[Way, str], ascii: bool) -> list[str]:
    """Title, rows with an axis, and the numbers of streams below."""
    counts, across = plot.streams, max(1, cells - _LABEL - 1)
    top = nice_top(plot.highest) if plot.highest > 0 else 1.0
    place = {count: round((number + 0.5) * across / len(counts)) for number, count in enumerate(counts)}
    grid = [[" "] * across for _ in range(ROWS)]

    def put(column: int, value: float, mark: str) -> None:
        row = ROWS - 1 - min(ROWS - 1, round(value / top * (ROWS - 1)))
        grid[row][min(across - 1, column)] = mark

    for curve in plot.curves:
        between = (
            "-" if ascii and curve.way == "one" else "─" if curve.way == "one" else "." if ascii else "·"
        )
        for (a, low), (b, high) in pairwise(curve.points):
            for column in range(place[a] + 1, place[b]):
                share = (column - place[a]) / (place[b] - place[a])
                put(column, low + share * (high - low), between)
    for curve in plot.curves:
        for count, value in curve.points:
            put(place[count], value, marks[curve.way])
    wall = "|" if ascii else "│"
    labels = {0: top, ROWS // 2: top / 2, ROWS - 1: 0.0}
    rows = [
        f"{f'{labels[i]:,.4g}' if i in labels else '':>{_LABEL}}{wall}{''.join(row)}".rstrip()
        for i, row in enumerate(grid)
    ]
    below = [" "] * (across + _LABEL + 1)
    for count, column in place.items():
        for offset, digit in enumerate(str(count)):
            at = _LABEL + 1 + column + offset - len(str(count)) // 2
            if at < len(below):
                below[at] = digit
    return [plot.title, *rows, "".join(below).rstrip()]
