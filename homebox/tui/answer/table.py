"""How does a table become rows of a width?

Each column is as wide as its widest cell; where that is too much the wide ones share what the narrow ones leave, and
cells are wrapped. Where even that leaves too little for a word, each row is told as `header: value` lines. A growing
table is laid out anew only when a column changes its width; a row of which only a part has come changes none.
"""

from __future__ import annotations

from itertools import zip_longest

from homebox.tui.answer.blocks import Block
from homebox.tui.answer.blocks import cells as cells_of
from homebox.tui.answer.inline import inline
from homebox.tui.answer.rows import EMPTY, Look, Row, Span, Styled, cells, gap_row, leads
from homebox.tui.answer.wrap import wrap

NARROWEST = 8  # cells of a column that had to be cut

_Cells = list[Styled]


class Table:
    """As `prose.Prose`."""

    def __init__(self, block: Block, width: int, look: Look) -> None:
        self.block = block
        self.kind = block.kind
        self._look = look
        self._parsed: list[_Cells] = []
        self.resize(width)

    def resize(self, width: int) -> None:
        self._lead = leads(self.block, width, self._look)
        self._room = max(1, width - self._lead.width)
        self._natural = [0] * len(self.block.aligns)
        self._measured = 0  # rows of the table that have a say in `_natural`
        self._columns: list[int] | None = None  # None: told as lines
        self._drawn = 0  # rows of the table that are rows of the screen
        self.rows: list[Row] = gap_row(self.block, self._lead)
        self._gap = self.settled = len(self.rows)

    def update(self, lines: list[str], rest: str) -> int:
        for line in self.block.lines[len(self._parsed) :]:
            self._parsed.append(self._parse(line))
        for row in self._parsed[self._measured :]:
            self._natural = [
                min(self._room, max(width, cells(cell.plain)))
                for width, cell in zip(self._natural, row, strict=False)
            ]
        self._measured = len(self._parsed)
        columns = fit(self._natural, self._room - 3 * len(self._natural) + 1)
        if columns != self._columns or not self._drawn:
            self._columns, self._drawn, self.settled = columns, 0, self._gap
        kept = self.settled
        del self.rows[kept:]
        for number in range(self._drawn, len(self._parsed)):
            self._draw(number, self._parsed[number])
        if columns or len(self._parsed) > 1:  # a head alone is drawn anew: with its rows it is told otherwise
            self._drawn = len(self._parsed)
            self.settled = len(self.rows)
        for line in lines:
            self._draw(len(self._parsed), self._parse(line))
        return kept

    def _parse(self, line: str) -> _Cells:
        """As many cells as there are columns, or more where the row has more: nothing is lost."""
        row = [inline(cell, marks=self._look.marks) for cell in cells_of(line)]
        missing = len(self._natural) - len(row)
        if missing < 0:  # what is too much goes to the last column
            last = row[len(self._natural) - 1]
            for extra in row[len(self._natural) :]:
                last = last.then(Styled(" | ")).then(extra)
            row = [*row[: len(self._natural) - 1], last]
        return row + [EMPTY] * missing

    def _draw(self, number: int, row: _Cells) -> None:
        if self._columns is None:
            if number:
                self._tell(number, row)
            elif len(self._parsed) == 1:
                for cell in row:
                    self._wrapped(_all(cell, "strong"))
            return
        head = number == 0
        parts = [wrap(cell.plain, width) for cell, width in zip(row, self._columns, strict=True)]
        for line in zip_longest(*parts):
            self._add(
                self._line(
                    [
                        (cell.cut(part.start, part.end) if part else EMPTY)
                        for cell, part in zip(row, line, strict=True)
                    ],
                    head,
                )
            )
        if head:
            look = self._look.box
            text = look[6].join(look[4] * (width + 2) for width in self._columns)
            self._add(Styled(text, (Span(0, len(text), "frame"),)), framed=True)

    def _line(self, row: _Cells, head: bool) -> Styled:
        """One row of the screen: the cells, aligned in their columns."""
        side = f" {self._look.box[5]} "
        line = Styled(" ")
        for number, (cell, width) in enumerate(zip(row, self._columns or [], strict=True)):
            if number:
                line = line.then(Styled(side, (Span(0, len(side), "frame"),)))
            blanks = width - cells(cell.plain)
            left = {"left": 0, "right": blanks, "center": blanks // 2}[self.block.aligns[number]]
            if head:
                cell = _all(cell, "strong")
            line = line.then(Styled(" " * left).then(cell)).then(Styled(" " * (blanks - left)))
        return line

    def _tell(self, number: int, row: _Cells) -> None:
        if number > 1:
            self._add(EMPTY)
        for name, cell in zip(self._parsed[0], row, strict=True):
            self._wrapped(_all(name, "strong").then(Styled(": " if name.plain else "")).then(cell))

    def _wrapped(self, body: Styled) -> None:
        for start, end, joined in wrap(body.plain, self._room):
            self._add(body.cut(start, end), joined=joined)

    def _add(self, body: Styled, *, joined: str | None = None, framed: bool = False) -> None:
        lead = self._lead.others if len(self.rows) > self._gap else self._lead.first
        self.rows.append(Row(lead, body, 0, len(body.plain), joined=joined, framed=framed))


def fit(natural: list[int], room: int) -> list[int] | None:
    """The widths of the columns: as they are, else with the wide ones cut to one width. None: there is no room."""
    if sum(natural) <= room:
        return natural
    left, columns = room, len(natural)
    cap = 0
    for width in sorted(natural):
        cap = left // columns
        if width > cap:
            break
        left -= width
        columns -= 1
    return [min(width, cap) for width in natural] if cap >= NARROWEST else None


def _all(cell: Styled, style: str) -> Styled:
    return Styled(cell.plain, (Span(0, len(cell.plain), style), *cell.spans))
