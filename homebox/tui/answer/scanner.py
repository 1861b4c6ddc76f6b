"""Which blocks does a growing text consist of, and from where on may it still change?

Markdown is read line by line, each line once: the work is linear however the text arrives, and the blocks depend on the
text alone. Everything but the last block is settled. It is CommonMark with tables, and: a line break stays one, HTML
and links by reference are text, a nested list keeps the indent it was written with. It knows no widths and no colours.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Protocol

from homebox.tui.answer.blocks import Block, Container, Item, Kind, Quote, cells

LONG = 2048  # characters of a line whose end is not waited for
MAX_DEPTH = 16  # quotes and items in each other; deeper marks are text

_QUOTE = re.compile(r"> ?")
_HEADING = re.compile(r"(#{1,6})(?:[ \t]+|$)")
_HEADING_END = re.compile(r"(?:^|[ \t])#+[ \t]*$")
_FENCE = re.compile(r"(`{3,})([^`]*)$|(~{3,})(.*)$")
_RULE = re.compile(r"([-*_])(?:[ \t]*\1){2,}[ \t]*$")
_ITEM = re.compile(r"([-+*]|\d{1,9}[.)])(?=[ \t]|$)")
_UNDERLINE = re.compile(r"(=+|-+)[ \t]*$")
_DELIMITERS = re.compile(r"[-:| \t]+$")
_DELIMITER = re.compile(r":?-+:?$")

# An unfinished last line waits while it may still become something else: `-`, `1.`, `**`, "```py".
_MARKS = "-+*_=#>|:~` \t"
_NUMBER = re.compile(r"\d{1,9}[.)]?[ \t]*$")
_OPENS_FENCE = re.compile(r"[-+*>\d.) \t]*(?:```|~~~)")


@dataclass
class Tail:
    """What the unfinished last line would add if it ended here: to the last block, and as blocks after it."""

    lines: list[str] = field(default_factory=list)
    rest: str = ""
    blocks: list[Block] = field(default_factory=list)


class Reader(Protocol):
    """What reads a growing text. `scanned` counts the characters that were looked at."""

    blocks: list[Block]
    scanned: int

    def feed(self, text: str) -> None: ...
    def finish(self) -> None: ...
    def tail(self) -> Tail: ...


class PlainReader:
    """Reads a text that is not Markdown: what a person typed, what a model thinks. One block, nothing interpreted."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self.scanned = 0

    def feed(self, text: str) -> None:
        self.scanned += len(text)
        if not self.blocks:
            self.blocks.append(Block(Kind.PLAIN))
        self.blocks[0].grow(text)

    def finish(self) -> None:
        for block in self.blocks:
            block.ended = True

    def tail(self) -> Tail:
        return Tail(rest=self.blocks[0].rest if self.blocks else "")


