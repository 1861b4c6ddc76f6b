"""Thoughts and answers are told apart, wherever the marks are cut."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from homebox.text.reasoning import ReasoningSplitter, opens_thought


def split(pieces: list[str], *, thinking: bool = False) -> tuple[str, str]:
    splitter = ReasoningSplitter(thinking=thinking)
    got = [one for piece in pieces for one in splitter.push(piece)] + splitter.flush()
    assert all(text for _, text in got)
    kinds = [kind for kind, _ in got]
    assert kinds == sorted(kinds, key=["think", "text"].index)
    return "".join(t for k, t in got if k == "think"), "".join(t for k, t in got if k == "text")


def cut(text: str, places: list[int]) -> list[str]:
    at = sorted({0, len(text), *(place % (len(text) + 1) for place in places)})
    return [text[a:b] for a, b in pairwise(at)]


PARTS = st.text("<thnk>/ a\n", max_size=12)


@settings(max_examples=400, deadline=None)
@given(
    st.sampled_from(["", "\n", "<think>", " <think>\n"]),
    PARTS,
    PARTS,
    st.booleans(),
    st.lists(st.integers(0, 99)),
)
def test_the_split_does_not_depend_on_where_the_text_is_cut(
    start: str, first: str, second: str, closed: bool, places: list[int]
) -> None:
    text = start + first + ("</think>" if closed else "") + second
    assert split(cut(text, places)) == split([text])
    assert split(cut(text, places), thinking=True) == split([text], thinking=True)


@settings(max_examples=300, deadline=None)
@given(st.text("ab <>/\n", max_size=20), st.text("ab <>/\n", max_size=20), st.lists(st.integers(0, 99)))
def test_a_thought_and_an_answer_come_out_whole(thought: str, answer: str, places: list[int]) -> None:
    got = split(cut(f"<think>\n{thought}</think>\n\n{answer}", places))
    assert got == (thought.lstrip(), answer.lstrip())


def test_marks_in_the_middle_of_an_answer_are_text() -> None:
    assert split(["Use <think>", "like</think> this"]) == ("", "Use <think>like</think> this")
    assert split(["<think>a</think>b<think>c</think>"]) == ("a", "b<think>c</think>")


def test_an_unclosed_thought_stays_a_thought_and_a_half_mark_is_what_it_was_in() -> None:
    assert split(["<think>so far </thi"]) == ("so far </thi", "")
    assert split(["<thi"]) == ("", "<thi")
    assert split(["  \n"]) == ("", "  \n")
    assert split(["so", " far</thi", "nk>Yes"], thinking=True) == ("so far", "Yes")
    assert split(["<think></think>Yes"]) == ("", "Yes")


def test_answers_without_thoughts_are_not_held_back() -> None:
    splitter = ReasoningSplitter()
    assert splitter.push("Yes") == [("text", "Yes")]
    assert splitter.push(" <") == [("text", " <")]


def test_a_prompt_that_ends_with_the_mark_opens_the_thought() -> None:
    assert opens_thought("<|assistant|><think>\n")
    assert not opens_thought("<|assistant|>")
