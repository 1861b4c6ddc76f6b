"""How can text from a model be put on a terminal without the text driving the terminal?

Model output is untrusted terminal input: an escape sequence could rename the window, fill the clipboard or hide a
line. The front ends pass every piece of it through one `Sanitiser`, which keeps its place in a sequence across piece
borders. What goes: escape sequences (CSI, OSC, DCS and kin, in their 7-bit and 8-bit forms), every C0 control but
newline and tab, DEL, C1, bidirectional controls and lone surrogates. JSON output needs no stripping:
`safe_json` writes the same characters as JSON escapes, so that nothing is lost. It knows nothing of streams or events.
"""

from __future__ import annotations

import re
from enum import Enum, auto

# Spelled as escapes on purpose: the characters themselves would be invisible here.
_UNSAFE = (
    "\\x00-\\x08\\x0b-\\x1f\\x7f\\x80-\\x9f"  # C0 but tab and newline, DEL, C1
    "\\u061c\\u200e\\u200f\\u202a-\\u202e\\u2066-\\u2069"  # bidirectional controls
    "\\ud800-\\udfff"  # lone surrogates: how raw undecodable bytes travel in a str
)
_unsafe = re.compile(f"[{_UNSAFE}]")

# A control string (OSC, DCS, ...) that is never closed may hide at most this many characters of an answer.
MAX_CONTROL_STRING = 1024


class _State(Enum):
    TEXT = auto()
    ESCAPE = auto()
    CSI = auto()
    STRING = auto()
    STRING_ESCAPE = auto()


_AFTER_ESCAPE = {"[": _State.CSI, **dict.fromkeys("]PX^_", _State.STRING)}
_EIGHT_BIT = {
    "\x1b": _State.ESCAPE,
    "\x9b": _State.CSI,
    **dict.fromkeys("\x90\x98\x9d\x9e\x9f", _State.STRING),
}


class Sanitiser:
    """One per answer. `removed` counts the characters taken out so far, so that a front end can say so."""

    def __init__(self) -> None:
        self.removed = 0
        self._state = _State.TEXT
        self._string_length = 0

    def feed(self, text: str) -> str:
        """The part of `text` that may be shown. Joined over all pieces it is the same however the text was cut."""
        if self._state is _State.TEXT and not _unsafe.search(text):
            return text
        kept = "".join([char for char in text if self._keep(char)])
        self.removed += len(text) - len(kept)
        return kept

    def _keep(self, char: str) -> bool:
        """Step the state machine by one character; True if it is text."""
        if self._state is not _State.TEXT and self._swallow(char):
            return False
        if char in _EIGHT_BIT:
            self._state, self._string_length = _EIGHT_BIT[char], 0
            return False
        return not _unsafe.match(char)

    def _swallow(self, char: str) -> bool:
        """Inside a sequence: True if `char` belongs to it. A character that cannot belong ends it and is text again."""
        if self._state is _State.ESCAPE:
            self._state = _AFTER_ESCAPE.get(char, _State.TEXT)
            if " " <= char <= "/":  # an intermediate: the final character still comes
                self._state = _State.ESCAPE
            return " " <= char <= "~"
        if self._state is _State.CSI:
            if " " <= char <= "?":
                return True
            self._state = _State.TEXT
            return "@" <= char <= "~"
        if self._state is _State.STRING_ESCAPE:
            self._state = _State.TEXT
            return char == "\\"
        self._string_length += 1
        if char == "\n" or self._string_length > MAX_CONTROL_STRING:
            self._state = _State.TEXT
            return False
        if char == "\x1b":
            self._state = _State.STRING_ESCAPE
        elif char in "\x07\x9c":
            self._state = _State.TEXT
        return True


class Growing:
    """A text that grows at its end, sanitised: each character is looked at once."""

    def __init__(self) -> None:
        self._raw, self._clean, self._sanitiser = "", "", Sanitiser()

    def clean(self, raw: str) -> str:
        """`raw`, the whole text so far, sanitised. Where it was replaced, not grown, it is read anew."""
        if not raw.startswith(self._raw):
            self._raw, self._clean, self._sanitiser = "", "", Sanitiser()
        self._clean += self._sanitiser.feed(raw[len(self._raw) :])
        self._raw = raw
        return self._clean

    @property
    def removed(self) -> int:
        return self._sanitiser.removed


def clean(text: str) -> str:
    """One whole text, sanitised: for names and messages that arrive in one piece."""
    return Sanitiser().feed(text)


def safe_json(encoded: str) -> str:
    """JSON text that says exactly the same and holds no character that drives a terminal.

    Outside its strings JSON has only ASCII, so each such character sits in a string and may be written as an escape.
    """
    return _unsafe.sub(lambda found: f"\\u{ord(found[0]):04x}", encoded)
