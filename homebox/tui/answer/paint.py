"""How does a row become cells of a terminal with their styles?"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

from homebox.tui.answer.rows import Row

StyleOf = Callable[[tuple[str, ...]], Style]


def paint(row: Row, width: int, style_of: StyleOf) -> Strip:
    """The row, filled up with blanks to the width. `style_of` tells the style of some names, the later on top."""
    segments = [Segment(piece.text, style_of((piece.style,))) for piece in row.lead]
    segments += _body(row, style_of)
    closing = [Segment(piece.text, style_of((piece.style,))) for piece in row.close]
    used = sum(cell_len(segment.text) for segment in segments + closing)
    if used < width:
        segments.append(Segment(" " * (width - used), style_of(())))
    return Strip(segments + closing, max(used, width)).crop(0, width)


def _body(row: Row, style_of: StyleOf) -> list[Segment]:
    """The text cut where its style changes."""
    start, end, plain = row.start, row.end, row.body.plain
    spans = [span for span in row.body.spans if span.start < end and span.end > start]
    if not spans:
        return [Segment(plain[start:end], style_of(()))] if end > start else []
    borders = {start, end}
    for span in spans:
        borders.update((max(start, span.start), min(end, span.end)))
    places = sorted(borders)
    return [
        Segment(
            plain[at:to], style_of(tuple(span.style for span in spans if span.start <= at and span.end >= to))
        )
        for at, to in pairwise(places)
    ]
