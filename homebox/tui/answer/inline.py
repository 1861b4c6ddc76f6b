"""What does a piece of Markdown prose look like inside its lines?

Emphasis, code, links: parsed by markdown-it. A link is its text and, where they differ, its address; an image is its
description and address. HTML is text. Nothing is drawn that drives a terminal: an entity may spell any character, so
what comes out of the parser is cleaned once more. It knows no widths and no colours.
"""

from __future__ import annotations

import re

from markdown_it import MarkdownIt
from markdown_it.token import Token

from homebox.client.sanitise import clean
from homebox.tui.answer.rows import Span, Styled

_MARKUP = re.compile(r"[*_`~\[\]<>&\\!]")
_TRAILING = "*_`~ "
_OPENED_BOLD = re.compile(r"(?:^|(?<=[\s(\[\"']))\*\*(?=[^\s*])")
_NEW_LINES = dict.fromkeys(map(ord, "\u2028\u2029"), " ")
_OPENS = {"strong_open": "strong", "em_open": "emphasis", "s_open": "strike"}
_CLOSES = {"strong_close", "em_close", "s_close"}


class _Parser(MarkdownIt):
    """Addresses stay as they were written: they are read, not followed."""

    def __init__(self) -> None:
        super().__init__("commonmark", {"html": False})
        self.enable("strikethrough")

    def normalizeLink(self, url: str) -> str:
        return url

    def normalizeLinkText(self, link: str) -> str:
        return link

    def validateLink(self, url: str) -> bool:
        return True


_parser = _Parser()


def shown(text: str) -> str:
    """Text as it may be drawn: nothing that drives a terminal, tabs as blanks."""
    return clean(text).translate(_NEW_LINES).expandtabs(4)


def completed(text: str) -> str:
    """Unfinished prose as it looks best meanwhile: code and bold that are open end here, and marks do not flicker."""
    body = text.rstrip(_TRAILING)
    if body.count("`") % 2:
        return f"{body}`"
    if body.count("**") % 2 and _OPENED_BOLD.search(body):
        return f"{body}**"
    return body


def inline(text: str, *, marks: bool = False) -> Styled:
    """The text with its markup turned into styles; with `marks` code keeps its backticks."""
    if not _MARKUP.search(text):
        return Styled(shown(text))
    parts: list[str] = []
    spans: list[Span] = []
    _walk(_parser.parseInline(text)[0].children or [], parts, spans, marks)
    return Styled("".join(parts), tuple(sorted(spans, key=lambda span: (span.start, -span.end))))


def _walk(tokens: list[Token], parts: list[str], spans: list[Span], marks: bool) -> None:
    at = 0  # characters in `parts`
    opened: list[tuple[str, int, str]] = []  # style, where it began, and of a link what follows its text

    def add(said: str) -> None:
        nonlocal at
        said = shown(said)
        parts.append(said)
        at += len(said)

    for token in tokens:
        if token.type in ("softbreak", "hardbreak"):
            parts.append("\n")
            at += 1
        elif style := _OPENS.get(token.type):
            opened.append((style, at, ""))
        elif token.type == "link_open":
            opened.append(("link", at, _address(token)))
        elif token.type in _CLOSES or token.type == "link_close":
            style, start, address = opened.pop()
            if address and address != "".join(parts)[start:]:
                add(f" ({address})")
            spans.append(Span(start, at, style))
        elif token.type == "code_inline":
            start = at
            add(f"`{token.content}`" if marks else token.content)
            spans.append(Span(start, at, "code"))
        elif token.type == "image":
            start = at
            address = _address(token)
            add(f"{token.content} ({address})" if token.content and address else token.content or address)
            spans.append(Span(start, at, "link"))
        else:
            add(token.content)


def _address(token: Token) -> str:
    address = str(token.attrs.get("href") or token.attrs.get("src") or "")
    title = token.attrs.get("title")
    return f'{address} "{title}"'.strip() if title else address.removeprefix("mailto:")
