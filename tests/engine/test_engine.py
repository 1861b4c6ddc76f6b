"""The engine with a real (tiny) model: what a request may expect, and what it may not do to others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM

from homebox.errors import UsageError
from homebox.wire.frames import Sampling, StepDone, StepStarted, Submit
from tests.engine.conftest import RunningEngine
from tests.kernels.cpu_builds import needs_compiler

Make = Callable[..., RunningEngine]


def greedy(max_tokens: int = 12, **more: object) -> Sampling:
    return Sampling(max_tokens=max_tokens, temperature=0.0, **more)  # type: ignore[arg-type]


def prompt(n: int, seed: int = 0) -> list[int]:
    return torch.randint(3, 300, (n,), generator=torch.Generator().manual_seed(seed)).tolist()


def alone(make: Make, request: Submit, **start: object) -> list[int]:
    house = make(**start)
    house.submit(request)
    house.run()
    return house.tokens(request.id)


def test_impossible_requests_are_refused_with_the_numbers_and_the_others_do_not_notice(engine: Make) -> None:
    good = Submit("good", "mia", prompt(20), greedy())
    undisturbed = alone(engine, good)
    house = engine()
    house.submit(good)
    house.engine.step()
    house.submit(
        Submit("empty", "leo", [], greedy()),
        Submit("long", "leo", prompt(256), greedy()),
        Submit("good", "leo", prompt(3), greedy()),
        Submit("embed", "leo", prompt(3), greedy(), kind="embed"),
    )
    house.run()
    refused = house.refusals()
    assert set(refused) == {"empty", "long", "good", "embed"}
    assert "empty" in refused["empty"].message
    assert refused["long"].code == "context_length_exceeded"
    assert refused["long"].message.startswith(
        "This model's maximum context length is 256 tokens; the prompt has 256"
    )
    assert house.tokens("good") == undisturbed and house.finish("good") == "length"


def test_a_request_that_memory_cannot_hold_is_refused_and_one_that_fills_it_ends_by_length(
    engine: Make,
) -> None:
    probe = engine()
    block_bytes = probe.ready.kv_bytes // probe.ready.total_blocks
    house = engine(kv_bytes=8 * block_bytes)
    assert house.ready.max_context == 128 and any("128 tokens" in note for note in house.ready.notes)
    house.submit(Submit("large", "mia", prompt(140), greedy()), Submit("other", "leo", prompt(9), greedy()))
    house.submit(Submit("greedy", "mia", prompt(100), greedy(max_tokens=10**12)))
    house.run()
    assert "128 tokens" in house.refusals()["large"].message and "140" in house.refusals()["large"].message
    assert house.finish("other") == "length" and len(house.tokens("other")) == 12
    assert house.finish("greedy") == "length" and len(house.tokens("greedy")) == 28
    assert "128" in house.progress("greedy")[-1].detail


def test_too_little_memory_is_said_before_anything_runs(engine: Make) -> None:
    with pytest.raises(UsageError, match=r"17 KiB for KV memory hold [0-9] blocks of 16 tokens") as caught:
        engine(kv_bytes=17 * 1024)
    assert "kv_memory" in str(caught.value)


@pytest.mark.parametrize("depth", [1, 2])
def test_seeded_sampling_gives_the_same_text_alone_and_beside_seven_others(engine: Make, depth: int) -> None:
    mine = Submit("mine", "mia", prompt(30), Sampling(max_tokens=40, temperature=0.8, top_p=0.95, seed=1234))
    undisturbed = alone(engine, mine)
    house = engine(depth=depth)
    for i in range(7):
        sampling = Sampling(max_tokens=10 + 5 * i, temperature=1.2, seed=i, frequency_penalty=0.5)
        house.submit(Submit(f"other{i}", "leo", prompt(10 * i + 1, seed=i), sampling))
        if i == 3:
            house.submit(mine)
            house.engine.step()
    house.run()
    assert house.tokens("mine") == undisturbed


def test_another_seed_gives_another_text(engine: Make) -> None:
    texts = {
        tuple(alone(engine, Submit("a", "mia", prompt(5), Sampling(max_tokens=20, seed=seed))))
        for seed in range(4)
    }
    assert len(texts) == 4


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(max_tokens=40, temperature=0.9, seed=7),
        Sampling(max_tokens=40, temperature=0.0, frequency_penalty=1.5, repetition_penalty=1.2),
        Sampling(max_tokens=40, temperature=0.0, min_tokens=38, end_tokens=tuple(range(250))),
    ],
    ids=["seeded", "penalties", "minimum"],
)
def test_a_replay_goes_on_as_if_nothing_had_happened(engine: Make, sampling: Sampling) -> None:
    whole = alone(engine, Submit("a", "mia", prompt(20), sampling))
    for made in (1, 17, 39):
        rest = alone(engine, Submit("a", "mia", prompt(20), sampling, output=whole[:made], charged=20))
        assert whole[:made] + rest == whole
    finished = engine()
    finished.submit(Submit("a", "mia", prompt(20), sampling, output=whole))
    finished.run()
    assert finished.finish("a") is not None and finished.tokens("a") == []


def test_end_tokens_end_an_answer_unless_they_are_ignored(engine: Make) -> None:
    text = alone(engine, Submit("a", "mia", prompt(20), greedy(20)))
    end = text[7]
    first = text.index(end)
    house = engine()
    house.submit(Submit("stops", "mia", prompt(20), greedy(20, end_tokens=(end,))))
    house.submit(Submit("goes on", "mia", prompt(20), greedy(20, end_tokens=(end,), ignore_eos=True)))
    house.run()
    assert house.tokens("stops") == text[: first + 1] and house.finish("stops") == "stop"
    assert house.tokens("goes on") == text and house.finish("goes on") == "length"


@pytest.mark.parametrize("depth", [1, 2])
def test_an_abort_takes_effect_at_the_next_step_also_in_prefill_and_frees_everything(
    engine: Make, depth: int
) -> None:
    house = engine(depth=depth, max_chunk_tokens=16)
    house.submit(Submit("decoding", "mia", prompt(5), greedy(200)))
    for _ in range(10):
        house.engine.step()
    house.submit(
        Submit("prefilling", "mia", prompt(200, 1), greedy(20)), Submit("waiting", "mia", prompt(8), greedy())
    )
    house.engine.step()
    house.engine.step()
    got = len(house.tokens("decoding"))
    for name in ("decoding", "prefilling", "waiting"):
        house.engine.abort(name)
    house.engine.abort("nobody")
    house.run()
    assert [house.finish(n) for n in ("decoding", "prefilling", "waiting")] == ["cancelled"] * 3
    assert len(house.tokens("decoding")) <= got + depth - 1
    pool = house.engine.scheduler.pool_state()
    assert pool.used == 0 and house.engine.idle


def test_who_stops_an_answer_does_not_wait_for_another_step_of_the_others(engine: Make) -> None:
    house = engine()
    house.submit(
        Submit("goes on", "mia", prompt(5), greedy(20)), Submit("stops", "leo", prompt(5, 1), greedy(20))
    )
    for _ in range(4):
        house.engine.step()
    house.engine.abort("stops")
    before = len(house.frames)
    house.engine.step()
    told = house.frames[before]
    assert isinstance(told, StepDone) and [(p.id, p.finish) for p in told.progress] == [
        ("stops", "cancelled")
    ]
    assert isinstance(house.frames[before + 1], StepStarted) and told.pool.used > 0
    house.run()
    assert house.finish("goes on") == "length" and len(house.tokens("goes on")) == 20


def test_a_second_question_finds_the_first_ones_blocks_but_another_person_does_not(engine: Make) -> None:
    house = engine()
    house.submit(Submit("first", "mia", prompt(64), greedy(4)))
    house.run()
    house.submit(Submit("again", "mia", prompt(64), greedy(4)), Submit("leo's", "leo", prompt(64), greedy(4)))
    house.submit(Submit("vouched", "leo", prompt(64), greedy(4), shared_prefix=64))
    house.run()
    assert house.progress("again")[-1].cached == 48  # all but the block of the last token
    assert house.progress("leo's")[-1].cached == 0
    assert len({tuple(house.tokens(n)) for n in ("first", "again", "leo's", "vouched")}) == 1


def test_prompt_logprobs_are_the_models_whatever_the_chunks(engine: Make, tiny_model: Path) -> None:
    ids = prompt(50)
    model = LlamaForCausalLM.from_pretrained(tiny_model).eval()
    with torch.inference_mode():
        right = model(torch.tensor([ids])).logits[0].log_softmax(-1)
    house = engine(max_chunk_tokens=16)
    house.submit(Submit("warm", "mia", ids, greedy(2)))
    house.run()
    house.submit(Submit("a", "mia", ids, greedy(3, prompt_logprobs=2, logprobs=1)))
    house.run()
    scores = [s for p in house.progress("a") for s in p.prompt_logprobs]
    assert len(scores) == 49 and house.progress("a")[-1].cached == 0
    for position, score in enumerate(scores):
        assert score.logprob == pytest.approx(float(right[position, ids[position + 1]]), abs=1e-3)
        assert score.top[0].token == int(right[position].argmax())
    chosen = [s for p in house.progress("a") for s in p.logprobs]
    assert len(chosen) == 3 and all(s.logprob == pytest.approx(s.top[0].logprob) for s in chosen)


@pytest.mark.parametrize("where", ["at the end", "in an early chunk"])
@pytest.mark.parametrize(
    ("kernels", "quantize"),
    [
        ("reference", "none"),
        pytest.param("native", "none", marks=needs_compiler),
        pytest.param("native", "int8", marks=needs_compiler),
        pytest.param("native", "int4", marks=needs_compiler),
    ],
)
def test_a_model_that_breaks_for_one_request_ends_that_request_alone(
    engine: Make, broken_model: Path, where: str, kernels: str, quantize: str
) -> None:
    poison = 299
    fine = [t for t in prompt(20) if t != poison]
    start = {"model_dir": str(broken_model), "kernels": kernels, "quantize": quantize}
    undisturbed = alone(engine, Submit("fine", "mia", fine, greedy()), **start)
    house = engine(max_chunk_tokens=32, **start)
    bad = [5] * 60 + [poison] if where == "at the end" else [5, poison] + [5] * 60
    house.submit(Submit("fine", "mia", fine, greedy()), Submit("broken", "leo", bad, greedy()))
    house.run()
    assert house.finish("broken") == "error" and "not a number" in house.progress("broken")[-1].detail
    assert house.tokens("fine") == undisturbed
    # Whoever gets the broken one's blocks next does not inherit what is in them.
    total = house.ready.total_blocks
    for i in range(total // 2):
        house.submit(Submit(f"next{i}", "mia", fine, greedy(prompt_logprobs=0)))
    house.run()
    assert {tuple(house.tokens(f"next{i}")) for i in range(total // 2)} == {tuple(undisturbed)}


def test_every_step_is_announced_before_it_runs_and_reported_after(engine: Make) -> None:
    house = engine()
    house.submit(Submit("a", "mia", prompt(20), greedy(5)), Submit("b", "leo", prompt(3), greedy(2)))
    house.run()
    started = [f for f in house.frames if isinstance(f, StepStarted)]
    done = [f for f in house.frames if isinstance(f, StepDone) and f.step]
    assert [f.step for f in started] == [f.step for f in done] == list(range(1, len(done) + 1))
    for before, after in zip(started, done, strict=True):
        assert {p.id for p in after.progress} == set(before.requests)
    assert done[0].places == [] and done[-1].running == 0


def test_the_suspect_of_a_crash_runs_alone_until_it_has_made_a_token(engine: Make) -> None:
    house = engine()
    house.submit(Submit("suspect", "leo", prompt(40), greedy(6), exclusive=True))
    house.submit(Submit("other", "mia", prompt(4), greedy(6)))
    house.run()
    steps = [f.requests for f in house.frames if isinstance(f, StepStarted)]
    first = next(i for i, requests in enumerate(steps) if "other" in requests)
    assert all(requests == ["suspect"] for requests in steps[:first]) and first >= 1
    assert house.finish("suspect") == house.finish("other") == "length"
