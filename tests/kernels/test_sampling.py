"""The native kernel chooses what the reference chooses, to the last token; the reference what the definition says."""

from __future__ import annotations

import ctypes
import math
import random

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from homebox.engine.plan import Admission, Outcome
from homebox.engine.sampler import SlotState, choose
from homebox.kernels.cpu.sampling import NativeSampling
from homebox.kernels.sampling import ONE, REFERENCE, Draw, uniform, weights
from homebox.wire.frames import Sampling

INF = math.inf
SEEDS = st.integers(-(2**63), 2**64 - 1)
WISHES = st.builds(
    Draw,
    row=st.just(0),
    seed=SEEDS,
    position=st.integers(0, 10**6),
    temperature=st.sampled_from([0.7, 1.0, 2.0, 1e6, 1e300, 1e-310, 5e-324]) | st.floats(0.01, 3.0),
    top_k=st.sampled_from([0, 0, 1, 2, 40, 10**9]) | st.integers(0, 300),
    top_p=st.sampled_from([1.0, 1.0, 0.5, 0.9, 0.999999, 1e-300]) | st.floats(1e-12, 1.0),
    min_p=st.sampled_from([0.0, 0.0, 0.05, 1.0]) | st.floats(0.0, 1.0),
)


@st.composite
def rows(draw: st.DrawFn) -> torch.Tensor:
    """Rows of logits as models make them, and as they never should: ties, flat ones, holes, extremes."""
    vocab = draw(st.sampled_from([1, 2, 63, 64, 65, 300, 1000, 2500]) | st.integers(1, 700))
    noise = torch.randn(vocab, generator=torch.Generator().manual_seed(draw(st.integers(0, 2**32))))
    kind = draw(st.sampled_from(["plain", "few values", "equal", "holes", "huge", "infinite", "falling"]))
    row = noise * draw(st.sampled_from([0.01, 1.0, 3.0, 30.0]))
    if kind == "few values":
        row = torch.round(row)
    elif kind == "equal":
        row = torch.full((vocab,), float(row[0]))
    elif kind == "holes":
        row[noise < 0.5] = -INF
    elif kind == "huge":
        row = row * 1e36
    elif kind == "infinite":
        row[noise > 2.0] = INF
    elif kind == "falling":
        row = -torch.arange(vocab) * float(noise[0].abs())
    if not bool((row > -INF).any()):
        row[-1] = 0.0
    return row


@pytest.fixture(scope="session")
def native(functions: ctypes.CDLL) -> NativeSampling:
    return NativeSampling(functions)


@settings(deadline=None, max_examples=80)
@given(rows(), st.lists(WISHES, min_size=1, max_size=4))
def test_the_native_kernel_draws_the_very_token_of_the_reference(
    native: NativeSampling, row: torch.Tensor, draws: list[Draw]
) -> None:
    assert native.draw(row[None], draws) == REFERENCE.draw(row[None], draws)


@settings(deadline=None, max_examples=60)
@given(rows(), st.integers(1, 20))
def test_the_native_kernel_ranks_and_weighs_as_the_reference(
    native: NativeSampling, row: torch.Tensor, count: int
) -> None:
    logits, count = torch.stack((row, row.flip(0))), min(count, len(row))
    assert native.peaks(logits) == REFERENCE.peaks(logits)
    assert native.masses(logits) == REFERENCE.masses(
        logits
    )  # each weight to the bit, or the sum would differ
    assert native.likeliest(logits, count) == REFERENCE.likeliest(logits, count)


def test_a_vocabulary_of_real_size_is_searched_without_being_sorted_and_the_token_is_the_same(
    native: NativeSampling,
) -> None:
    rng = random.Random(3)
    logits = torch.randn(6, 49152, generator=torch.Generator().manual_seed(3))
    logits *= torch.tensor([0.01, 1.0, 2.0, 4.0, 8.0, 1.0])[:, None]  # from flat to sharp
    logits[5] = torch.round(logits[5])
    draws = [
        Draw(i % 6, rng.getrandbits(64), i, 0.8, top_k, top_p, min_p)
        for i, (top_k, top_p, min_p) in enumerate(
            (top_k, top_p, min_p)
            for top_k in (0, 40)
            for top_p in (0.3, 0.9, 0.9999, 1.0)
            for min_p in (0.0, 0.02)
        )
    ]
    assert native.draw(logits, draws) == REFERENCE.draw(logits, draws)


