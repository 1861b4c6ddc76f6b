"""How does code become a box of a width?

The border says the language and the key that copies. Lines are broken at the cell, blanks and all. Code of more than
400 lines is folded to its end until somebody wants to see it. Rows of finished lines never change while it grows.
"""

from __future__ import annotations

from homebox.tui.answer.blocks import Block
from homebox.tui.answer.code import Highlighter
from homebox.tui.answer.inline import shown
from homebox.tui.answer.rows import Look, Piece, Row, Span, Styled, cells, gap_row, leads
from homebox.tui.answer.wrap import fold

FOLD_ABOVE = 400  # lines
FOLDED_TO = 40  # lines that stay in sight
_NARROWEST = 12  # cells for a box


class _Line:
    """A finished line of code, whose colours are found once it is drawn."""

    __slots__ = ("_highlighter", "_number", "plain")

    def __init__(self, plain: str, highlighter: Highlighter, number: int) -> None:
        self.plain, self._highlighter, self._number = plain, highlighter, number

    @property
    def spans(self) -> tuple[Span, ...]:
        return self._highlighter.spans(self._number)


class Fence:
    """As `prose.Prose`. `unfolded` is set from outside."""

    def __init__(self, block: Block, width: int, look: Look, *, unfolded: bool) -> None:
        self.block = block
        self.kind = block.kind
        self._look = look
        self._unfolded = unfolded
        self._lines: list[str] = []  # as they are drawn
        self._highlighter = Highlighter(block.language, self._lines)
        self.resize(width)

    def resize(self, width: int) -> None:
        self._lead = leads(self.block, width, self._look)
        self._room = width - self._lead.width
        self._boxed = self._room >= _NARROWEST
        side = self._look.box[5]
        self._left = (Piece(f"{side} ", "frame"),) if self._boxed else ()
        self._right = (Piece(f" {side}", "frame"),) if self._boxed else ()
        self._width = self._room - 4 if self._boxed else max(1, self._room)
        self._drawn = 0  # lines that are rows
        self.rows: list[Row] = self._top()
        self.settled = len(self.rows)

    def update(self, lines: list[str], rest: str) -> int:
        kept = self.settled
        del self.rows[kept:]
        for line in self.block.lines[len(self._lines) :]:
            self._lines.append(shown(line))
        if self._folds:
            kept = 0
            self._fold()
        else:
            for number in range(self._drawn, len(self._lines)):
                self._add(number)
        self._drawn = len(self._lines)
        self.settled = len(self.rows)
        for line in lines:
            text = shown(line)
            self._draw(Styled(text, self._highlighter.growing(text)))
        if self._boxed:
            left, right, line = self._look.box[2], self._look.box[3], self._look.box[4]
            self._frame(f"{left}{line * (self._room - 2)}{right}", framed=True)
        if self.block.ended and not self._highlighter.closed:
            self._highlighter.closed = True
            return 0
        return kept

    @property
    def _folds(self) -> bool:
        return len(self._lines) > FOLD_ABOVE and not self._unfolded

    def _fold(self) -> None:
        """Draw the border, how much is folded away, and the last lines."""
        folded = len(self._lines) - FOLDED_TO
        self.rows[:] = self._top()
        said = f"{folded} lines folded   {self._look.fold_hint}"[: self._width]
        self._draw(Styled(said, (Span(0, len(said), "label"),)), framed=True)
        for number in range(folded, len(self._lines)):
            self._add(number)

    def _add(self, number: int) -> None:
        self._draw(_Line(self._lines[number], self._highlighter, number))

    def _draw(self, body: Styled | _Line, *, framed: bool = False) -> None:
        for start, end, joined in fold(body.plain, self._width):
            lead = self._lead.others if self.rows else self._lead.first
            self.rows.append(Row(lead + self._left, body, start, end, self._right, joined, framed))

    def _top(self) -> list[Row]:
        rows = gap_row(self.block, self._lead)
        if self._boxed:
            left, right, line = self._look.box[0], self._look.box[1], self._look.box[4]
            title = f" {shown(self.block.language)} " if self.block.language else ""
            hint = f" {self._look.copy_hint} "
            room = self._room - 4 - cells(title)
            if room < 0:
                title, room = "", self._room - 4
            if room < cells(hint) + 1:
                hint = ""
            text = f"{left}{line}{title}{line * (room - cells(hint))}{hint}{line}{right}"
            at, end = 2 + len(title), len(text) - 2
            spans = (
                Span(0, len(text), "frame"),
                Span(2, at, "label"),
                Span(end - len(hint), end, "label"),
            )
            rows.append(Row(self._lead.first, Styled(text, spans), 0, len(text), framed=True))
        return rows

    def _frame(self, text: str, *, framed: bool) -> None:
        body = Styled(text, (Span(0, len(text), "frame"),))
        self.rows.append(Row(self._lead.others, body, 0, len(text), framed=framed))
