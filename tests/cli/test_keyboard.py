"""Is what was typed told from what was pasted, however the bytes arrive, and does the line edit as a person expects?"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from homebox.cli.keyboard import Line
from homebox.cli.keys import QUIET_S, Key, Keys, Paste

TYPED = "x\x1b[A\x7f\x1b[200~eins\r\nzwei\x03 drei\r\x1b[201~ü\x1b[3~\x1b[Dq\x04".encode()
SHORT_S = QUIET_S / 10


@given(st.sets(st.integers(1, len(TYPED) - 1)))
def test_the_keys_are_the_same_however_the_bytes_are_cut(cuts: set[int]) -> None:
    keys, found, begin = Keys(), [], 0
    for number, end in enumerate([*sorted(cuts), len(TYPED)]):
        found += keys.feed(TYPED[begin:end], number * SHORT_S)
        begin = end
    assert found == [
        *["x", "up", "backspace", Paste("eins\nzwei\x03 drei\n"), "ü", "delete", "left", "q", "end-of-input"],
    ]


def test_lines_that_are_typed_one_after_the_other_are_each_entered() -> None:
    keys = Keys()
    assert keys.feed(b"a\n", 1.0) == ["a", "enter"]
    assert keys.feed(b"b\n", 1.0 + 3 * QUIET_S) == ["b", "enter"] and not keys.in_burst


def test_a_burst_of_lines_is_a_paste_that_ends_with_a_pause() -> None:
    keys = Keys()
    assert keys.feed(b"one\ntw", 1.0) == []
    assert keys.feed(b"o\n", 1.0 + SHORT_S) == [] and keys.in_burst
    assert keys.feed(b"x", 1.0 + 3 * QUIET_S) == [Paste("one\ntwo\n"), "x"]
    keys.feed(b"one\ntwo\n", 2.0)
    assert keys.pause() == [Paste("one\ntwo\n")] and not keys.in_burst


def test_a_paste_whose_end_never_comes_is_given_up_with_ctrl_c() -> None:
    keys = Keys()
    assert keys.feed(b"\x1b[200~half", 1.0) == []
    keys.interrupt()
    assert keys.feed(b"x\n", 2.0) == ["x", "enter"]


def test_a_lone_escape_key_does_not_swallow_what_follows() -> None:
    keys = Keys()
    assert [*keys.feed(b"\x1b", 1.0), *keys.feed(b"h", 2.0)] == ["h"]


def press(line: Line, keys: list[Key]) -> str:
    for key in keys:
        if isinstance(key, Paste):
            line.paste(key.text)
        else:
            line.press(key)
    return line.shown(line.cursor) + "|" + line.shown()[len(line.shown(line.cursor)) :]


@pytest.mark.parametrize(
    ("keys", "shown"),
    [
        ([*"abc", "left", "X"], "abX|c"),
        ([*"abc", "left", "backspace"], "a|c"),
        ([*"abc", "home", "delete", "right"], "b|c"),
        ([*"one two ", "kill-word"], "one |"),
        ([*"one", "left", "kill-line"], "|e"),
        (["backspace", "delete", "left", "right", "kill-word"], "|"),
        (["a", Paste("1\n2\n"), "b"], "a[2 lines pasted]b|"),
        (["a", Paste("1\n2\n"), "b", "left", "backspace"], "a|b"),
        ([Paste("one line\n")], "one line|"),
    ],
)
def test_editing(keys: list[Key], shown: str) -> None:
    assert press(Line(), keys) == shown
