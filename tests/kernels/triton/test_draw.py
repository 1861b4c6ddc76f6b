"""Choosing a token in Triton: the very token of the reference."""

from __future__ import annotations

import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from homebox.kernels.sampling import REFERENCE, Draw
from homebox.kernels.triton.sampling import BROKEN, COLUMNS, EMPTY, NUMBER, Sizes, TritonSampling, wish
from tests.kernels.test_sampling import WISHES, rows

# What is handed in reaches in one, seldom does in another, and never in the last: it goes over the whole row.
SIZES = [Sizes(block=64, most=256), Sizes(block=32, most=128, look=2.0), Sizes(block=32, most=256, look=0.01)]
SMALL = TritonSampling(SIZES[0])


def drawn(kernel: TritonSampling, logits: torch.Tensor, draws: list[Draw]) -> tuple[list[int], list[int]]:
    """Tokens and flags, a draw for each row; every element is written."""
    tokens, flags = torch.full((len(logits),), -7), torch.full((len(logits),), -7, dtype=torch.int32)
    room = kernel.room(len(logits) + 2, logits.shape[1], torch.device("cpu"))
    for name in ("peaks", "places", "sums", "highest", "floors", "kinds", "counts", "items"):
        getattr(room, name).fill_(-7)  # what a step before has left
    wishes = torch.tensor([wish(draw, logits.shape[1]) for draw in draws], dtype=torch.float64)
    kernel.choose(logits, wishes, tokens, flags, room)
    return tokens.tolist(), flags.tolist()


@pytest.mark.parametrize("sizes", SIZES)
@settings(deadline=None, max_examples=8)
@given(rows().filter(lambda row: len(row) <= 300), st.lists(WISHES, min_size=1, max_size=2))
def test_it_draws_the_very_token_of_the_reference(sizes: Sizes, row: torch.Tensor, draws: list[Draw]) -> None:
    assert TritonSampling(sizes).draw(row[None], draws) == REFERENCE.draw(row[None], draws)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("sizes", SIZES)
@settings(deadline=None, max_examples=100)
@given(rows(), st.lists(WISHES, min_size=1, max_size=3))
def test_it_draws_the_very_token_of_the_reference_whatever_the_row(
    sizes: Sizes, row: torch.Tensor, draws: list[Draw]
) -> None:
    assert TritonSampling(sizes).draw(row[None], draws) == REFERENCE.draw(row[None], draws)


@pytest.mark.parametrize("vocab", [2000, pytest.param(151936, marks=pytest.mark.long)])
def test_a_large_vocabulary_is_drawn_from_in_blocks_as_it_is_on_a_gpu(vocab: int) -> None:
    rng = random.Random(3)
    wishes = [(0, 1.0, 0.02), (0, 0.9, 0.0), (7, 1.0, 0.0), (40, 0.9, 0.02)]
    logits = torch.randn(len(wishes), vocab, generator=torch.Generator().manual_seed(3))
    logits *= torch.tensor([2.0, 4.0, 8.0, 8.0])[:, None]
    logits[2] = torch.round(logits[2])
    draws = [
        Draw(row, rng.getrandbits(64), row, 0.8, top_k, top_p, min_p)
        for row, (top_k, top_p, min_p) in enumerate(wishes)
    ]
    assert TritonSampling().draw(logits, draws) == REFERENCE.draw(logits, draws)


def test_greedy_drawn_and_broken_rows_are_chosen_in_one_go() -> None:
    logits = torch.randn(5, 200, generator=torch.Generator().manual_seed(1)) * 3
    logits[3, 150] = math.nan
    logits[4] = -math.inf
    draws = [
        Draw(0, 1, 2, 0.0),
        Draw(1, 1, 2, 1.0),
        Draw(2, 1, 2, 0.7, 5, 0.9),
        Draw(3, 1, 2, 0.7, 5),
        Draw(4, 1, 2, 1.0),
    ]
    tokens, flags = drawn(SMALL, logits, draws)
    assert tokens[:3] == [int(logits[0].argmax()), *REFERENCE.draw(logits, draws[1:3])]
    assert flags == [0, 0, 0, BROKEN, EMPTY]
    assert all(0 <= token < 200 for token in tokens)  # what the next step reads is a token, whatever it is


@pytest.mark.parametrize("sizes", SIZES)
def test_equal_tokens_on_a_border_are_counted_and_not_guessed(sizes: Sizes) -> None:
    """Of eight alike, drawn from the far end: the last one that is left."""
    kernel, logits = TritonSampling(sizes), torch.full((9, 8), 0.3)
    draws = [Draw(0, 1, 0, 0.7, top_k=k) for k in (1, 3, 7, 8)]
    draws += [Draw(0, 1, 0, 0.7, top_p=eighths / 8) for eighths in (1, 4, 7)]
    draws += [Draw(0, 1, 0, 0.7, 6, 0.5), Draw(0, 1, 0, 0.7)]
    wishes = torch.tensor([wish(draw, 8) for draw in draws], dtype=torch.float64)
    tokens, flags = torch.empty(9, dtype=torch.int64), torch.empty(9, dtype=torch.int32)
    for number, wanted in ((1 - 2**-53, [0, 2, 6, 7, 0, 3, 6, 2, 7]), (0.0, [0] * 9)):
        wishes[:, NUMBER] = number
        kernel.choose(logits, wishes, tokens, flags, kernel.room(9, 8, torch.device("cpu")))
        assert tokens.tolist() == wanted


def test_where_most_tokens_are_ruled_out_top_k_is_among_what_is_left() -> None:
    logits = torch.full((3, 200), -math.inf)
    logits[:, [3, 60, 130]] = torch.tensor([1.0, 1.5, 0.5])
    draws = [Draw(row, 9, row, 1.0, 40) for row in range(3)]
    assert SMALL.draw(logits, draws) == REFERENCE.draw(logits, draws)


def test_from_token_to_token_one_number_of_a_wish_changes() -> None:
    before, after = (wish(Draw(0, 8, position, 0.7, 5, 0.9, 0.1), 100) for position in (4, 5))
    assert [column for column in range(COLUMNS) if before[column] != after[column]] == [NUMBER]


def test_of_equal_logits_the_first_token_wins_and_a_nan_is_seen() -> None:
    logits = torch.randn(4, 300, generator=torch.Generator().manual_seed(1))
    logits[0, [64, 7, 299]] = 50.0
    logits[1, 130] = math.nan
    logits[2] = -math.inf
    tokens, highest = SMALL.peaks(logits)
    wanted = REFERENCE.peaks(logits)
    assert (tokens[0], tokens[3]) == (wanted.tokens[0], wanted.tokens[3]) == (7, wanted.tokens[3])
    assert [math.isnan(value) for value in highest] == [False, True, False, False]
    assert highest[2] == -math.inf
