"""Stop strings, against an oracle that looks at the whole text."""

from __future__ import annotations

import time
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from homebox.text.stops import StopMatcher

ALPHABET = st.text("ab\n", max_size=30)
STOPS = st.lists(st.text("ab\n", min_size=1, max_size=5), max_size=4)


def chunks(text: str, cuts: list[int]) -> list[str]:
    places = sorted({min(cut, len(text)) for cut in cuts} | {0, len(text)})
    return [text[a:b] for a, b in pairwise(places)]


def oracle(text: str, stops: list[str]) -> tuple[str, bool]:
    for end in range(1, len(text) + 1):
        if complete := [stop for stop in stops if text[:end].endswith(stop)]:
            return text[: end - max(map(len, complete))], True
    return text, False


@settings(max_examples=400, deadline=None)
@given(ALPHABET, STOPS, st.lists(st.integers(0, 30), max_size=10))
def test_the_delivered_text_is_the_oracles_however_it_is_cut(
    text: str, stops: list[str], cuts: list[int]
) -> None:
    matcher = StopMatcher(stops)
    delivered, stopped = "", False
    for chunk in chunks(text, cuts):
        piece, stopped = matcher.push(chunk)
        delivered += piece
        if stopped:
            break
    delivered += matcher.flush()
    assert (delivered, stopped) == oracle(text, stops)


@settings(max_examples=250, deadline=None)
@given(ALPHABET, STOPS)
def test_nothing_is_held_back_but_what_may_begin_a_stop(text: str, stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    seen = delivered = ""
    for char in text:
        piece, stopped = matcher.push(char)
        seen, delivered = seen + char, delivered + piece
        if stopped:
            return
        held = seen[len(delivered) :]
        assert not held or any(stop.startswith(held) for stop in stops)


def test_a_stop_that_spans_pieces_is_not_delivered_and_nothing_comes_after_it() -> None:
    matcher = StopMatcher(["\nUser:"])
    assert matcher.push("Yes.\nUs") == ("Yes.", False)
    assert matcher.push("er: and") == ("", True)
    assert matcher.push("more") == ("", True)
    assert matcher.flush() == ""


def test_text_that_only_began_like_a_stop_is_released() -> None:
    matcher = StopMatcher(["\nUser:"])
    assert matcher.push("Yes.\nUs") == ("Yes.", False)
    assert matcher.push("ually") == ("\nUsually", False)
    assert matcher.push("\n") == ("", False)
    assert matcher.flush() == "\n"


def test_a_stop_that_repeats_itself_costs_no_more_than_another() -> None:
    matcher = StopMatcher(["a" * 2_000 + "b"])
    began = time.process_time()
    delivered = sum(len(matcher.push("aaaa")[0]) for _ in range(50_000))
    assert delivered == 200_000 - 2_000
    assert time.process_time() - began < 5
