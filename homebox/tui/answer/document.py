"""Which rows does a whole text have at one width?

A growing text costs what is new of it: settled blocks keep their rows, the last block takes in what it has gained, and
the unfinished line is laid out anew each time. It knows no terminal and no colours; `built` counts the rows that were
made, for those who want to know whether the work is linear.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from typing import Protocol

from homebox.tui.answer.blocks import Block, Kind
from homebox.tui.answer.fence import Fence
from homebox.tui.answer.prose import Prose
from homebox.tui.answer.rows import Look, Row
from homebox.tui.answer.scanner import PlainReader, Reader, Scanner, Tail
from homebox.tui.answer.table import Table


class Layout(Protocol):
    """A block as rows."""

    kind: Kind
    rows: list[Row]

    def resize(self, width: int) -> None: ...
    def update(self, lines: list[str], rest: str) -> int: ...


class Document:
    """Feed it text, lay it out at a width, ask for its rows."""

    def __init__(self, *, plain: bool = False, look: Look | None = None) -> None:
        self.look = look or Look()
        self.built = 0
        self.height = 0
        self._plain = plain
        self._unfolded = False
        self._reader: Reader = PlainReader() if plain else Scanner()
        self._width = 0
        self._laid: list[Layout] = []
        self._starts: list[int] = []  # the first row of each
        self._end = 0  # the row after the last of them
        self._done = False  # the last of them can grow no more
        self._tail: list[Row] = []  # rows of blocks that only the unfinished line makes
        self._is_new = True  # there is something to lay out

    @property
    def scanned(self) -> int:
        return self._reader.scanned

    def feed(self, text: str) -> None:
        self._reader.feed(text)
        self._is_new = True

    def finish(self) -> None:
        self._reader.finish()
        self._is_new = True

    def codes(self) -> list[str]:
        return [block.code for block in self._reader.blocks if block.kind is Kind.CODE]

    def fold(self, unfolded: bool) -> None:
        self._unfolded = unfolded
        self._forget()

    def restyle(self, look: Look) -> None:
        if look != self.look:
            self.look = look
            self._forget()

    def lay_out(self, width: int) -> int:
        """Rows of all that was fed. Returns the first row that is not as it was."""
        resized = width != self._width
        if resized:
            self._width = width
            self._resize()
        if not self._is_new:
            return self.height
        self._is_new = False
        blocks, tail = self._reader.blocks, self._reader.tail()
        changed: int | None = None
        for number in range(max(0, len(self._laid) - 1), len(blocks)):
            first = self._update(number, blocks[number], tail if number == len(blocks) - 1 else Tail())
            changed = first if changed is None else changed
        self._tail = []
        for block in tail.blocks:
            laid = self._layout(block)
            laid.update([], block.rest)
            self.built += len(laid.rows)
            self._tail += laid.rows
        self.height = self._end + len(self._tail)
        return 0 if resized else min(changed or 0, self.height)

    def row(self, y: int) -> Row:
        if y >= self._end:
            return self._tail[y - self._end]
        number = bisect_right(self._starts, y) - 1
        return self._laid[number].rows[y - self._starts[number]]

    def text(self) -> str:
        """All rows as they are drawn."""
        return "\n".join(self.row(y).text.rstrip() for y in range(self.height))

    def _resize(self) -> None:
        """Lay out anew what was laid out, all but the last block, which is seen to as ever."""
        for laid, block in zip(self._laid, self._reader.blocks, strict=False):
            laid.resize(self._width)
            laid.update([], block.rest)
            self.built += len(laid.rows)
        heights = [len(laid.rows) for laid in self._laid]
        self._starts = [0, *accumulate(heights)][:-1]
        self._end, self._done, self._is_new = sum(heights), False, True

    def _update(self, number: int, block: Block, tail: Tail) -> int:
        """Lay the block out, or what it has gained. Returns the first row that changed."""
        is_new = number == len(self._laid)
        if is_new:
            self._starts.append(self._end)
            self._laid.append(self._layout(block))
        elif (
            self._laid[number].kind is not block.kind
        ):  # a paragraph that has turned out to be a table or a heading
            is_new = True
            self._laid[number] = self._layout(block)
        elif self._done:
            return self._end
        laid, start = self._laid[number], self._starts[number]
        first = laid.update(tail.lines, block.rest if block.ended else tail.rest)
        self._done = block.ended
        self._end = start + len(laid.rows)
        self.built += len(laid.rows) - first
        return start if is_new else start + first

    def _layout(self, block: Block) -> Layout:
        if block.kind is Kind.CODE:
            return Fence(block, self._width, self.look, unfolded=self._unfolded)
        if block.kind is Kind.TABLE:
            return Table(block, self._width, self.look)
        return Prose(block, self._width, self.look)

    def _forget(self) -> None:
        self._laid, self._starts, self._end, self._done, self._is_new = [], [], 0, False, True
