"""What has been put together in the prompt, and what does it become when it goes out?

A long paste is folded: in the typed text one character, its mark, stands for it, and a chip shows it. So order is never
lost, the cursor passes it as one character, and a megabyte costs nothing to type around. Attached files come below the
words. Pure: it knows no widgets and reads no files.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, auto

from homebox.client import documents
from homebox.client.documents import Document
from homebox.client.sanitise import Sanitiser

FOLDED_LINES = 20  # a paste of more lines than this is folded
FOLDED_CHARACTERS = 2000  # or of more characters
LONG_LINES = 500  # a draft of more than this is folded, too: it could not be edited with pleasure
LONG_CHARACTERS = 20_000
# Marks are characters of the last private plane: one cell wide, of no font, on no keyboard.
_FIRST_MARK, _LAST_MARK = 0x10F000, 0x10FFFD
_marks = re.compile(f"[{chr(_FIRST_MARK)}-{chr(_LAST_MARK)}]")
_GLYPHS = "123456789abcdefghijklmnopqrstuvwxyz"
_PIECE = 4096
_OTHER_BREAKS = re.compile("\r\n?|[\u2028\u2029]")


@dataclass(frozen=True)
class Chip:
    """`label` without its brackets; `text` is what stands for it in the message."""

    label: str
    text: str


@dataclass(frozen=True)
class Draft:
    """All that would go out now. `typed` has the marks of `folded` in it."""

    typed: str = ""
    folded: Mapping[str, Chip] = field(default_factory=dict)
    attached: tuple[Document, ...] = ()

    @classmethod
    def of(cls, text: str) -> Draft:
        """A whole text as it was before, or somewhere else: too long for the prompt, or with a mark in it, it is folded
        as one."""
        text, _ = tidy(text)
        if not (_longer(text, LONG_LINES, LONG_CHARACTERS) or _marks.search(text)):
            return cls(text)
        mark = new_mark({})
        return cls(mark, {mark: Chip(f"earlier text, {_lines(text)}", text)})

    @property
    def words(self) -> str:
        """What was typed and pasted, unfolded, in order."""
        return _marks.sub(self._unfold, self.typed)

    @property
    def whole(self) -> str:
        """The message as it goes out: the words, below them the files."""
        files = [documents.fenced(each.name, each.text) for each in self.attached]
        words = self.words
        return "\n\n".join([words, *files] if words.strip() or not files else files)

    @property
    def empty(self) -> bool:
        return not self.typed and not self.attached

    @property
    def marks(self) -> list[str]:
        """Those that stand in the text, in order, each once."""
        return list(dict.fromkeys(mark for mark in _marks.findall(self.typed) if mark in self.folded))

    def _unfold(self, found: re.Match[str]) -> str:
        chip = self.folded.get(found[0])
        return chip.text if chip else found[0]

    # ---- for an editor that knows no chips

    def as_plain(self) -> tuple[str, Mapping[str, str]]:
        """The text with `[pasted 214 lines #1]` for each chip, and the mark that each such token stands for."""
        tokens = {}
        for mark in self.marks:
            token = f"[{self.folded[mark].label} #{glyph(mark)}]"
            while token in self.typed or token in tokens:
                token = f"{token[:-1]}#]"
            tokens[token] = mark
        text = self.typed
        for token, mark in tokens.items():
            text = text.replace(mark, token)
        return text, tokens

    def from_plain(self, text: str, tokens: Mapping[str, str]) -> Draft:
        """What came back: a token that is still there is its chip again, one that was taken out is gone."""
        if _marks.search(text):
            return replace(Draft.of(text), attached=self.attached)
        for token, mark in tokens.items():
            text = text.replace(token, mark)
        return replace(self, typed=text)


class Kind(Enum):
    """What can be completed at the cursor."""

    COMMAND = auto()
    FILE = auto()


@dataclass(frozen=True)
class Token:
    """The word that is being typed: `query` without its / or @; it begins in column `start` of its line."""

    kind: Kind
    query: str
    start: int


def token_at(row: int, before: str) -> Token | None:
    """What the line up to the cursor asks to have completed."""
    if row == 0 and re.fullmatch(r"/\S*", before):
        return Token(Kind.COMMAND, before, 0)
    if row == 0 and (named := re.fullmatch(r"/attach +(\S.*|)", before)):
        return Token(Kind.FILE, named[1], named.start(1))
    at_word = re.search(r"(?:^|\s)@(\S*)$", before)
    return Token(Kind.FILE, at_word[1], at_word.start(1) - 1) if at_word else None


def tidy(text: str) -> tuple[str, int]:
    """A paste as text: every kind of line break a newline, nothing that drives a terminal; and how many characters of
    that kind were left out."""
    text = _OTHER_BREAKS.sub("\n", text)
    sanitiser = Sanitiser()
    clean = "".join(sanitiser.feed(piece) for piece in _pieces(text))
    return clean, sanitiser.removed


def folds(text: str) -> bool:
    """Whether a paste becomes a chip."""
    return bool(_longer(text, FOLDED_LINES, FOLDED_CHARACTERS) or _marks.search(text))


def can_unfold(text: str) -> bool:
    """Whether a chip's text can be edited in the prompt."""
    return not (_longer(text, LONG_LINES, LONG_CHARACTERS) or _marks.search(text))


def pasted(text: str) -> Chip:
    return Chip(f"pasted {_lines(text)}", text)


def new_mark(used: Mapping[str, Chip]) -> str:
    """A mark that stands for nothing yet."""
    return next(chr(code) for code in range(_FIRST_MARK, _LAST_MARK + 1) if chr(code) not in used)


def is_mark(character: str) -> bool:
    return len(character) == 1 and _FIRST_MARK <= ord(character) <= _LAST_MARK


def glyph(mark: str) -> str:
    """The one letter that is shown for a mark, in the text and on its chip."""
    number = ord(mark) - _FIRST_MARK
    return _GLYPHS[number] if number < len(_GLYPHS) else "+"


def _longer(text: str, lines: int, characters: int) -> bool:
    return len(text) > characters or text.count("\n") >= lines


def _lines(text: str) -> str:
    lines = text.count("\n") + (not text.endswith("\n"))
    return f"{lines:,} lines" if lines > 1 else f"{len(text):,} characters"


def _pieces(text: str) -> Iterator[str]:
    # A piece without a control character costs one search; only a piece with one is walked through.
    return (text[at : at + _PIECE] for at in range(0, len(text), _PIECE))
