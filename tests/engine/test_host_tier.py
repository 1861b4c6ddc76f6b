"""A conversation that rests in host memory goes on as if it had never left, and a preempted one is not computed again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from homebox.engine.plan import StepPlan
from homebox.errors import UsageError
from homebox.wire.frames import Sampling, Start, Submit, TokenLogprob
from tests.engine.conftest import RunningEngine
from tests.kernels.cpu_builds import needs_compiler

Make = Callable[..., RunningEngine]

BLOCK = 16
POOL, HOST = 12, 48  # blocks
KERNELS = [
    ("reference", "none"),
    pytest.param("native", "none", marks=needs_compiler),
    pytest.param("native", "int8", marks=needs_compiler),
    pytest.param("native", "int4", marks=needs_compiler),
]


def prompt(n: int, seed: int, vocabulary: int = 300) -> list[int]:
    return torch.randint(3, vocabulary, (n,), generator=torch.Generator().manual_seed(seed)).tolist()


def greedy(max_tokens: int, logprobs: int | None = None) -> Sampling:
    return Sampling(max_tokens=max_tokens, temperature=0.0, logprobs=logprobs)


def sizes(make: Make, blocks: int, host: int, **start: object) -> RunningEngine:
    """An engine with so many blocks, and a tier of so many."""
    probe = make(**start)
    each = probe.ready.kv_bytes // probe.ready.total_blocks
    return make(kv_bytes=blocks * each, kv_host_bytes=host * each, **start)


def logprobs(house: RunningEngine, name: str) -> list[TokenLogprob]:
    return [each for progress in house.progress(name) for each in progress.logprobs]


def two_turns(house: RunningEngine, others: int, vocabulary: int = 300) -> None:
    """A question, `others` that fill the pool, and the next turn."""
    first = prompt(100, 1, vocabulary)
    house.submit(Submit("first", "mia", first, greedy(8, logprobs=2)))
    house.run()
    for i in range(others):
        house.submit(Submit(f"other{i}", "leo", prompt(150, 10 + i, vocabulary), greedy(2)))
        house.run()
    second = [*first, *house.tokens("first"), *prompt(20, 2, vocabulary)]
    house.submit(Submit("second", "mia", second, greedy(8, logprobs=2)))
    house.run()


@pytest.mark.parametrize(("kernels", "quantize"), KERNELS)
def test_the_next_turn_of_a_conversation_that_was_moved_out_is_a_hit_and_says_the_same(
    engine: Make, kernels: str, quantize: str
) -> None:
    settings = {"kernels": kernels, "quantize": quantize}
    roomy = sizes(engine, 64, 0, **settings)
    two_turns(roomy, 3)
    tiered = sizes(engine, POOL, HOST, **settings)
    two_turns(tiered, 3)
    hit = (100 + 8 - 1) // BLOCK * BLOCK  # the last token of an answer is computed by nobody
    assert tiered.progress("second")[-1].cached == roomy.progress("second")[-1].cached == hit
    assert tiered.engine.scheduler.pool_state().host_hit_tokens == hit, "the pool was meant to be overrun"
    assert tiered.ready.host_blocks == tiered.engine.scheduler.pool_state().host_total == HOST
    for name in ("first", "second"):
        assert tiered.tokens(name) == roomy.tokens(name)
        assert logprobs(tiered, name) == logprobs(roomy, name)
    forgetful = sizes(engine, POOL, 0, **settings)
    two_turns(forgetful, 3)
    assert forgetful.progress("second")[-1].cached == 0
    assert forgetful.tokens("second") == tiered.tokens("second")


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize(("kernels", "quantize"), KERNELS)
def test_who_is_preempted_computes_at_most_a_block_again_and_says_the_same(
    engine: Make, kernels: str, quantize: str, depth: int
) -> None:
    settings = {"kernels": kernels, "quantize": quantize, "depth": depth}
    talks = [Submit(str(i), "ab"[i % 2], prompt(20 + 9 * i, i), greedy(60, logprobs=1)) for i in range(4)]
    alone = engine(**settings)
    for talk in talks:
        alone.submit(talk)
        alone.run()
    house = sizes(engine, POOL, HOST, **settings)
    # With its usual horizon, admission would leave room for these answers.
    house.engine.scheduler.admission.horizon_tokens = 0
    plans: list[StepPlan] = []
    launch = house.engine._runner.launch
    house.engine._runner.launch = lambda plan: (plans.append(plan), launch(plan))[1]  # type: ignore[method-assign]
    house.submit(*talks)
    house.run()
    preemptions = house.engine.scheduler.preemptions
    assert preemptions > 0, "the pool was meant to be too small"
    computed = sum(row.count for plan in plans for row in plan.rows if row.layers is None)
    once = sum(len(talk.prompt) + 60 - 1 for talk in talks)
    # At depth 2 the step that is launched before somebody is found to have ended may compute a token of nobody.
    assert computed <= once + BLOCK * preemptions + (depth - 1) * len(talks)
    for talk in talks:
        assert house.tokens(talk.id) == alone.tokens(talk.id) and len(house.tokens(talk.id)) == 60
        if kernels == "native":
            assert logprobs(house, talk.id) == logprobs(alone, talk.id)


@needs_compiler
@pytest.mark.model
def test_with_the_default_model_too_to_the_bit(default_model: Path) -> None:
    def house(blocks: int, host: int) -> RunningEngine:
        each = 22.5 * 1024 * BLOCK
        return RunningEngine(
            Start(str(default_model), kv_bytes=int(blocks * each), kv_host_bytes=int(host * each))
        )

    roomy, tiered = house(40, 0), house(POOL, HOST)
    for each in (roomy, tiered):
        two_turns(each, 1, each.ready.vocab_size)
    assert tiered.ready.host_blocks == HOST and tiered.ready.total_blocks == POOL
    assert tiered.engine.scheduler.pool_state().host_hit_tokens > 0
    assert tiered.progress("second")[-1].cached == roomy.progress("second")[-1].cached > 90
    for name in ("first", "second"):
        assert tiered.tokens(name) == roomy.tokens(name)
        assert logprobs(tiered, name) == logprobs(roomy, name)


def test_by_itself_there_is_no_tier_on_a_cpu(engine: Make) -> None:
    assert engine().ready.host_blocks == engine(kv_host_bytes=0).ready.host_blocks == 0


def test_too_little_host_memory_for_a_block_is_said_before_anything_runs(engine: Make) -> None:
    with pytest.raises(UsageError, match=r"1 KiB of host memory for KV hold no block of 16 tokens") as caught:
        engine(kv_host_bytes=1024)
    assert "kv_host_memory" in str(caught.value)
