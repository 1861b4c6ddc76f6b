"""A paste from the terminal is one paste of exactly its text, wherever the reads cut it; all else is as it always was."""

from __future__ import annotations

import random

import pytest
from textual import events
from textual._xterm_parser import XTermParser
from textual.message import Message

from homebox.tui.pasted import PasteParser

START, END = "\x1b[200~", "\x1b[201~"


def told(parser: XTermParser, pieces: list[str]) -> list[tuple[str, str | None]]:
    found: list[Message] = [message for piece in pieces for message in parser.feed(piece)]
    return [(each.key, each.character) for each in found if isinstance(each, events.Key)] + [
        ("paste", each.text) for each in found if isinstance(each, events.Paste)
    ]


def cut(text: str, rng: random.Random) -> list[str]:
    pieces = []
    while text:
        size = rng.choice((1, 2, 3, 7, 50))
        pieces.append(text[:size])
        text = text[size:]
    return pieces


PASTES = ["", "abc", "a\rb\x1b[31m\rmore\x1b", "\x1b[20", "\x1b[200~", "\x1b\x1b[A\r\r", "é漢" * 30]


@pytest.mark.parametrize("paste", PASTES)
def test_nothing_in_a_paste_is_taken_for_a_key(paste: str) -> None:
    for seed in range(20):
        pieces = cut(f"x{START}{paste}{END}y\x1b[A", random.Random(seed))
        assert told(PasteParser(), pieces) == [("x", "x"), ("y", "y"), ("up", None), ("paste", paste)]


def test_keys_without_a_paste_are_what_textual_takes_them_for() -> None:
    keys = "ab\r\n\t\x1b[A\x1b[24~\x1b[2~\x1bOP\x1b[1;5C\x1b[<0;3;4M\x1b[?2026;2$yé漢\x7f"
    for seed in range(20):
        pieces = cut(keys, random.Random(seed))
        assert told(PasteParser(), pieces) == told(XTermParser(), [keys])


def test_escape_alone_is_a_key_after_the_wait_that_textual_has(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("homebox.tui.pasted.time.monotonic", lambda: now)
    parser = PasteParser()
    assert list(parser.feed("\x1b")) == []
    assert list(parser.tick()) == []
    now += 1.0
    (key,) = parser.tick()
    assert isinstance(key, events.Key)
    assert key.key == "escape"