@settings(deadline=None, max_examples=80, suppress_health_check=[HealthCheck.filter_too_much])
@given(rows().filter(lambda row: len(row) <= 700 and float(row.max()) < 1e6), WISHES)
def test_the_reference_draws_by_the_definition_in_floating_point(row: torch.Tensor, wish: Draw) -> None:
    wish = wish._replace(temperature=min(max(wish.temperature, 0.01), 100.0))
    ranked = sorted(range(len(row)), key=lambda token: (-float(row[token]), token))[: wish.top_k or None]
    top = float(row.max())
    weight = {token: math.exp((float(row[token]) - top) / wish.temperature) for token in ranked}
    border, before, kept = wish.top_p * math.fsum(weight.values()), 0.0, []
    for token in ranked:
        assume(before == 0.0 or wish.top_p == 1.0 or abs(before - border) > 1e-9)  # floats cannot tell
        if before and wish.top_p < 1.0 and before >= border:
            break
        before += weight[token]
        if weight[token] >= wish.min_p:
            kept.append(token)
    if not wish.top_k and wish.top_p == 1.0:
        kept.sort()
    target = uniform(wish.seed, wish.position) * math.fsum(weight[token] for token in kept)
    near, passed = set(), 0.0
    for token in kept:
        if passed - 1e-9 <= target <= passed + weight[token] + 1e-9:
            near.add(token)
        passed += weight[token]
    assert set(REFERENCE.draw(row[None], [wish])) <= near


def test_equal_probabilities_on_the_border_of_top_p_are_counted_and_not_guessed() -> None:
    logits = torch.full((1, 8), 0.3)
    for eighths in range(1, 9):
        draws = [Draw(0, seed, 0, 0.7, top_p=eighths / 8) for seed in range(60)]
        assert set(REFERENCE.draw(logits, draws)) == set(range(eighths))


def test_the_weight_of_the_likeliest_is_one_and_of_the_hopeless_nothing() -> None:
    row = torch.tensor([3.0, 3.0 - math.log(2.0), 3.0 - 32.0, -INF])
    one, half, *nothing = weights(row, 3.0, 1.0).tolist()
    assert one == ONE and half / ONE == pytest.approx(0.5, rel=1e-7) and nothing == [0, 0]


def test_of_equal_logits_the_first_token_wins_and_a_nan_is_seen_wherever_it_stands(
    native: NativeSampling,
) -> None:
    logits = torch.randn(140, 130, generator=torch.Generator().manual_seed(1))
    logits[0, [64, 7, 129]] = 50.0
    for token in range(130):
        logits[token + 1, token] = math.nan
    logits[135] = -INF
    tokens, highest = native.peaks(logits)
    assert tokens[0] == REFERENCE.peaks(logits).tokens[0] == 7
    assert [row for row, value in enumerate(highest) if math.isnan(value)] == list(range(1, 131))
    assert highest[135] == -INF
    assert native.draw(logits, [Draw(row, 1, 2, 0.7, 5, 0.9) for row in (1, 135)]) == [-1, -1]


def test_rows_that_lie_apart_in_memory_are_read_where_they_are(native: NativeSampling) -> None:
    wide = torch.randn(8, 200, generator=torch.Generator().manual_seed(2))
    part = wide[::2, 10:143]
    wishes = [Draw(row, 5, row, 1.0, top_p=0.95) for row in (3, 1, 0, 2)]
    assert native.draw(part, wishes) == native.draw(part.contiguous(), wishes)
    assert native.peaks(part) == native.peaks(part.contiguous())


@settings(deadline=None, max_examples=40)
@given(SEEDS, st.integers(0, 2**32))
def test_a_batch_of_all_kinds_of_wishes_ends_the_same_on_both_kernels(
    native: NativeSampling, seed: int, noise: int
) -> None:
    wishes: list[dict[str, object]] = [
        {"temperature": 0.0},
        {"temperature": 0.0, "logprobs": 3, "logit_bias": {4: 9.0, 5: -3.5}},
        {"temperature": 0.8, "repetition_penalty": 1.3, "logprobs": 0},
        {"temperature": 1.2, "top_p": 0.9, "presence_penalty": 0.5, "frequency_penalty": 0.2},
        {"temperature": 1.0, "min_tokens": 5, "end_tokens": (0, 1), "top_k": 7},
        {"temperature": 1.0, "logprobs": 5},
        {"temperature": 1.0, "top_k": 3},
    ]
    states = [
        SlotState(Admission(0, Sampling(max_tokens=9, seed=seed, **wish), (1, 2, 3), (3, 4, 4)))  # type: ignore[arg-type]
        for wish in wishes
    ]
    logits = torch.randn(len(states), 333, generator=torch.Generator().manual_seed(noise)) * 3
    logits[5, 40] = math.nan
    logits[6] = -INF

    def outcomes(kernel: object) -> list[Outcome]:
        return choose(logits.clone(), states, range(len(states)), kernel)  # type: ignore[arg-type]

    assert outcomes(native) == outcomes(REFERENCE)
    assert [bool(outcome.error) for outcome in outcomes(native)] == [False] * 5 + [True] * 2
