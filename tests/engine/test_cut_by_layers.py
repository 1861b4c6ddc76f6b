"""A long prompt beside readers goes through the layers in several steps: the same numbers, for less."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from homebox.engine.blocks import Group, KVSpace
from homebox.engine.budget import Load, StepTime
from homebox.engine.core import Engine
from homebox.engine.plan import Row, StepPlan, StepResult
from homebox.engine.scheduler import Limits, Scheduler
from homebox.wire.frames import FromEngine, Sampling, Start, StepDone, Submit
from tests.engine.conftest import RunningEngine
from tests.engine.null_model import NullRunner
from tests.kernels.cpu_builds import needs_compiler

DOCUMENT, ANSWER = 180, 12
LAYERS = 30


class Slow(StepTime):
    """As if a step took so long, whatever this machine is like."""

    def observe(self, load: Load, step_ms: float) -> None:
        return


class Watched:
    """A runner, and the rows of each of its steps."""

    def __init__(self, engine: Engine) -> None:
        self.steps: list[tuple[Row, ...]] = []
        self._runner = engine._runner
        engine._runner = self

    def launch(self, plan: StepPlan) -> object:
        self.steps.append(plan.rows)
        return self._runner.launch(plan)

    def collect(self, handle: object) -> object:
        return self._runner.collect(handle)

    def pieces(self, name: str) -> list[tuple[int, int] | None]:
        """Through which layers the chunks of a request's prompt went, in order."""
        return [row.layers for rows in self.steps for row in rows if row.id == name and row.count > 1]


def ask(house: RunningEngine, person: str, document: list[int], readers: Iterable[list[int]]) -> None:
    """The document while these are read, which are still being read when it has been."""
    reading = Sampling(max_tokens=ANSWER * 14, temperature=0.0)
    asked = Sampling(max_tokens=ANSWER, temperature=0.0, logprobs=2, prompt_logprobs=1)
    for i, prompt in enumerate(readers):
        house.submit(Submit(f"reader {i}", f"reader {i}", prompt, reading))
    for _ in range(4):
        house.engine.step()
    house.submit(Submit(f"{person}'s", person, document, asked))
    house.run()


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("kernels", ["reference", pytest.param("native", marks=needs_compiler)])
def test_the_answer_is_the_one_that_it_has_alone(
    engine: Callable[..., RunningEngine], kernels: str, depth: int
) -> None:
    house = engine(kernels=kernels, depth=depth, quantize="none")
    house.engine.scheduler.prefill.step_time = Slow((5.0, 1.5, 0.02, 0.0))
    watched = Watched(house.engine)
    document = [(7 * i * i + i) % 290 + 3 for i in range(DOCUMENT)]
    ask(house, "mia", document, [])
    assert set(watched.pieces("mia's")) == {None}, "alone nothing is gained by it"
    ask(house, "leo", document, [[5, 6, 7], [8, 9]])
    assert {(0, 1), (1, 2)} <= set(watched.pieces("leo's"))
    assert house.tokens("leo's") == house.tokens("mia's") and len(house.tokens("mia's")) == ANSWER
    theirs, ours = ([p for p in house.progress(f"{who}'s") if p.logprobs] for who in ("mia", "leo"))
    for a, b in zip(ours, theirs, strict=True):
        assert a.logprobs[0].logprob == pytest.approx(b.logprobs[0].logprob, abs=1e-4)
    of_prompt = {
        who: [score.logprob for p in house.progress(f"{who}'s") for score in p.prompt_logprobs]
        for who in ("mia", "leo")
    }
    assert len(of_prompt["leo"]) == DOCUMENT - 1
    assert of_prompt["leo"] == pytest.approx(of_prompt["mia"], abs=1e-4)


@pytest.mark.model
@needs_compiler
def test_on_the_default_path_it_is_the_same_to_the_bit(default_model: Path) -> None:
    house = RunningEngine(Start(str(default_model), kv_bytes=64 * 2**20, depth=2))
    house.engine.scheduler.prefill.step_time = Slow((5.0, 1.5, 0.02, 0.0))
    watched = Watched(house.engine)
    document = [(7 * i * i + i) % 20_000 + 100 for i in range(DOCUMENT)]
    ask(house, "mia", document, [])
    ask(house, "leo", document, [[5, 6, 7], [8, 9]])
    assert (0, 5) in watched.pieces("leo's") and set(watched.pieces("mia's")) == {None}
    made = [
        [(p.tokens, p.logprobs, p.prompt_logprobs) for p in house.progress(f"{who}'s")]
        for who in ("mia", "leo")
    ]
    said = [
        ([t for p in part for t in p[0]], [x for p in part for x in p[1]], [x for p in part for x in p[2]])
        for part in made
    ]
    assert said[0] == said[1] and len(said[0][2]) == DOCUMENT - 1


