"""What would text say that wants to drive a terminal, and did any of it get there?

One table for everything that writes to a terminal. Each text ends in the word `harmless`, so that a test can see that
it was shown; the sequences have the number 7777 or 77;77 in them, which nothing of ours ever writes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

HOSTILE: Mapping[str, str] = {
    "colour": "\x1b[7777mharmless",
    "cursor": "\x1b[77;77H\x1b[2J\x1b[7777Kharmless",
    "clipboard": "\x1b]52;c;c3RvbGVuLXN0b2xlbg==\x07harmless",
    "clipboard-st": "\x1b]52;c;c3RvbGVuLXN0b2xlbg==\x1b\\harmless",
    "window": "\x1b]0;stolen-title\x07harmless",
    "link": "\x1b]8;;http://stolen.example\x1b\\harmless\x1b]8;;\x1b\\",
    "never-closed": "\x1b]0;stolen\nharmless",
    "device": "\x1bPstolen-device\x1b\\\x1b_stolen-app\x1b\\\x1b^stolen-note\x1b\\harmless",
    "eight-bit": "\x9b7777m\x9d0;stolen\x9c\x90stolen\x9c\x85harmless",
    "half": "\x1b\x1b[\x1b[77\x1b[7777mharmless\x1b",
    "reset": "\x1bc\x1b#8\x1b(0harmless",
    "controls": "\x07\x08\x0b\x0c\x0e\x0f\x1a\x7f\rharmless",
    "directions": "\u202ebackwards\u202c\u2066\u2069\u200e\u200f\u061c harmless",
    "entities": "&#x202e;&#27;[7777m&#x9b;7777m&rlm;&lrm;&Tab;&NewLine; `&#x202e;` harmless",
    "markup": "[red]harmless[/red] [@click=app.exit]harmless[/] [link=http://stolen.example]harmless[/link]",
    "addresses": "[harmless](http://stolen.example/\x1b[7777m) <http://stolen.example> ![harmless](x\u202e)",
    "fence": "```py\x1b[7777m\nharmless = '\x1b]0;stolen\x07'\n```",
    "table": "| harmless\x1b[7777m |\n|---|\n| \u202eharmless\x9b7777m |",
}
# What a JSON text cannot carry, but a file's name, an environment and a command line can.
UNDECODABLE = "\udc9b7777m\udcff\ud800harmless"
EVERYTHING = "\n\n".join(HOSTILE.values())

_DRIVES = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_STRING = re.compile(r"\x1b[\]P_^X].{0,40}", re.DOTALL)
_POINTER = re.compile(
    "\x1b\\]22;[a-z-]+\x07"
)  # the shape of the mouse's pointer: the driver of the screens sets it
_SEQUENCE = re.compile(r"\x1b\[([0-?]*)([ -/]*)([@-~])")


def drives(text: str) -> list[str]:
    """Every character in it that a terminal would act upon, but newline and tab; nothing where it is only text."""
    return _DRIVES.findall(text)


def stolen(stream: bytes, finals: str, alone: str = "") -> list[str]:
    """What stands in the bytes of a screen that its driver does not write: control strings, other sequences than those
    with these final characters or with parameters of a hostile text, and controls beyond those in `alone`."""
    text = _POINTER.sub("", stream.decode())  # nothing but UTF-8 goes to a terminal
    found = _STRING.findall(text)
    for parameters, between, final in _SEQUENCE.findall(text):
        if final not in finals or parameters in ("2", "77;77") or "7777" in parameters:
            found.append(f"CSI {parameters}{between}{final}")
    rest = _SEQUENCE.sub("", text)
    return found + [each for each in drives(rest) if each not in alone]
