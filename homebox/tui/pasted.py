"""How does a paste come from the terminal whole, at once, and as nothing but text?

The parser of textual walks through a paste one character at a time, a second for a megabyte, and takes an escape
sequence in it for keys that were pressed: the Enter after it would send. Here everything between the two marks of a
bracketed paste is one `Paste`; all other input goes to textual's own parser, unchanged. It knows no widgets.
"""

from __future__ import annotations

import select
import sys
import time
from collections.abc import Iterable

from textual import constants, events
from textual._xterm_parser import BRACKETED_PASTE_END, BRACKETED_PASTE_START, XTermParser
from textual.drivers import linux_driver
from textual.message import Message

# What begins with an Escape comes in one piece, even over a slow line; textual looks again only after a tenth of a second,
# and once more, which is long for somebody who wants an answer to stop.
LONE_ESCAPE_S = 0.03
_ESCAPE = "\x1b"


class PasteParser(XTermParser):
    """A mark may be cut by the size of a read: an end of the input that may become one is held back for as long as
    textual waits after an Escape."""

    def __init__(self, debug: bool = False) -> None:
        super().__init__(debug)
        self._pieces: list[str] | None = None  # of the paste that is coming in
        self._held = ""
        self._held_until_s = 0.0

    def feed(self, data: str) -> Iterable[Message]:
        if not data:  # the end of the input
            yield from self._release()
            yield from super().feed(data)
            return
        rest, self._held = self._held + data, ""
        while rest:
            mark = BRACKETED_PASTE_START if self._pieces is None else BRACKETED_PASTE_END
            before, found, rest = rest.partition(mark)
            if not found:
                held = _begun(before, mark)
                before, self._held = before[: len(before) - held], before[len(before) - held :]
                self._held_until_s = time.monotonic() + constants.ESCAPE_DELAY
            if self._pieces is not None:
                self._pieces.append(before)
            elif before:
                yield from super().feed(before)
            if found:
                yield from self._pass_mark()
        if self._held == _ESCAPE and self._pieces is None and _nothing_follows():
            yield from self._release()
            yield from super().tick()

    def tick(self) -> Iterable[Message]:
        if self._held and self._pieces is None and time.monotonic() >= self._held_until_s:
            yield from self._release()
        yield from super().tick()

    def _pass_mark(self) -> Iterable[Message]:
        if self._pieces is None:
            self._pieces = []
            return
        text, self._pieces = "".join(self._pieces), None
        yield events.Paste(text)

    def _release(self) -> Iterable[Message]:
        """What was held back was no mark. An Escape in it has waited long enough."""
        held, self._held = self._held, ""
        if held and self._pieces is None:
            yield from super().feed(held)
            self._timeout_time = self._timeout_time and 0.0


def _nothing_follows() -> bool:
    """Nothing more was typed for a moment. The thread that asks does nothing but read keys."""
    stdin = sys.__stdin__
    return stdin is not None and stdin.isatty() and not select.select([stdin], [], [], LONE_ESCAPE_S)[0]


def _begun(text: str, mark: str) -> int:
    """How many characters at the end of `text` may be the beginning of `mark`."""
    return next((size for size in range(len(mark) - 1, 0, -1) if text.endswith(mark[:size])), 0)


def install() -> None:
    """Once, before the app runs: textual's driver has no other place to name its parser."""
    linux_driver.XTermParser = PasteParser  # type: ignore[misc]
