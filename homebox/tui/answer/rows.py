"""What is one row of an answer on the screen?

A row is a lead (quote bars, the marker of an item, the border of a box), a part of a styled text, and what closes it at
the right. Styles are names; the widget knows their colours. The lead and the frame are not copied when text is selected
with the mouse, and a row that only continues the one before is joined with it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from rich.cells import cell_len

from homebox.tui.answer.blocks import Block, Quote


class Span(NamedTuple):
    start: int
    end: int
    style: str


class Body(Protocol):
    """A text and where it has which style; where styles overlap the later one is on top."""

    @property
    def plain(self) -> str: ...
    @property
    def spans(self) -> tuple[Span, ...]: ...


class Styled(NamedTuple):
    plain: str
    spans: tuple[Span, ...] = ()

    def cut(self, start: int, end: int) -> Styled:
        return Styled(
            self.plain[start:end],
            tuple(
                Span(max(span.start, start) - start, min(span.end, end) - start, span.style)
                for span in self.spans
                if span.end > start and span.start < end
            ),
        )

    def then(self, other: Styled) -> Styled:
        if not self.plain:
            return other
        at = len(self.plain)
        return Styled(self.plain + other.plain, self.spans + _moved(other.spans, at))


class Piece(NamedTuple):
    text: str
    style: str
    copied: bool = False


@dataclass(slots=True)
class Row:
    """`joined` is None where a line of its own begins, else what stands between this row and the one before."""

    lead: tuple[Piece, ...]
    body: Body
    start: int
    end: int
    close: tuple[Piece, ...] = ()
    joined: str | None = None
    framed: bool = False  # the body is frame as well: a border, a hint

    @property
    def text(self) -> str:
        """As it is drawn, without the blanks before what closes it."""
        parts = [piece.text for piece in self.lead]
        parts.append(self.body.plain[self.start : self.end])
        parts += [piece.text for piece in self.close]
        return "".join(parts)

    @property
    def copied(self) -> tuple[int, int]:
        """From which character of `text` to which it is copied."""
        frame = 0
        at = 0
        for piece in self.lead:
            at += len(piece.text)
            if not piece.copied:
                frame = at
        return frame, at if self.framed else at + self.end - self.start


@dataclass(frozen=True)
class Look:
    """How a document is drawn, whatever its colours."""

    ascii: bool = False
    marks: bool = False  # keep the backticks of code inside a line: there are no colours to tell it by
    copy_hint: str = "Y: copy code"
    fold_hint: str = "space: unfold"

    @property
    def bullet(self) -> str:
        return "-" if self.ascii else "•"

    @property
    def bar(self) -> str:
        return "|" if self.ascii else "▎"

    @property
    def box(self) -> str:
        """Corners, line, side and cross."""
        return "++++-|+" if self.ascii else "╭╮╰╯─│┼"


class Leads(NamedTuple):
    """What stands left of a block: of the empty line before it, of its first row, of its others."""

    gap: tuple[Piece, ...]
    first: tuple[Piece, ...]
    others: tuple[Piece, ...]
    width: int


def leads(block: Block, width: int, look: Look) -> Leads:
    """Outer marks go where there is no room: half of the width is for the text."""
    first: list[Piece] = []
    others: list[Piece] = []
    gap: list[Piece] = []
    for at, container in enumerate(block.around):
        if isinstance(container, Quote):
            mark = blank = Piece(f"{look.bar} ", "bar")
        else:
            marker = look.bullet if container.marker in "-+*" else container.marker
            text = f"{' ' * container.indent}{marker} "
            blank = Piece(" " * len(text), "marker", True)
            mark = blank if at < block.shared else Piece(text, "marker", True)
        first.append(mark)
        others.append(blank)
        if at < block.shared:
            gap.append(blank)
    while others and sum(len(piece.text) for piece in others) > width // 2:
        del first[0], others[0], gap[:1]
    used = sum(len(piece.text) for piece in others)
    return Leads(tuple(gap), tuple(first), tuple(others), used)


EMPTY = Styled("")


def selected(row: Row, span: tuple[int, int]) -> tuple[int, int]:
    """The part of the row from one character to another, -1 for its end, that may be copied."""
    first, last = row.copied
    start, end = span
    return max(first, start), last if end == -1 else min(last, end)


def copied_text(selection: Iterable[tuple[Row, tuple[int, int]]]) -> str:
    """Parts of rows as text: without frames, and lines that were only broken for the width in one piece."""
    parts: list[str] = []
    for row, span in selection:
        start, end = selected(row, span)
        if row.framed and start >= end:
            continue
        if parts and row.joined is not None:
            lead = sum(len(piece.text) for piece in row.lead)
            parts.append(row.joined + row.text[max(start, lead) : end])
        else:
            parts.append(("\n" if parts else "") + row.text[start:end].rstrip())
    return "".join(parts)


def gap_row(block: Block, lead: Leads) -> list[Row]:
    return [Row(lead.gap, EMPTY, 0, 0)] if block.gap else []


def cells(text: str) -> int:
    return cell_len(text)


def _moved(spans: tuple[Span, ...], by: int) -> tuple[Span, ...]:
    return tuple(Span(start + by, end + by, style) for start, end, style in spans)
