"""Choosing a token in Triton: the very token of the reference."""

from __future__ import annotations

import math
import random

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from homebox.kernels.sampling import REFERENCE, Draw
from homebox.kernels.triton.sampling import MOST, TritonSampling
from tests.kernels.test_sampling import WISHES, rows

TRITON = TritonSampling()


@settings(deadline=None, max_examples=40)
@given(rows(), st.lists(WISHES, min_size=1, max_size=3))
def test_it_draws_the_very_token_of_the_reference(row: torch.Tensor, draws: list[Draw]) -> None:
    assert TRITON.draw(row[None], draws) == REFERENCE.draw(row[None], draws)


def test_in_a_large_vocabulary_what_is_gathered_reaches_for_what_people_ask() -> None:
    rng = random.Random(3)
    logits = torch.randn(3, 9000, generator=torch.Generator().manual_seed(3))
    logits *= torch.tensor([2.0, 4.0, 8.0])[:, None]
    logits[2] = torch.round(logits[2])
    draws = [
        Draw(i % 3, rng.getrandbits(64), i, 0.8, top_k, top_p, min_p)
        for i, (top_k, top_p, min_p) in enumerate(
            (top_k, top_p, min_p) for top_k in (0, 7) for top_p in (0.3, 0.9, 1.0) for min_p in (0.0, 0.02)
        )
    ]
    assert TRITON.draw(logits, draws) == REFERENCE.draw(logits, draws)
    _, missed = TRITON.draw_rows(logits[[draw.row for draw in draws]], draws)
    assert not missed.any()


def test_a_flat_row_is_known_to_be_out_of_reach() -> None:
    logits = torch.zeros(1, 3 * MOST)
    draws = [Draw(0, 5, 0, 1.0, top_p=0.9)]
    _, missed = TRITON.draw_rows(logits, draws)
    assert missed.tolist() == [1]
    assert TRITON.draw(logits, draws) == REFERENCE.draw(logits, draws)


def test_greedy_and_drawn_rows_are_chosen_in_one_go() -> None:
    logits = torch.randn(3, 700, generator=torch.Generator().manual_seed(1)) * 3
    draws = [Draw(0, 1, 2, 0.0), Draw(1, 1, 2, 1.0), Draw(2, 1, 2, 0.7, 5, 0.9)]
    tokens, _ = TRITON.draw_rows(logits, draws)
    wanted = [int(logits[0].argmax()), *REFERENCE.draw(logits, draws[1:])]
    assert tokens.tolist() == wanted


def test_of_equal_logits_the_first_token_wins_and_a_nan_is_seen() -> None:
    logits = torch.randn(4, 1500, generator=torch.Generator().manual_seed(1))
    logits[0, [64, 7, 1400]] = 50.0
    logits[1, 1300] = math.nan
    logits[2] = -math.inf
    tokens, highest = TRITON.peaks(logits)
    wanted = REFERENCE.peaks(logits)
    assert (tokens[0], tokens[3]) == (wanted.tokens[0], wanted.tokens[3]) == (7, wanted.tokens[3])
    assert [math.isnan(value) for value in highest] == [False, True, False, False]
    assert highest[2] == -math.inf
