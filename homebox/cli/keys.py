"""Which keys were pressed, and what was pasted?

Turns the bytes of a terminal into keys: a character, a name such as `left`, or a `Paste`. A paste is never a line that
was typed: what the terminal brackets is one, and so is a burst that holds more than one line, because nobody types
that fast. It reads no terminal and draws nothing; time comes with the bytes.
"""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass

PASTE_ON, PASTE_OFF = "\x1b[?2004h", "\x1b[?2004l"  # asks the terminal to bracket what is pasted
QUIET_S = 0.05  # a burst of lines ends with a pause of this length
_BEGIN, _END = "\x1b[200~", "\x1b[201~"
_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|O[@-~])")
_UNFINISHED = re.compile(r"\x1b(?:\[[0-?]*[ -/]*|O)?\Z")
_NAMES = {
    **dict.fromkeys(("\x1b[A", "\x1bOA", "\x10"), "up"),
    **dict.fromkeys(("\x1b[B", "\x1bOB", "\x0e"), "down"),
    **dict.fromkeys(("\x1b[C", "\x1bOC", "\x06"), "right"),
    **dict.fromkeys(("\x1b[D", "\x1bOD", "\x02"), "left"),
    **dict.fromkeys(("\x1b[H", "\x1bOH", "\x1b[1~", "\x01"), "home"),
    **dict.fromkeys(("\x1b[F", "\x1bOF", "\x1b[4~", "\x05"), "end"),
    **dict.fromkeys(("\x7f", "\b"), "backspace"),
    "\x1b[3~": "delete",
    "\x04": "end-of-input",
    "\x0c": "redraw",
    "\x15": "kill-line",
    "\x17": "kill-word",
    **dict.fromkeys(("\r", "\n"), "enter"),
}


@dataclass(frozen=True)
class Paste:
    text: str


Key = str | Paste  # a str is one character or one of the names above


class Keys:
    """Feed it each piece that was read with the second it came at; it keeps what is not yet complete."""

    def __init__(self, encoding: str = "utf-8") -> None:
        self._decoder = codecs.getincrementaldecoder(encoding)("surrogateescape")
        self._rest = ""  # the beginning of a sequence
        self._bracket: str | None = None  # what came so far of a bracketed paste
        self._burst = ""
        self._at_s = 0.0

    @property
    def in_burst(self) -> bool:
        """True while a pause of `QUIET_S` would end a paste."""
        return bool(self._burst)

    def feed(self, data: bytes, at_s: float) -> list[Key]:
        """The keys that are complete with this piece."""
        ended = self.pause() if at_s - self._at_s > QUIET_S else []
        self._at_s = at_s
        text = self._rest + self._decoder.decode(data)
        self._rest = ""
        if self._bracket is None and _BEGIN not in text and (self._burst or "\n" in _lines(text)[:-1]):
            self._burst += text
            return ended
        return [*ended, *self.pause(), *self._parse(text)]

    def pause(self) -> list[Key]:
        """Nothing came for `QUIET_S`: a burst is over."""
        text, self._burst = self._burst, ""
        return [Paste(_lines(text))] if text else []

    def interrupt(self) -> None:
        """Forget what is not complete."""
        self._bracket, self._burst, self._rest = None, "", ""

    def _parse(self, text: str) -> list[Key]:
        found: list[Key] = []
        while text:
            if self._bracket is not None:
                body, end, text = (self._bracket + text).partition(_END)
                self._bracket = None if end else body
                found += [Paste(_lines(body))] if end else []
            elif text.startswith(_BEGIN):
                self._bracket, text = "", text[len(_BEGIN) :]
            elif sequence := _SEQUENCE.match(text):
                found += [_NAMES[sequence[0]]] if sequence[0] in _NAMES else []
                text = text[sequence.end() :]
            elif _UNFINISHED.match(text):
                self._rest, text = text, ""
            else:
                found += [_NAMES.get(text[0], text[0])] if text[0] != "\x1b" else []
                text = text[1:]
        return found


def _lines(text: str) -> str:
    """A pasted line may end in any of three ways."""
    return text.replace("\r\n", "\n").replace("\r", "\n")
