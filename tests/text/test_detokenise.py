"""Streaming text: joined it is the one-shot decode, and nobody sees half a character."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend

from homebox.text.detokenise import Detokeniser
from homebox.text.tokens import Tokenizer

TEXTS = [
    "Hello, world",
    "  leading   spaces\n\n\tand tabs ",
    "héllo e\u0301 Zoë naïve",
    "日本語のテキスト 한국어 中文",
    "👪 👨‍👩‍👧‍👦 🇵🇹 👍🏽 🫠",
    "ไทย العربية עברית हिन्दी",
    "a\u200bb\ufeffc\ufffdd",
]
# U+2581 is how SentencePiece writes a space: a typed one comes back as one.
ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\u2581"), max_size=20)


def stream(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    detokeniser = Detokeniser(tokenizer)
    pieces = [detokeniser.push(one) for one in ids]
    pieces.append(detokeniser.flush())
    assert detokeniser.length == sum(map(len, pieces))
    return pieces


@pytest.mark.parametrize("kind", ["byte level", "sentencepiece"])
def test_joined_text_is_the_one_shot_decode_for_any_tokens(kind: str, make: Callable[..., Tokenizer]) -> None:
    tokenizer = make(kind)
    number = st.integers(0, tokenizer.vocab_size + 2)

    @settings(max_examples=300, deadline=None)
    @given(st.lists(number, max_size=40))
    def check(ids: list[int]) -> None:
        assert "".join(stream(tokenizer, ids)) == tokenizer.decode(ids)

    check()


@pytest.mark.parametrize("kind", ["byte level", "sentencepiece"])
def test_text_cut_into_single_bytes_never_shows_a_broken_character(
    kind: str, make: Callable[..., Tokenizer]
) -> None:
    tokenizer = make(kind)

    @settings(max_examples=200, deadline=None)
    @given(st.one_of(st.sampled_from(TEXTS), ANY_TEXT))
    def check(text: str) -> None:
        ids = tokenizer.encode(text)
        pieces = stream(tokenizer, ids)
        given_out = ""
        for piece in pieces:
            given_out += piece
            assert given_out in (text[: len(given_out)], " " + text[: len(given_out) - 1])
        assert given_out in (text, " " + text)  # SentencePiece puts a space before a text

    check()


def test_one_shot_decode_is_the_reference_librarys_also_for_bytes_that_are_no_text(
    make: Callable[..., Tokenizer],
) -> None:
    tokenizer = make()

    @settings(max_examples=250, deadline=None)
    @given(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=30))
    def check(ids: list[int]) -> None:
        backend: Backend = tokenizer._backend
        assert tokenizer.decode(ids) == backend.decode(ids, skip_special_tokens=True)
        assert tokenizer.decode(ids, skip_special=False) == backend.decode(ids, skip_special_tokens=False)

    check()


@pytest.mark.model
def test_the_real_models_text_streams_and_decodes_as_the_reference_library_decodes_it(
    real: Tokenizer,
) -> None:
    backend: Backend = real._backend
    for text in TEXTS:
        ids = real.encode(text)
        assert "".join(stream(real, ids)) == text == backend.decode(ids)

    @settings(max_examples=300, deadline=None)
    @given(st.lists(st.integers(0, real.vocab_size - 1), max_size=30))
    def check(ids: list[int]) -> None:
        assert "".join(stream(real, ids)) == backend.decode(ids)

    check()


def test_a_character_is_given_by_the_token_that_completes_it(make: Callable[..., Tokenizer]) -> None:
    tokenizer = make()
    ids = [n for n in range(256) if tokenizer.token_bytes(n) in (b"\xe2", b"\x82", b"\xac")]
    by_byte = {tokenizer.token_bytes(n): n for n in ids}
    detokeniser = Detokeniser(tokenizer)
    assert [detokeniser.push(by_byte[b]) for b in (b"\xe2", b"\x82", b"\xac")] == ["", "", "€"]
    assert detokeniser.length == 1
    assert detokeniser.push(by_byte[b"\xe2"]) == ""
    assert detokeniser.flush() == "\ufffd"


def test_control_tokens_give_no_text_unless_asked_for(make: Callable[..., Tokenizer]) -> None:
    tokenizer = make()
    end = tokenizer.end_tokens[0]
    assert Detokeniser(tokenizer).push(end) == ""
    assert Detokeniser(tokenizer, skip_special=False).push(end) == "<|end|>"


def test_the_cost_of_a_token_does_not_grow_with_the_answer(make: Callable[..., Tokenizer]) -> None:
    tokenizer = make()
    (half,) = [n for n in range(256) if tokenizer.token_bytes(n) == b"\xe2"]
    detokeniser = Detokeniser(tokenizer)
    began = time.process_time()
    for _ in range(200_000):
        detokeniser.push(half)
    assert detokeniser.length == 199_999
    assert time.process_time() - began < 5
