"""Does the engine get exactly what can be meant, whatever a client sends?"""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from homebox.daemon.sampling import RANGES, Limits, Wanted, choice_seed, resolve
from homebox.errors import ContextLengthExceeded, InvalidRequest

LIMITS = Limits(context=100, vocab_size=50, end_tokens=(2,), generation={"temperature": 0.6, "top_k": 20})
numbers = st.one_of(st.none(), st.floats(), st.floats(-3, 3))
integers = st.one_of(st.none(), st.integers(), st.integers(-3, 30))


@given(
    floats=st.fixed_dictionaries(dict.fromkeys(RANGES, numbers)),
    integers=st.fixed_dictionaries(
        dict.fromkeys(("max_tokens", "min_tokens", "top_k", "seed", "n", "logprobs"), integers)
    ),
    bias=st.none()
    | st.dictionaries(st.text(max_size=3) | st.integers(-5, 60).map(str), st.floats(), max_size=2),
    stop=st.lists(st.text(max_size=3), max_size=18),
    prompt_tokens=st.integers(1, 120),
)
def test_whatever_comes_in_is_refused_by_name_or_in_range(
    floats: dict[str, float | None],
    integers: dict[str, int | None],
    bias: dict[str, float] | None,
    stop: list[str],
    prompt_tokens: int,
) -> None:
    wanted = Wanted(**floats, **integers, logit_bias=bias, stop=stop)  # type: ignore[arg-type]
    try:
        samplings = resolve(wanted, LIMITS, prompt_tokens)
    except ContextLengthExceeded:
        assert prompt_tokens >= LIMITS.context
        return
    except InvalidRequest as refused:
        assert (
            refused.param in Wanted.__struct_fields__ and refused.param in refused.message
        ) or refused.param == "stop"
        return
    assert len(samplings) == (wanted.n or 1) <= 16
    for sampling in samplings:
        for name, (low, high) in RANGES.items():
            value = getattr(sampling, name)
            assert math.isfinite(value) and low <= value <= high
        assert 1 <= sampling.max_tokens <= LIMITS.context - prompt_tokens
        assert sampling.top_k >= 0 and 0 <= sampling.seed < 2**63
        assert all(0 <= token < 50 and -100 <= value <= 100 for token, value in sampling.logit_bias.items())


def test_the_client_comes_before_the_model_and_the_model_before_the_usual() -> None:
    (own,) = resolve(Wanted(), LIMITS, 10)
    assert (own.temperature, own.top_k, own.top_p, own.max_tokens) == (0.6, 20, 1.0, 90)
    (asked,) = resolve(Wanted(temperature=0.0, top_k=0, max_tokens=5), LIMITS, 10)
    assert (asked.temperature, asked.top_k, asked.max_tokens) == (0.0, 0, 5)


def test_the_owners_cap_holds_whatever_is_asked() -> None:
    capped = Limits(context=100, vocab_size=50, end_tokens=(2,), max_answer_tokens=7)
    assert [resolve(Wanted(max_tokens=n), capped, 10)[0].max_tokens for n in (None, 3, 32000)] == [7, 3, 7]


def test_a_seed_is_drawn_where_none_was_given_and_kept_where_one_was() -> None:
    assert resolve(Wanted(), LIMITS, 1)[0].seed != resolve(Wanted(), LIMITS, 1)[0].seed
    assert resolve(Wanted(seed=5), LIMITS, 1)[0].seed == 5
    assert 0 <= resolve(Wanted(seed=-(2**63)), LIMITS, 1)[0].seed < 2**63
    seeds = [sampling.seed for sampling in resolve(Wanted(seed=5, n=16), LIMITS, 1)]
    assert seeds == [choice_seed(5, i) for i in range(16)] and len(set(seeds)) == 16


@pytest.mark.parametrize("prompt_tokens", [100, 101, 10**6])
def test_too_long_a_prompt_says_both_counts(prompt_tokens: int) -> None:
    with pytest.raises(ContextLengthExceeded) as refused:
        resolve(Wanted(), LIMITS, prompt_tokens)
    assert refused.value.message.startswith("This model's maximum context length is 100 tokens")
    assert str(prompt_tokens) in refused.value.message
