"""Which part of a line of code has which style?

Pygments reads line by line and keeps its state between lines where the lexer allows it, so that a growing fence costs
the same for its last line as for its first. Some lexers see a whole comment only when they see all of it: a closed
fence of ordinary length is read once more in one go. Nothing is read before a row of it is drawn.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from functools import cache, lru_cache

from pygments.lexer import ExtendedRegexLexer, Lexer, LexerContext, RegexLexer
from pygments.lexers import get_all_lexers, get_lexer_by_name
from pygments.token import Token, _TokenType

from homebox.tui.answer.rows import Span

AT_ONCE = 400  # lines of closed code that are read in one go
_LONGEST = 2000  # characters of a line; a longer one is data, not something that is read

_STYLES: tuple[tuple[_TokenType, str], ...] = (
    (Token.Comment, "comment"),
    (Token.Keyword, "keyword"),
    (Token.Operator.Word, "keyword"),
    (Token.Literal.String, "string"),
    (Token.Literal.Number, "number"),
    (Token.Name.Function, "name"),
    (Token.Name.Class, "name"),
    (Token.Name.Decorator, "name"),
    (Token.Name.Tag, "name"),
    (Token.Name.Attribute, "number"),
    (Token.Name.Builtin, "keyword"),
    (Token.Generic.Deleted, "deleted"),
    (Token.Generic.Inserted, "string"),
    (Token.Generic.Heading, "name"),
    (Token.Generic.Subheading, "name"),
)


class Highlighter:
    """The spans of the lines of one fence, which grows at the end of the list `lines`."""

    def __init__(self, language: str, lines: list[str]) -> None:
        self._lexer = _lexer(language.split()[0].strip("{}.").lower() if language.split() else "")
        self._lines = lines
        self._spans: list[tuple[Span, ...]] = []
        self._stack = ["root"]
        self.closed = False
        self._is_whole = False

    def spans(self, number: int) -> tuple[Span, ...]:
        """Of the line with this number. Lines before it are read first."""
        if self._lexer is None:
            return ()
        if self.closed and not self._is_whole:
            self._is_whole = True
            if len(self._lines) <= AT_ONCE and all(len(line) <= _LONGEST for line in self._lines):
                self._spans = _whole(self._lexer, self._lines)
        while len(self._spans) <= number:
            self._spans.append(self.line(self._lines[len(self._spans)], self._stack))
        return self._spans[number]

    def growing(self, text: str) -> tuple[Span, ...]:
        """Of a line that is not whole yet, after the last of `lines`."""
        if self._lexer is None:
            return ()
        if self._lines:
            self.spans(len(self._lines) - 1)
        return self.line(text, list(self._stack))

    def line(self, text: str, stack: list[str]) -> tuple[Span, ...]:
        """Read one line; `stack` is the state before it, and after it."""
        if not text or len(text) > _LONGEST or self._lexer is None:
            return ()
        return _spans(_tokens(self._lexer, text + "\n", stack), len(text))


def _tokens(lexer: Lexer, text: str, stack: list[str]) -> list[tuple[int, _TokenType, str]]:
    if isinstance(lexer, RegexLexer):
        context = LexerContext(text, 0, list(stack))
        try:
            # The reading of an ExtendedRegexLexer leaves its state in the context, and works for every RegexLexer
            # whose callbacks can do with one. The others raise TypeError.
            tokens = list(ExtendedRegexLexer.get_tokens_unprocessed(lexer, context=context))
        except (TypeError, AttributeError):
            return list(lexer.get_tokens_unprocessed(text))
        stack[:] = context.stack
        return tokens
    return list(lexer.get_tokens_unprocessed(text))


def _whole(lexer: Lexer, lines: list[str]) -> list[tuple[Span, ...]]:
    """Every line's spans, from one reading of all of them."""
    found: list[list[Span]] = [[] for _ in lines]
    number = begin = 0  # the line at hand, and where it begins in the whole
    for at, token, value in lexer.get_tokens_unprocessed("\n".join(lines) + "\n"):
        style = _style(token)
        for part in value.splitlines(keepends=True) if style else ():
            while number + 1 < len(lines) and at > begin + len(lines[number]):
                begin += len(lines[number]) + 1
                number += 1
            _add(found[number], at - begin, min(at - begin + len(part), len(lines[number])), style)
            at += len(part)
    return [tuple(spans) for spans in found]


def _spans(tokens: Iterable[tuple[int, _TokenType, str]], length: int) -> tuple[Span, ...]:
    spans: list[Span] = []
    for at, token, value in tokens:
        if style := _style(token):
            _add(spans, at, min(at + len(value), length), style)
    return tuple(spans)


def _add(spans: list[Span], start: int, end: int, style: str) -> None:
    """Neighbours of one style are one span."""
    if spans and spans[-1].end == start and spans[-1].style == style:
        spans[-1] = Span(spans[-1].start, end, style)
    elif start < end:
        spans.append(Span(start, end, style))


@lru_cache(maxsize=512)
def _style(token: _TokenType) -> str:
    return next((style for kind, style in _STYLES if token in kind), "")


@lru_cache(maxsize=64)
def _lexer(name: str) -> Lexer | None:
    return get_lexer_by_name(name) if name in _names() else None


@cache
def _names() -> frozenset[str]:
    """What pygments itself knows. To look for lexers of other packages takes longer than a drawing may."""
    return frozenset(alias for _, aliases, _, _ in get_all_lexers(plugins=False) for alias in aliases)


@cache
def warm_up() -> None:
    """Load the most frequent lexer, which takes longer than a drawing may, before it is needed. Once, in a thread."""
    threading.Thread(target=_lexer, args=("python",), daemon=True).start()
