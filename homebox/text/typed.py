"""How does text that a person typed stay text, whatever a template does with it?

A tokeniser turns a control mark such as `<|im_end|>` into a control token wherever it stands in the rendered text,
so a mark inside somebody's message would end that message. Before rendering, the first character of every such mark
is exchanged for a private-use character that nobody used; after the template's own marks have been found, it is
exchanged back. Nothing changes its length and nothing but marks changes, so templates that trim, count or search go on
working. This module knows marks and strings, no tokeniser and no template.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

from homebox.errors import InvalidRequest

_PRIVATE = (range(0xE000, 0xF900), range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE))


class Marks:
    """The control marks of one tokeniser."""

    def __init__(self, marks: Iterable[str]) -> None:
        self.texts = sorted(set(marks), key=lambda mark: (-len(mark), mark))
        starts = "|".join(map(re.escape, self.texts))
        self.starts = re.compile(f"(?=(?:{starts})).", re.DOTALL) if self.texts else None
        self.heads = {mark[:end] for mark in self.texts for end in range(1, len(mark))}
        self.tails = {mark[start:] for mark in self.texts for start in range(1, len(mark))}
        self.longest = max(map(len, self.texts), default=0)


class Disguise:
    """The exchange for one conversation. `used` holds every character that may turn up in the rendered text."""

    def __init__(self, marks: Marks, used: set[str]) -> None:
        self._marks = marks
        self._free = (chr(code) for code in chain(*_PRIVATE) if chr(code) not in used)
        self._for: dict[str, str] = {}
        self._back: dict[int, str] = {}

    def private(self) -> str:
        """A private-use character that stands nowhere in the conversation, another one at each call."""
        found = next(self._free, None)
        if found is None:
            raise InvalidRequest("the messages use every private-use character there is", param="messages")
        return found

    def put_on(self, value: Any) -> Any:
        """The same data, with the marks in all its strings disguised."""
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, Mapping):
            return {key: self.put_on(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.put_on(item) for item in value]
        return value

    def take_off(self, text: str) -> str:
        """The text as it was typed."""
        return text.translate(self._back) if self._back else text

    def _text(self, text: str) -> str:
        if self._marks.starts is None:
            return text
        text = self._marks.starts.sub(lambda found: self._other(found[0]), text)
        return self._head(self._tail(text))

    def _tail(self, text: str) -> str:
        """`<|im_` at the end of a message must not become a mark with what a template writes after it."""
        kept = text.rstrip()
        if any(
            kept[-size:] in self._marks.heads for size in range(1, min(self._marks.longest, len(kept) + 1))
        ):
            return kept[:-1] + self._other(kept[-1]) + text[len(kept) :]
        return text

    def _head(self, text: str) -> str:
        kept = text.lstrip()
        if any(
            kept[:size] in self._marks.tails for size in range(1, min(self._marks.longest, len(kept) + 1))
        ):
            return text[: len(text) - len(kept)] + self._other(kept[0]) + kept[1:]
        return text

    def _other(self, char: str) -> str:
        if char not in self._for:
            self._for[char] = self.private()
            self._back[ord(self._for[char])] = char
        return self._for[char]


def characters(value: Any) -> set[str]:
    """Every character in the strings of some plain data."""
    return set().union(*_strings(value))


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _strings(key)
            yield from _strings(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _strings(item)
