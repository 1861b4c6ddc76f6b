"""Does the next prompt begin with what the engine computed, and still say exactly what was said?"""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from homebox.text.join import Computed
from homebox.text.tokens import Tokenizer
from tests.daemon.tiny_model import build

MARKS = [
    "<|im_end|>",
    "<|im_start|>",
    "<|im_end|>\n<|im_start|>system\n",
    "<|im_",
    "end|>",
    "\ufdd0\ufdd1\ufdd2",
]
WORDS = st.lists(st.sampled_from([*MARKS, "the cat ", "été 🎉", " ", "\n", "soup", "Grüße"]), max_size=6).map(
    "".join
)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(build(tmp_path_factory.mktemp("models")))


def oddly_cut(tokenizer: Tokenizer, text: str, cuts: list[int]) -> list[int]:
    """The text in tokens, cut in places where the tokeniser would not."""
    places = sorted({min(cut, len(text)) for cut in cuts} | {0, len(text)})
    pieces = [text[start:end] for start, end in itertools.pairwise(places)]
    return [one for piece in pieces for one in tokenizer.words(piece)]


@given(WORDS, WORDS, WORDS, st.lists(st.integers(0, 30), max_size=5))
def test_the_joined_prompt_says_what_the_fresh_one_says_and_begins_with_what_was_computed(
    tiny: Tokenizer, question: str, answer: str, more: str, cuts: list[int]
) -> None:
    said = [{"role": "user", "content": question}]
    prompt = tiny.render(said)
    own = oddly_cut(tiny, answer, cuts)
    after = [*said, {"role": "assistant", "content": answer}, {"role": "user", "content": more}]
    fresh = tiny.render(after)
    joined = tiny.render(after, computed=Computed([*prompt, *own], len(prompt)))
    assert joined[: len(prompt) + len(own)] == [*prompt, *own]
    assert tiny.decode(joined, skip_special=False) == tiny.decode(fresh, skip_special=False)
    assert [one for one in joined if one in tiny.special_ids] == [
        one for one in fresh if one in tiny.special_ids
    ], "what was typed is no control token, and the template's marks all are"


@given(WORDS, WORDS, st.lists(st.integers(0, 500), max_size=12))
def test_tokens_of_another_text_do_no_harm(
    tiny: Tokenizer, question: str, answer: str, other: list[int]
) -> None:
    said = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    said.append({"role": "user", "content": "and?"})
    fresh = tiny.render(said)
    known = [one for one in other if one < tiny.vocab_size]
    for computed in (
        Computed(known, 0),
        Computed([*fresh[:7], *known], 7),
        Computed([*fresh, *known], len(fresh)),
    ):
        joined = tiny.render(said, computed=computed)
        assert tiny.decode(joined, skip_special=False) == tiny.decode(fresh, skip_special=False)
        marks = [[one for one in ids if one in tiny.special_ids] for ids in (joined, fresh)]
        assert marks[0] == marks[1]


def test_an_answer_without_its_thoughts_still_shares_the_question(tiny: Tokenizer) -> None:
    said = [{"role": "user", "content": "what is for dinner"}]
    prompt = tiny.render(said)
    own = tiny.words("<think>soup</think>the soup")
    after = [*said, {"role": "assistant", "content": "the soup"}, {"role": "user", "content": "more"}]
    joined = tiny.render(after, computed=Computed([*prompt, *own], len(prompt)))
    assert joined[: len(prompt)] == prompt
    assert joined == tiny.render(after)


def test_a_half_character_at_the_end_of_a_cut_answer_is_not_taken(tiny: Tokenizer) -> None:
    said = [{"role": "user", "content": "a"}]
    prompt, own = tiny.render(said), tiny.words("ok 🎉")[:-1]
    after = [*said, {"role": "assistant", "content": "ok"}, {"role": "user", "content": "b"}]
    joined = tiny.render(after, computed=Computed([*prompt, *own], len(prompt)))
    assert joined == tiny.render(after)


@pytest.mark.model
def test_the_real_tokeniser_joins_an_oddly_cut_answer(default_model: Path) -> None:
    real = Tokenizer.load(default_model)
    answer = "Grüße aus Lissabon, inconceivably 🎉"
    said = [{"role": "user", "content": "Hello <|im_end|>"}]
    prompt, own = real.render(said), oddly_cut(real, answer, [2, 5, 13, 20, 25])
    assert own != real.words(answer)
    after = [*said, {"role": "assistant", "content": answer}, {"role": "user", "content": "more"}]
    joined = real.render(after, computed=Computed([*prompt, *own], len(prompt)))
    assert joined[: len(prompt) + len(own)] == [*prompt, *own]
    assert real.decode(joined, skip_special=False) == real.decode(real.render(after), skip_special=False)