@pytest.mark.parametrize("leaves", ["aborted", "preempted"])
def test_who_leaves_in_the_middle_leaves_nothing_to_the_next_one(
    engine: Callable[..., RunningEngine], leaves: str
) -> None:
    house = engine(quantize="none")
    scheduler = house.engine.scheduler
    scheduler.prefill.step_time = Slow((5.0, 1.5, 0.02, 0.0))
    watched = Watched(house.engine)
    document = [(7 * i * i + i) % 290 + 3 for i in range(DOCUMENT)]
    ask(house, "mia", document, [])
    house.submit(Submit("reader", "reader", [5], Sampling(max_tokens=200, temperature=0.0)))
    house.engine.step()
    other = [(3 * i * i + i) % 290 + 3 for i in range(DOCUMENT)]
    house.submit(Submit("leaves", "dad", other, Sampling(max_tokens=ANSWER, temperature=0.0)))
    while not scheduler.live["leaves"].depth:
        house.engine.step()
    if leaves == "aborted":
        house.engine.abort("leaves")
    else:
        scheduler._preempt(scheduler.live["leaves"])
    house.submit(Submit("leo's", "leo", document, Sampling(max_tokens=ANSWER, temperature=0.0), klass="live"))
    house.run()
    assert (0, 1) in watched.pieces("leo's")
    assert house.tokens("leo's") == house.tokens("mia's")
    if leaves == "preempted":
        house.submit(Submit("again", "kim", other, Sampling(max_tokens=ANSWER, temperature=0.0)))
        house.run()
        assert house.tokens("leaves") == house.tokens("again") and len(house.tokens("again")) == ANSWER


@pytest.mark.parametrize("kernels", ["reference", pytest.param("native", marks=needs_compiler)])
def test_what_is_not_a_number_is_seen_and_cleared_in_the_middle(
    engine: Callable[..., RunningEngine], broken_model: Path, kernels: str
) -> None:
    house = engine(model_dir=str(broken_model), kernels=kernels, quantize="none")
    house.engine.scheduler.prefill.step_time = Slow((5.0, 1.5, 0.02, 0.0))
    watched = Watched(house.engine)
    fine = [5, 6, 7, 8]
    house.submit(Submit("alone", "mia", fine, Sampling(max_tokens=ANSWER, temperature=0.0)))
    house.run()
    ask(house, "leo", [5, 299] + [7] * DOCUMENT, [fine])
    assert watched.pieces("leo's") == [(0, 1)]
    assert house.finish("leo's") == "error" and "not a number" in house.progress("leo's")[-1].detail
    assert house.tokens("reader 0")[:ANSWER] == house.tokens("alone")
    cache = house.engine._runner._runner._attention.cache
    assert not any(part.isnan().any() for part in (*cache.k, *cache.v))


class Costly(NullRunner):
    """A step also costs what it reads of keys and values. `stretched`: what each step with readers took to what it would
    have taken for them alone."""

    TIME = StepTime((6.0, 0.8, 2e-3, 0.0))

    def __init__(self, space: KVSpace, layers: int) -> None:
        super().__init__(space, layers=layers)
        self.stretched: list[float] = []

    def collect(self, plan: StepPlan) -> StepResult:
        step_ms = self.TIME.predict_ms(Load(plan.tokens, plan.kv_tokens))
        readers = [row for row in plan.rows if row.count == 1]
        if readers:
            alone = Load(len(readers), sum(row.start + 1 for row in readers))
            self.stretched.append(step_ms / self.TIME.predict_ms(alone))
        return StepResult(plan.step, super().collect(plan).outcomes, step_ms)


def read_a_document(readers: int, layers: int) -> tuple[float, float]:
    """Seconds from its arrival to its first token, and by how much it stretched a step at most; in a simulation."""
    space = KVSpace([Group((0,))], [4000], 16)
    scheduler = Scheduler(Limits(8192, layers=layers), space, StepTime(Costly.TIME.coefficients))
    runner = Costly(space, layers)
    now, first = 0.0, 0.0

    def hear(frame: FromEngine) -> None:
        nonlocal now, first
        if isinstance(frame, StepDone):
            now += frame.step_ms / 1e3
            if any(p.id == "document" and p.tokens for p in frame.progress):
                first = first or now

    house = Engine(scheduler, runner, hear, clock=lambda: now)
    for i in range(readers):
        house.submit(Submit(f"r{i}", f"r{i}", [i] * 100, Sampling(max_tokens=4000)))
    for _ in range(20 if readers else 0):
        house.step()
    asked = now
    runner.stretched.clear()
    house.submit(Submit("document", "dad", [1] * 6000, Sampling(max_tokens=2)))
    while not first:
        house.step()
    return first - asked, max(runner.stretched, default=1.0)


def test_a_document_beside_eight_readers_takes_at_most_two_and_a_half_times_as_long() -> None:
    alone, _ = read_a_document(readers=0, layers=LAYERS)
    beside, stretch = read_a_document(readers=8, layers=LAYERS)
    by_tokens, _ = read_a_document(readers=8, layers=1)
    assert beside <= 2.5 * alone
    assert stretch <= 2.0
    assert by_tokens > 1.3 * beside, "cut by tokens it was meant to cost more"
