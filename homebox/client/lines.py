"""How is a line made of parts that have a style and a width, and which part gives way where there is no room?

A line is a tuple of spans: text, and the name of a style that a screen may turn into a colour; who writes plain text
leaves the names away. Widths are terminal cells. Pure, and of no screen library: the same lines are the monitor's
screen and the text of `top --once`.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace

from homebox.client.sanitise import clean

Span = tuple[str, str]
Line = tuple[Span, ...]


@dataclass(frozen=True)
class Glyphs:
    """`levels`: from the lowest to the full mark of a graph's cell."""

    full: str
    empty: str
    levels: str
    rule: str
    wall: str
    cached: str
    free: str
    falling: str
    rising: str
    open: str = "["
    close: str = "]"
    shared: str = "+"
    leaving: str = "-"


ASCII = Glyphs("#", ".", ".:|", "-", "|", "~", ".", "v", "^")
UNICODE = Glyphs("█", "░", "▁▂▃▄▅▆▇█", "─", "│", "▒", "·", "▼", "▲", "", "")


def plain(line: Line) -> str:
    return "".join(text for text, _ in line)


def width(text: str) -> int:
    """Cells of a terminal."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.category(char) in ("Mn", "Me", "Cf") else
        1 + (unicodedata.east_asian_width(char) in "WF")
        for char in text
    )  # fmt: skip


def inline(text: str) -> str:
    """Words that came from elsewhere, fit to stand within a line."""
    return " ".join(clean(text).split())


def clip(text: str, cells: int) -> str:
    """A text that is too long ends in `~`, so that nobody takes it for the whole."""
    text = inline(text)
    if width(text) <= cells:
        return text
    kept = text[:cells]
    while kept and width(kept) > cells - 1:
        kept = kept[:-1]
    return kept + "~" if cells > 0 else ""


def pad(text: str, cells: int, *, right: bool = False) -> str:
    """Exactly so many cells; numbers stand at the right."""
    text = clip(text, cells)
    blanks = " " * (cells - width(text))
    return blanks + text if right else text + blanks


def cut(line: Line, cells: int) -> Line:
    """The line without what is beyond `cells`; what is cut off within a word is marked."""
    if width(plain(line)) <= cells:
        return line
    kept: list[Span] = []
    left = cells - 1
    for text, style in line:
        while text and width(text) > left:
            text = text[:-1]
        kept.append((text, style))
        left -= width(text)
        if left <= 0:
            break
    return (*kept, ("~", ""))


@dataclass(frozen=True)
class Part:
    """A piece of a line that stays or goes as a whole; the highest `rank` goes first."""

    spans: Line
    rank: int = 0
    gap: int = 2  # blanks before it

    @property
    def width(self) -> int:
        return self.gap + width(plain(self.spans))


def part(text: str, style: str = "", *, rank: int = 0, gap: int = 2) -> Part:
    """Blanks in it stay: it may be drawn."""
    text = clean(text).replace("\n", " ")
    return Part(((text, style),), rank, gap)


def fit(parts: Sequence[Part], cells: int, *, right: Part | None = None) -> Line:
    """The parts in their order, without those for which there is no room; `right` stands at the right edge."""
    kept = list(parts)
    room = cells - (right.width + 1 if right else 0)
    airy = [replace(each, gap=3) if each.gap == 2 else each for each in kept]
    if sum(each.width for each in airy) <= room:
        kept = airy
    while sum(each.width for each in kept) > room and (worst := max(each.rank for each in kept)):
        kept.remove(next(each for each in reversed(kept) if each.rank == worst))
    line: list[Span] = []
    for each in kept:
        line += [(" " * each.gap, ""), *each.spans]
    if right:
        blanks = cells - width(plain(tuple(line))) - width(plain(right.spans)) - 1
        if blanks > 0:
            line += [(" " * blanks, ""), *right.spans]
    return cut(tuple(line), cells)


def bar(percent: float | None, cells: int, glyphs: Glyphs, style: str = "bar") -> Line:
    """`[########....]`; all empty where the figure is unknown, which the number beside it says."""
    full = 0 if percent is None else round(min(100.0, max(0.0, percent)) / 100 * cells)
    return (
        (glyphs.open, "dim"),
        (glyphs.full * full, style),
        (glyphs.empty * (cells - full), "dim"),
        (glyphs.close, "dim"),
    )


def graph(values: Sequence[float | None], rows: int, top: float, glyphs: Glyphs) -> list[str]:
    """A column a value, the highest row first. A known value has at least the lowest mark; an unknown one is blank."""
    levels = len(glyphs.levels)
    heights = [
        0 if value is None else max(1, round(min(value / top if top > 0 else 0.0, 1.0) * rows * levels))
        for value in values
    ]
    return [
        "".join(_cell(height - row * levels, glyphs.levels) for height in heights)
        for row in reversed(range(rows))
    ]


def _cell(height: int, levels: str) -> str:
    return " " if height <= 0 else levels[min(height, len(levels)) - 1]


def nice_top(highest: float) -> float:
    """The end of an axis: 1, 1.5, 2, 3, 5 or 8 times a power of ten, not below `highest`."""
    power = 1.0
    while power * 10 <= highest:
        power *= 10
    return next((step * power for step in (1, 1.5, 2, 3, 5, 8) if step * power >= highest), 10 * power)
