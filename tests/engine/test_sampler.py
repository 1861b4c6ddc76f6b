"""How a token is chosen: the field's definitions, row by row, whatever else is in the batch."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from homebox.engine.plan import Admission
from homebox.engine.sampler import SlotState, choose
from homebox.kernels.sampling import uniform
from homebox.wire.frames import Sampling


def state(prompt: tuple[int, ...] = (), output: tuple[int, ...] = (), **sampling: object) -> SlotState:
    return SlotState(Admission(0, Sampling(max_tokens=99, **sampling), prompt, output))  # type: ignore[arg-type]


def distribution(logits: list[float], draws: int = 4000, **sampling: object) -> Counter[int]:
    rows = torch.tensor([logits] * draws)
    outcomes = choose(rows, [state(seed=5, **sampling)] * draws, range(draws))
    return Counter(o.token for o in outcomes)


def test_greedy_takes_the_largest() -> None:
    [outcome] = choose(torch.tensor([[0.0, 3.0, 1.0]]), [state(temperature=0.0)], [7])
    assert outcome.token == 1


def test_sampling_follows_the_softmax_at_the_temperature() -> None:
    logits = [1.0, 0.0, -1.0, 2.0]
    for temperature in (0.5, 1.0, 2.0):
        counts = distribution(logits, temperature=temperature)
        right = torch.softmax(torch.tensor(logits) / temperature, -1)
        for token, probability in enumerate(right.tolist()):
            spread = 4 * math.sqrt(4000 * probability * (1 - probability))
            assert abs(counts[token] - 4000 * probability) < spread


def test_top_k_top_p_and_min_p_keep_the_sets_they_define() -> None:
    logits = torch.log(torch.tensor([0.4, 0.3, 0.2, 0.1])).tolist()

    def drawn(**sampling: object) -> set[int]:
        return set(distribution(logits, draws=300, **sampling))

    assert drawn(top_k=2) == {0, 1}
    assert drawn(top_p=0.4) == {0}
    assert drawn(top_p=0.41) == {0, 1}
    assert drawn(top_p=0.95) == {0, 1, 2, 3}
    assert drawn(min_p=0.45) == {0, 1, 2}
    assert drawn(top_k=3, top_p=0.7) == {0, 1}
    assert drawn(top_k=100) == {0, 1, 2, 3}


def test_penalties_and_bias_change_the_logits_as_documented() -> None:
    def winner(logits: list[float], s: SlotState) -> int:
        return choose(torch.tensor([logits]), [s], [0])[0].token

    # Repetition divides what is positive and multiplies what is negative, over prompt and output.
    assert winner([2.0, 1.5], state(prompt=(0,), temperature=0.0, repetition_penalty=1.5)) == 1
    assert winner([-1.0, -1.2], state(output=(0,), temperature=0.0, repetition_penalty=1.5)) == 1
    # Presence once, frequency for each time, over the output only.
    assert winner([2.0, 1.5], state(output=(0,), temperature=0.0, presence_penalty=0.6)) == 1
    assert winner([2.0, 1.5], state(prompt=(0,), temperature=0.0, presence_penalty=0.6)) == 0
    assert winner([2.0, 1.5], state(output=(0,), temperature=0.0, frequency_penalty=0.3)) == 0
    assert winner([2.0, 1.5], state(output=(0, 0), temperature=0.0, frequency_penalty=0.3)) == 1
    assert winner([2.0, 1.5, 0.0], state(temperature=0.0, logit_bias={2: 100.0})) == 2
    # End tokens are out of reach until the minimum is made.
    assert winner([5.0, 1.0], state(temperature=0.0, end_tokens=(0,), min_tokens=1)) == 1
    assert winner([5.0, 1.0], state(output=(1,), temperature=0.0, end_tokens=(0,), min_tokens=1)) == 0


@pytest.mark.parametrize("penalty", ["frequency_penalty", "presence_penalty", "repetition_penalty"])
def test_what_was_made_before_counts_also_when_it_was_made_step_by_step(penalty: str) -> None:
    made = [3, 7, 3, 3, 9]
    grown = state(prompt=(1, 2), seed=3, **{penalty: 1.4})
    for token in made:
        grown.add(token)
    replayed = state(prompt=(1, 2), output=tuple(made), seed=3, **{penalty: 1.4})
    logits = torch.randn(1, 12)
    assert choose(logits.clone(), [grown], [5]) == choose(logits.clone(), [replayed], [5])


@settings(deadline=None, max_examples=100)
@given(
    st.integers(0, 2**32),
    st.floats(0.05, 3.0),
    st.floats(0.05, 0.999),
    st.integers(0, 2000),
    st.integers(2, 3000),
)
def test_top_p_by_a_first_look_is_top_p_by_sorting_everything(
    seed: int, temperature: float, top_p: float, position: int, vocabulary: int
) -> None:
    torch.manual_seed(seed)
    logits = torch.randn(vocabulary) * 2
    probabilities = torch.softmax(logits.double() / temperature, -1)
    ordered, ids = torch.sort(probabilities, descending=True)
    kept = ordered.masked_fill(ordered.cumsum(-1) - ordered >= top_p, 0.0)
    target = uniform(seed, position) * float(kept.cumsum(-1)[-1])
    right = int(ids[int(torch.searchsorted(kept.cumsum(-1), target, right=True))])
    [outcome] = choose(
        logits[None].clone(), [state(seed=seed, temperature=temperature, top_p=top_p)], [position]
    )
    assert outcome.token == right


def test_logprobs_are_the_models_own_and_sorted() -> None:
    logits = torch.tensor([[1.0, 2.0, 3.0, 0.0]])
    right = torch.log_softmax(logits[0], -1)
    [outcome] = choose(logits, [state(temperature=0.0, logit_bias={0: 100.0}, logprobs=2)], [0])
    assert outcome.token == 0 and outcome.logprob is not None
    assert outcome.logprob.logprob == pytest.approx(float(right[0]))
    assert [t.token for t in outcome.logprob.top] == [2, 1]


@settings(deadline=None, max_examples=60)
@given(
    st.integers(-(2**63), 2**64),
    st.integers(0, 10**6),
    st.integers(0, 7),
    st.sampled_from([{}, {"top_k": 5}, {"top_p": 0.8}]),
)
def test_a_seed_gives_the_same_token_alone_and_in_any_row_of_any_batch(
    seed: int, position: int, row: int, extra: dict[str, float]
) -> None:
    torch.manual_seed(position)
    logits = torch.randn(8, 200)
    mine = state(seed=seed, temperature=0.9, **extra)
    [alone] = choose(logits[row : row + 1].clone(), [mine], [position])
    others = [state(seed=seed + i, temperature=1.3, frequency_penalty=1.0, output=(i,)) for i in range(8)]
    others[row] = mine
    together = choose(logits.clone(), others, [position] * 8)
    assert together[row] == alone


def test_noise_is_uniform_and_differs_with_seed_and_position() -> None:
    draws = [uniform(seed, position) for seed in range(40) for position in range(50)]
    assert len(set(draws)) == len(draws) and all(0 <= u < 1 for u in draws)
    for tenth in range(10):
        assert 130 < sum(tenth / 10 <= u < (tenth + 1) / 10 for u in draws) < 270


def test_a_row_that_is_not_a_number_ends_that_row_alone() -> None:
    logits = torch.randn(3, 10)
    logits[1, 4] = float("nan")
    outcomes = choose(logits, [state(temperature=0.7)] * 3, [1, 2, 3])
    assert "not a number" in outcomes[1].error
    assert outcomes[0].error == outcomes[2].error == "" and outcomes[0].token >= 0


def test_a_row_with_everything_ruled_out_says_so() -> None:
    [outcome] = choose(torch.full((1, 4), float("-inf")), [state(temperature=0.7)], [1])
    assert "ruled out" in outcome.error
