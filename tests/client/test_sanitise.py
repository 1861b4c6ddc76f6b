"""Does model text lose everything that could drive a terminal, and nothing else, however it is cut?"""

from __future__ import annotations

import itertools
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from homebox.client.sanitise import MAX_CONTROL_STRING, Sanitiser, clean, safe_json

FORBIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)

pieces = st.sampled_from(
    [
        "\x1b",
        "[",
        "]",
        "P",
        "31m",
        "0;title",
        "\x07",
        "\x1b\\",
        "\x9b",
        "\x9d",
        "\x9c",
        "\x90",
        "\x08",
        "\r",
        "\n",
        "\t",
        *(
            "plain",
            "é",
            "日本",
            "\u202e",
            "\u200f",
            "\u2066",
            "\x7f",
            "\x85",
            "\udc9b",
            "(",
            "B",
            ";",
            "?",
            "😀",
        ),
    ]
)
nasty = st.lists(st.one_of(pieces, st.text(st.characters(exclude_categories=()))), max_size=40).map("".join)


def cut(text: str, places: list[int]) -> list[str]:
    edges = sorted({0, len(text), *(place % (len(text) + 1) for place in places)})
    return [text[a:b] for a, b in itertools.pairwise(edges)]


@given(nasty, st.lists(st.integers(0, 1000), max_size=10))
def test_nothing_that_drives_a_terminal_passes_however_it_is_cut(text: str, places: list[int]) -> None:
    sanitiser = Sanitiser()
    shown = "".join(sanitiser.feed(piece) for piece in cut(text, places))
    assert not FORBIDDEN.search(shown)
    assert shown == clean(text)
    assert sanitiser.removed == len(text) - len(shown)


@given(st.text().filter(lambda text: not FORBIDDEN.search(text)))
def test_plain_text_passes_unchanged(text: str) -> None:
    assert clean(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\x1b[31mred\x1b[0m b", "ared b"),
        ("a\x9b31mred", "ared"),
        ("x\x1b]0;stolen title\x07y", "xy"),
        ("x\x1b]52;c;c3RvbGVu\x1b\\y", "xy"),
        ("x\x9d0;title\x9cy", "xy"),
        ("x\x1bPq#0\x1b\\y", "xy"),
        ("x\x1b(By", "xy"),
        ("x\x1bcy", "xy"),
        ("one\r\ntwo\rthree", "one\ntwothree"),
        ("abc\x08\x08\x08xyz", "abcxyz"),
        ("gnp.\u202eexe", "gnp.exe"),
        ("\x1b", ""),
        ("\x1b[", ""),
        ("\x1b[12\nstill here", "\nstill here"),
    ],
)
def test_a_sequence_goes_whole_and_the_text_around_it_stays(text: str, shown: str) -> None:
    assert clean(text) == shown


def test_a_control_string_that_is_never_closed_hides_one_line_at_most() -> None:
    assert clean("a\x1b]0;no end\nb") == "a\nb"


def test_a_control_string_on_one_endless_line_hides_a_bounded_number_of_characters() -> None:
    assert clean("\x1b]" + "x" * 5000) == "x" * (5000 - MAX_CONTROL_STRING)


@given(nasty.filter(lambda text: not re.search("[\ud800-\udfff]", text)))
def test_json_says_exactly_the_same_without_a_character_that_drives_a_terminal(text: str) -> None:
    line = safe_json(json.dumps({"text": text}, ensure_ascii=False))
    assert not FORBIDDEN.search(line)
    assert json.loads(line)["text"] == text
