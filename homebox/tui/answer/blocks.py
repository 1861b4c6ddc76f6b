"""What is a Markdown text made of?

A block is a leaf (paragraph, heading, rule, code, table) together with the quotes and list items around it: so every
item of a list is a block of its own, and only the last block of a growing text can still change. It knows no widths.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import Enum, auto

# A paragraph is kept in pieces of less than this many characters, so that little must be looked at again when a few are
# added. Pieces flow into each other on the screen; emphasis would end at a cut, so it is made where nothing is open.
PIECE = 1024

_CELL_BORDER = re.compile(r"(?<!\\)\|")


class Kind(Enum):
    PROSE = auto()
    HEADING = auto()
    RULE = auto()
    CODE = auto()
    TABLE = auto()
    PLAIN = auto()  # a text that is not Markdown at all


@dataclass(frozen=True, eq=False)
class Quote:
    """What stands in a quotation."""


@dataclass(frozen=True, eq=False)
class Item:
    """One item of a list: its `marker` as it was written, `indent` columns in; its text begins `inside` columns in."""

    marker: str
    indent: int
    inside: int


Container = Quote | Item


@dataclass(eq=False)
class Block:
    """`lines` is settled: lines of code, rows of a table, pieces of prose. `rest` is the piece of prose that grows."""

    kind: Kind
    around: tuple[Container, ...] = ()
    shared: int = 0  # so many of `around` are around the block before, too; the others begin with this block
    gap: bool = False  # an empty line before it
    level: int = 0  # of a heading
    language: str = ""  # of code: all that stands behind the fence
    fence: str = ""  # what opened the code; empty where it is only indented
    indent: int = 0  # of the fence
    aligns: tuple[str, ...] = ()  # of a table's columns: left, right or center
    lines: list[str] = field(default_factory=list)
    rest: str = ""
    ended: bool = False

    @property
    def code(self) -> str:
        return "\n".join(self.lines)

    def shadow(self) -> Block:
        """A copy that grows on its own, without what is settled."""
        return Block(
            self.kind,
            self.around,
            self.shared,
            self.gap,
            self.level,
            self.language,
            self.fence,
            self.indent,
            self.aligns,
            rest=self.rest,
        )

    def grow(self, text: str) -> None:
        """Prose goes on. Where it is cut depends on the text alone, not on how it came."""
        text = self.rest + text
        at = 0
        while len(text) - at >= PIECE:
            end = at + _cut(text[at : at + PIECE])
            self.lines.append(text[at:end])
            at = end
        self.rest = text[at:]


def cells(row: str) -> list[str]:
    """The cells of a table's row. A bar after a backslash is part of its cell."""
    row = row.strip().removeprefix("|")
    if row.endswith("|") and not row.endswith("\\|"):
        row = row[:-1]
    return [cell.strip().replace("\\|", "|") for cell in _CELL_BORDER.split(row)]


def _cut(text: str) -> int:
    """Where to cut: after the last line, else after the last word, of its second half, if no markup seems open there."""
    half = len(text) // 2
    for blank in "\n ":
        at = text.rfind(blank, half) + 1
        while at:
            if _is_balanced(text[:at]):
                return at
            at = text.rfind(blank, half, at - 1) + 1
    return text.rfind("\n", half) + 1 or text.rfind(" ", half) + 1 or len(text)


def _is_balanced(text: str) -> bool:
    even = all(text.count(mark) % 2 == 0 for mark in ("*", "**", "`", "~~"))
    return even and text.count("[") == text.count("]") and text.count("(") == text.count(")")
