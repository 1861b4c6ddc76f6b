"""How do a paragraph, a heading, a rule and a text that is not Markdown become rows of a width?

Prose is wrapped piece by piece: rows of settled pieces stay, the last row of one is where the next goes on, so that a
growing paragraph costs the same at its end as at its beginning and still breaks as if it had come at once.
"""

from __future__ import annotations

from homebox.tui.answer.blocks import Block, Kind
from homebox.tui.answer.inline import completed, inline, shown
from homebox.tui.answer.rows import EMPTY, Look, Row, Span, Styled, gap_row, leads
from homebox.tui.answer.wrap import Break, wrap


class Prose:
    """`rows` of the block; those before `settled` never change."""

    def __init__(self, block: Block, width: int, look: Look) -> None:
        self.block = block
        self.kind = block.kind
        self._look = look
        self._parsed: list[Styled] = []  # the settled pieces
        self._parsed_rest = ("", EMPTY)
        self.resize(width)

    def resize(self, width: int) -> None:
        """Begin anew with another width; `update` makes the rows."""
        self._lead = leads(self.block, width, self._look)
        self._width = max(1, width - self._lead.width)
        self.rows: list[Row] = gap_row(self.block, self._lead)
        self._gap = self.settled = len(self.rows)
        self._taken = 0  # pieces that are rows
        self._carry = EMPTY  # the last row of these, where the next piece goes on
        self._joined: str | None = None  # what stands before that row

    def update(self, lines: list[str], rest: str) -> int:
        """Take in what the block has gained, and `rest` as its end for now. Returns the first row that changed."""
        kept = self.settled
        del self.rows[kept:]
        for piece in self.block.lines[len(self._parsed) :]:
            self._parsed.append(self._styled(piece))
        for styled in self._parsed[self._taken :]:
            body, last = self._flow(styled)
            self.rows.pop()
            self._carry, self._joined = body.cut(last.start, len(body.plain)), last.joined
            self._taken += 1
        self.settled = len(self.rows)
        if self.block.kind is Kind.RULE:
            line = self._look.box[4] * self._width
            self._add(Styled(line, (Span(0, len(line), "frame"),)), Break(0, len(line), None))
        else:
            rest = self._last(rest)
            if rest != self._parsed_rest[0]:
                self._parsed_rest = (rest, self._styled(rest))
            self._flow(self._parsed_rest[1])
        return kept

    def _last(self, rest: str) -> str:
        if self.block.kind is Kind.PLAIN:
            return rest.rstrip("\n")
        return rest if self.block.ended else completed(rest)

    def _flow(self, styled: Styled) -> tuple[Styled, Break]:
        """Rows of what was carried over and this piece. Returns the last of them."""
        body = self._carry.then(styled)
        for number, place in enumerate(wrap(body.plain, self._width)):
            last = place if number else place._replace(joined=self._joined)
            self._add(body, last)
        return body, last

    def _styled(self, text: str) -> Styled:
        if self.block.kind is Kind.PLAIN:
            return Styled(shown(text))
        styled = inline(text, marks=self._look.marks)
        if self.block.kind is Kind.HEADING:
            plain, spans = Styled("#" * self.block.level + " ").then(styled)
            return Styled(plain, (Span(0, len(plain), "heading"), *spans))
        return styled

    def _add(self, body: Styled, place: Break) -> None:
        lead = self._lead.others if len(self.rows) > self._gap else self._lead.first
        self.rows.append(Row(lead, body, place.start, place.end, joined=place.joined))
