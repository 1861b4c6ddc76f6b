"""The step-time model learns what steps cost, keeps what it learnt, and never lets a chunk outgrow its limit."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from homebox.engine.budget import Load, StepTime, chunk_load

TRUTH = (8.0, 1.4, 2e-3, 6e-5)


def truth(load: Load, coefficients: tuple[float, ...] = TRUTH) -> float:
    a, b, c, d = coefficients
    return a + b * load.tokens + c * load.kv_tokens + d * load.query_key_pairs


def batch(rows: int, context: int) -> Load:
    load = Load()
    for _ in range(rows):
        load += chunk_load(context, 1)
    return load


def test_it_learns_the_cost_of_decoding_and_of_chunks_from_noisy_steps() -> None:
    rng = random.Random(1)
    model = StepTime()
    for _ in range(400):
        load = batch(rng.randrange(1, 20), rng.randrange(20, 3000))
        if rng.random() < 0.3:
            load += chunk_load(rng.randrange(4000), rng.randrange(16, 400))
        model.observe(load, truth(load) * rng.uniform(0.9, 1.1))
    for load in (batch(1, 100), batch(16, 1000), batch(8, 500) + chunk_load(3000, 64), chunk_load(0, 512)):
        assert model.predict_ms(load) == pytest.approx(truth(load), rel=0.15)


def test_an_hour_of_decoding_does_not_make_it_forget_what_a_chunk_costs() -> None:
    model = StepTime()
    for n in range(20):
        chunk = chunk_load(200 * n, 256)
        model.observe(chunk, truth(chunk))
    for n in range(5000):
        load = batch(8, 100 + n % 400)
        model.observe(load, truth(load))
    chunk = batch(8, 300) + chunk_load(1000, 256)
    assert model.predict_ms(chunk) == pytest.approx(truth(chunk), rel=0.2)


def test_it_follows_when_the_machine_becomes_slower() -> None:
    model = StepTime()
    for factor in (1.0, 3.0):
        for n in range(200):
            load = batch(1 + n % 12, 200)
            model.observe(load, truth(load) * factor)
    assert model.predict_ms(batch(6, 200)) == pytest.approx(3 * truth(batch(6, 200)), rel=0.15)


def test_a_few_equal_steps_do_not_make_it_believe_that_bigger_ones_are_free() -> None:
    model = StepTime((10.0, 1.0, 0.0, 0.0))
    for _ in range(10):
        model.observe(chunk_load(0, 240), 250.0)
    assert model.predict_ms(chunk_load(0, 512)) > 350


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 600), st.integers(0, 8000), st.floats(0.01, 5000)), max_size=40),
    st.integers(0, 6000),
    st.integers(1, 512),
    st.floats(1, 500),
)
def test_whatever_it_saw_coefficients_are_never_negative_and_the_chunk_is_the_longest_that_fits(
    steps: list[tuple[int, int, float]], start: int, most: int, limit_ms: float
) -> None:
    model = StepTime()
    for tokens, context, ms in steps:
        model.observe(chunk_load(context, tokens), ms)
    assert all(c >= 0 for c in model.coefficients)
    base = batch(4, 50)
    count = model.fit_chunk(base, start, most, limit_ms)
    assert 0 <= count <= most
    assert count == 0 or model.predict_ms(base + chunk_load(start, count)) <= limit_ms
    assert count == most or model.predict_ms(base + chunk_load(start, count + 1)) > limit_ms