class Scanner:
    """Reads Markdown. Feed it the text in any pieces; `blocks` grows, and `tail` is what is not yet a line."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self.scanned = 0
        self._around: tuple[Container, ...] = ()
        self._leaf: Block | None = None  # the last block, while it can grow
        self._before: Block | None = None  # of a fork: the block before its first
        self._has_pieces = False  # of a fork: its leaf has pieces of prose, though it does not hold them
        self._gap = False
        self._blank_code_lines = 0
        self._line: list[str] = []  # the unfinished line, in the parts in which it came
        self._length = 0  # of the unfinished line
        self._in_long = False  # the beginning of the line has gone to its paragraph
        self._is_code = False  # the line is long, and code, which is taken in whole lines

    def feed(self, text: str) -> None:
        self.scanned += len(text)
        *lines, rest = text.split("\n")
        for line in lines:
            self._end_line(line)
        self._line.append(rest)
        self._length += len(rest)
        if self._length >= LONG and not self._is_code:
            self._take_unfinished()

    def finish(self) -> None:
        """No more text comes: the last line is one, and everything is settled."""
        if self._length:
            self._end_line("")
        self._end_leaf()
        self._close(0)

    def tail(self) -> Tail:
        head = self._head()
        leaf_rest = self._leaf.rest if self._leaf else ""
        if self._in_long:
            return Tail(rest=leaf_rest + head)
        if not head or self._is_undecided(head):
            return Tail(rest=leaf_rest)
        self.scanned += len(head)
        fork = self._fork()
        fork._take(head)
        if not self._leaf:
            return Tail(blocks=fork.blocks)
        leaf, *blocks = fork.blocks
        if leaf.kind is Kind.PROSE:
            return Tail(rest="".join(leaf.lines) + leaf.rest, blocks=blocks)
        return Tail(lines=leaf.lines, blocks=blocks)

    def _head(self) -> str:
        """The unfinished line, or of a very long one its beginning."""
        if self._length > LONG and len(self._line[0]) < LONG:
            self._line = ["".join(self._line)]
        return self._line[0][:LONG] if self._length > LONG else "".join(self._line)

    def _is_undecided(self, head: str) -> bool:
        if self._leaf and self._leaf.fence:
            return not head.strip().strip(self._leaf.fence[0])
        rest = head.lstrip(_MARKS)
        return not rest or bool(_NUMBER.match(rest)) or bool(_OPENS_FENCE.match(head))

    def _fork(self) -> Scanner:
        """A scanner in this state that reads on by itself. It costs the same however much was read."""
        fork = Scanner()
        fork._around, fork._gap = self._around, self._gap
        fork._blank_code_lines = self._blank_code_lines
        fork._before = self.blocks[-1] if self.blocks else None
        if self._leaf:
            fork._leaf = self._leaf.shadow()
            fork._has_pieces = bool(self._leaf.lines)
            fork.blocks.append(fork._leaf)
        return fork

    def _end_line(self, line: str) -> None:
        if self._line:
            self._line.append(line)
            line = "".join(self._line)
            self._line, self._length = [], 0
        line = line.removesuffix("\r")
        if self._in_long:
            self._prose().grow(line)
        else:
            self._take(line)
        self._in_long = self._is_code = False

    def _take_unfinished(self) -> None:
        """Do not wait for the end of a long line, unless it is code. What it begins is decided by its beginning."""
        text = "".join(self._line)
        if self._in_long:
            self._prose().grow(text)
        else:
            fork = self._fork()
            fork._take(text[:LONG])
            self._is_code = fork._leaf is not None and fork._leaf.kind is Kind.CODE
            if self._is_code:
                return
            self._take(text)
            self._in_long = True
        self._line, self._length = [], 0

    def _take(self, line: str) -> None:
        """One line: which containers go on, what begins in them, and what is left for the leaf."""
        head, beyond = line[:LONG], line[LONG:]
        long = len(head) == LONG
        depth, text = self._matched(head)
        whole = depth == len(self._around)
        leaf = self._leaf
        if whole and leaf and leaf.kind is Kind.CODE and self._take_code(leaf, text + beyond):
            return
        if not _indent(text)[1] and not long:
            self._end_leaf()
            self._close(depth)
            self._gap = True
            return
        inside = self._begin_containers(depth, text, whole, long)
        if inside is not None:
            if not _indent(inside)[1] and not long:
                return
            text = inside
        elif not whole:
            if self._leaf and self._leaf.kind is Kind.PROSE and (long or not _begins_leaf(text)):
                self._take_prose(
                    text.lstrip(" \t") + beyond
                )  # it goes on, though its quote or item was not marked
                return
            self._end_leaf()
            self._close(depth)
        if long or not self._begin_leaf(text):
            self._take_prose(text.lstrip(" \t") + beyond)

    def _matched(self, line: str) -> tuple[int, str]:
        """How many of the open containers this line belongs to, and what follows their marks."""
        text = line
        for depth, container in enumerate(self._around):
            indent, body = _indent(text)
            if isinstance(container, Quote):
                if indent > 3 or not (mark := _QUOTE.match(body)):
                    return depth, text
                text = body[mark.end() :]
            elif body and indent < container.inside:
                return depth, text
            elif body:
                text = _dedent(text, container.inside)
            elif not self._has_content(depth):
                return depth, text
        return len(self._around), text

    def _begin_containers(self, depth: int, text: str, whole: bool, long: bool) -> str | None:
        """Open the quotes and items that begin here. What is left of the line, or None if there were none."""
        began = False
        while len(self._around) < MAX_DEPTH or (not began and depth < MAX_DEPTH):
            indent, body = _indent(text)
            goes_on = whole and not began
            if indent > 3 or not body or (not long and self._is_line(body, goes_on)):
                break
            container: Container
            if mark := _QUOTE.match(body):
                container, text = Quote(), body[mark.end() :]
            elif (item := _ITEM.match(body)) and not (goes_on and self._may_not_interrupt(item)):
                marker = item[1]
                after, rest = _indent(body[item.end() :])
                space = 1 if not rest or after > 4 else after
                container = Item(marker, indent, indent + len(marker) + space)
                text = " " * (after - space) + rest
            else:
                break
            if not began:
                self._end_leaf()
                self._close(depth)
            self._around += (container,)
            began = True
        return text if began else None

    def _is_line(self, body: str, goes_on: bool) -> bool:
        """`* * *` and what underlines a heading are no items."""
        return bool(_RULE.match(body)) or (goes_on and self._may_convert() and bool(_UNDERLINE.match(body)))

    def _may_convert(self) -> bool:
        """May the open block still turn out to be a heading, or its last line the head of a table?"""
        leaf = self._leaf
        return leaf is not None and leaf.kind is Kind.PROSE and not leaf.lines and not self._has_pieces

    def _may_not_interrupt(self, item: re.Match[str]) -> bool:
        """An empty item, and one that is not the first, do not end a paragraph: `in the year\n1999.`"""
        if not self._leaf or self._leaf.kind is not Kind.PROSE:
            return False
        empty = not item.string[item.end() :].strip()
        return empty or (item[1][0].isdigit() and item[1][:-1] != "1")

    def _take_code(self, leaf: Block, text: str) -> bool:
        """True if the open code takes the line. Code that is only indented ends where something else begins."""
        indent, body = _indent(text)
        if leaf.fence:
            body = body.rstrip()
            if indent <= 3 and len(body) >= len(leaf.fence) and not body.strip(leaf.fence[0]):
                self._end_leaf()
            else:
                leaf.lines.append(_dedent(text, leaf.indent))
            return True
        if not body:
            self._blank_code_lines += 1
            return True
        if indent < 4:
            self._end_leaf()
            return False
        leaf.lines += [""] * self._blank_code_lines + [_dedent(text, 4)]
        self._blank_code_lines = 0
        return True

    def _begin_leaf(self, text: str) -> bool:
        """Heading, rule, code or table begins, or the open table gets a row. False if it is prose."""
        indent, body = _indent(text)
        leaf = self._leaf
        if leaf and leaf.kind is Kind.TABLE and not _begins_leaf(text):
            leaf.lines.append(body)
            return True
        if indent > 3:
            if leaf:
                return False
            self._start(Block(Kind.CODE, lines=[_dedent(text, 4)]))
            return True
        if leaf and self._may_convert() and (self._underline(leaf, body) or self._begin_table(leaf, body)):
            return True
        if mark := _HEADING.match(body):
            title = _HEADING_END.sub("", body[mark.end() :]).strip()
            self._start(Block(Kind.HEADING, level=len(mark[1]), rest=title))
            self._end_leaf()
        elif mark := _FENCE.match(body):
            language = (mark[2] or mark[4] or "").strip()
            self._start(Block(Kind.CODE, language=language, fence=mark[1] or mark[3], indent=indent))
        elif _RULE.match(body):
            self._start(Block(Kind.RULE))
            self._end_leaf()
        else:
            return False
        return True

    def _underline(self, leaf: Block, body: str) -> bool:
        if not (mark := _UNDERLINE.match(body)):
            return False
        leaf.kind, leaf.level = Kind.HEADING, 1 if mark[1][0] == "=" else 2
        self._end_leaf()
        return True

    def _begin_table(self, leaf: Block, body: str) -> bool:
        """The last line of the paragraph is a table's head if this line says how to align as many columns."""
        before, _, head = leaf.rest.rpartition("\n")
        if "-" not in body or "|" not in head + body or not _DELIMITERS.match(body):
            return False
        borders = cells(body)
        if len(cells(head)) != len(borders) or not all(_DELIMITER.match(cell) for cell in borders):
            return False
        aligns = tuple(_align(cell) for cell in borders)
        if before:
            leaf.rest = before
            self._start(Block(Kind.TABLE, aligns=aligns, lines=[head]))
        else:
            leaf.kind, leaf.rest, leaf.aligns, leaf.lines = Kind.TABLE, "", aligns, [head]
        return True

    def _prose(self) -> Block:
        """The open paragraph; a new one if there is none."""
        if self._leaf is None or self._leaf.kind is not Kind.PROSE:
            return self._start(Block(Kind.PROSE))
        return self._leaf

    def _take_prose(self, text: str) -> None:
        before = self._leaf
        leaf = self._prose()
        leaf.grow("\n" + text if leaf is before else text)

    def _start(self, block: Block) -> Block:
        """`block` is what can grow now. It stands in the containers that are open."""
        self._end_leaf()
        last = self._last()
        block.around = self._around
        block.shared = _shared(last.around, block.around) if last else 0
        block.gap = self._gap and last is not None
        self._gap = False
        self.blocks.append(block)
        self._leaf = block
        return block

    def _end_leaf(self) -> None:
        if self._leaf:
            self._leaf.ended = True
        if self._blank_code_lines:
            self._gap = True
        self._leaf, self._blank_code_lines, self._has_pieces = None, 0, False

    def _close(self, depth: int) -> None:
        """End the containers deeper than `depth`. An item in which nothing stood becomes an empty paragraph."""
        for at in reversed(range(depth, len(self._around))):
            if isinstance(self._around[at], Item) and not self._has_content(at):
                self._start(Block(Kind.PROSE))
                self._end_leaf()
            self._around = self._around[:at]

    def _last(self) -> Block | None:
        return self.blocks[-1] if self.blocks else self._before

    def _has_content(self, depth: int) -> bool:
        last = self._last()
        return last is not None and len(last.around) > depth and last.around[depth] is self._around[depth]


def _indent(text: str) -> tuple[int, str]:
    """How many columns in the text begins, and the text from there on. Tabs stop at every fourth column."""
    body = text.lstrip(" \t")
    lead = text[: len(text) - len(body)]
    return len(lead.expandtabs(4)), body


def _dedent(text: str, columns: int) -> str:
    """The text without so many columns of the blanks it begins with."""
    body = text.lstrip(" \t")
    lead = text[: len(text) - len(body)]
    if "\t" in lead[:columns]:
        lead = lead.expandtabs(4)
    return lead[columns:] + body


def _begins_leaf(text: str) -> bool:
    """Does this line end a paragraph or a table by what it begins?"""
    indent, body = _indent(text)
    return indent <= 3 and bool(_HEADING.match(body) or _FENCE.match(body) or _RULE.match(body))


def _align(border: str) -> str:
    if border.endswith(":"):
        return "center" if border.startswith(":") else "right"
    return "left"


def _shared(before: tuple[Container, ...], now: tuple[Container, ...]) -> int:
    count = 0
    for one, other in zip(before, now, strict=False):
        if one is not other:
            break
        count += 1
    return count
