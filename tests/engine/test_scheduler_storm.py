"""Whatever happens in whatever order, the scheduler and the block pool keep their promises.

People submit, abort, and engines crash, at depth 1 and 2, with a pool so small that preemption is the normal case. At
each step the invariant holds (free + cached + used = total, every reference explained); every text is the one that the
prompt alone determines; every request ends exactly once; and an eligible sequence gets a token within N steps:

    a sequence that is decoding is in the next plan (N = 1), or at depth 2 in the one after it (N = 2, where the block
    it needs is still read by a running step), unless it gives way, which the oldest of the highest class never does;
    a prompt of P tokens that is in the running set advances so that it has its first token within
    N = 8 * ceil(P / 16) * (sequences running), the floor of the chunk budget.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from homebox.engine.blocks import Group, KVSpace
from homebox.engine.prefill import FLOOR_EVERY, FLOOR_TOKENS
from homebox.engine.request import Sequence, State
from homebox.engine.scheduler import Limits, Scheduler
from homebox.wire.frames import Progress, Refused, Sampling, Submit
from tests.engine.null_model import END, NullRunner, expected

BLOCK = 4
CONTEXT = 72
GROUPS = [Group((0, 1)), Group((2,), window=10)]


def weak_hash(key: Any) -> int:
    return hash(key) & 1  # two buckets: nearly everything collides


class House:
    """A scheduler, a null model, and everything that was promised to anybody."""

    def __init__(
        self, depth: int, blocks: int, hash_key: Any, groups: list[Group], layers: int = 1, host: int = 0
    ) -> None:
        self.depth, self.blocks, self.hash_key, self.groups = depth, blocks, hash_key, groups
        self.layers, self.host = layers, host
        self.cuts = self.moved_out = self.moved_in = self.brought = 0
        self.now = 0.0
        self.received: dict[str, list[int]] = {}
        self.ended: dict[str, str] = {}
        self.requests: dict[str, Submit] = {}
        self.limit: dict[str, int] = {}
        self.charged: dict[str, int] = {}
        self.preemptions = self.hits = self.crashes = self.sharing = self.doubling = 0
        self.starving: dict[tuple[str, int], int] = {}
        self._start()

    def _start(self) -> None:
        self.space = KVSpace(
            self.groups, [self.blocks] * len(self.groups), BLOCK, self.hash_key, host_slots=self.host
        )
        limits = Limits(CONTEXT, max_running=4, max_chunk_tokens=24, horizon_tokens=6, layers=self.layers)
        self.scheduler = Scheduler(limits, self.space)
        # With several layers a prompt takes so long that its chunks are cut.
        step_ms, token_ms = (30.0, 0.0) if self.layers == 1 else (4.0, 8.0)
        self.runner = NullRunner(self.space, step_ms, token_ms, self.layers)
        self.flights: deque[Any] = deque()

    def text(self, prompt: list[int], max_tokens: int, limit: int) -> list[int]:
        """What the model answers."""
        return expected(prompt, max_tokens, limit)

    def submit(self, request: Submit) -> None:
        self.requests[request.id] = request
        refused = self.scheduler.submit(request)
        if refused:
            assert len(request.prompt) >= min(CONTEXT, self.blocks * BLOCK) or not request.prompt
            self._end(request.id, refused.code)
        else:
            self.received[request.id] = []
            self.limit[request.id] = min(CONTEXT, self.blocks * BLOCK)

    def abort(self, request_id: str) -> None:
        self.scheduler.abort(request_id)
        self._take(self.scheduler.take_ended())

    def launch(self) -> None:
        self.now += 0.05
        before = {s.id: (s, s.pending, s.residency) for s in self.scheduler.running}
        plan = self.scheduler.plan(self.now)
        self._take(self.scheduler.take_ended())
        if plan is None:
            assert self.flights or not self.scheduler.live, "somebody is here and nothing is computed"
        else:
            self.flights.append((plan, self.runner.launch(plan)))
            self._nobody_starves(before, {row.id for row in plan.rows})

    def collect(self) -> None:
        plan, handle = self.flights.popleft()
        self._take(self.scheduler.commit(plan, self.runner.collect(handle)))
        self._take(self.scheduler.take_ended())

    def crash(self) -> None:
        """The engine is gone; the daemon sends everything again, with what had arrived."""
        self.crashes += 1
        self._count()
        alive = [r for i, r in self.requests.items() if i not in self.ended]
        self._start()
        self.starving = {}
        for r in alive:
            again = Submit(
                r.id, r.person, r.prompt, r.sampling, r.klass, r.weight, exclusive=r.exclusive, output=list(self.received[r.id]), charged=self.charged.get(r.id, 0), shared_prefix=r.shared_prefix,
            )  # fmt: skip
            assert not isinstance(self.scheduler.submit(again), Refused)
        self._take(self.scheduler.take_ended())

    def _take(self, progress: list[Progress]) -> None:
        for p in progress:
            assert p.id not in self.ended, "a request ended twice, or went on after its end"
            self.received[p.id] += p.tokens
            assert p.charged >= self.charged.get(p.id, 0)
            self.charged[p.id] = p.charged
            request = self.requests[p.id]
            whole = self.text(request.prompt, request.sampling.max_tokens, self.limit[p.id])
            assert self.received[p.id] == whole[: len(self.received[p.id])], (
                "not the text that the prompt determines"
            )
            if p.finish:
                assert p.finish in ("stop", "length", "cancelled")
                if p.finish != "cancelled":
                    assert self.received[p.id] == whole
                    assert (p.finish == "stop") == (whole[-1] == END)
                self._end(p.id, p.finish)

    def _end(self, request_id: str, reason: str) -> None:
        assert request_id not in self.ended
        self.ended[request_id] = reason

    def _nobody_starves(self, before: dict[str, tuple[Sequence, int, int]], planned: set[str]) -> None:
        if any(seq.alone for seq in self.scheduler.running):
            return  # the suspect of a crash runs alone until it has made a token: the others wait that long
        running = len(self.scheduler.running)
        for seq, pending, residency in before.values():
            key = (seq.id, residency)
            if (
                seq.state is not State.RUNNING
                or seq.residency != residency
                or seq.exhausted
                or seq.id in planned
            ):
                self.starving.pop(key, None)
                continue
            self.starving[key] = self.starving.get(key, 0) + 1
            if pending == 1:
                most = self.depth - 1
            else:
                most = FLOOR_EVERY * -(-pending // FLOOR_TOKENS) * max(running, 1)
            assert self.starving[key] <= most, (
                f"{seq.id} waited {self.starving[key]} plans with {pending} pending"
            )

    def finish(self) -> None:
        """Play on with nothing new: everybody ends."""
        for _ in range(20_000):
            if not self.scheduler.live and not self.flights:
                break
            while len(self.flights) < self.depth and self.scheduler.live:
                count = len(self.flights)
                self.launch()
                if len(self.flights) == count:
                    break
            if self.flights:
                self.collect()
            self.scheduler.check()
        assert set(self.ended) == set(self.requests), "somebody never got an end"
        assert all(pool.used == 0 for pool in self.space.pools)
        self._count()

    def _count(self) -> None:
        self.preemptions += self.scheduler.preemptions
        self.hits += self.scheduler.prefix_hit_tokens
        self.cuts += self.runner.cuts
        self.moved_out += self.runner.moved_out
        self.moved_in += self.runner.moved_in
        self.brought += self.space.brought_tokens


def request(i: int, rng: random.Random) -> Submit:
    # A few common openings, so that prefixes are shared, between and within persons.
    opening = [rng.randrange(2)] * rng.choice([0, 4, 8, 20])
    prompt = opening + [rng.randrange(45) for _ in range(rng.choice([1, 2, 3, 9, 30, 66]))]
    return Submit(
        id=f"r{i}",
        person=rng.choice("abc"),
        prompt=prompt,
        sampling=Sampling(
            max_tokens=rng.choice([1, 5, 20, 60]),
            temperature=0.0,
            end_tokens=(END,),
            prompt_logprobs=rng.choice([None, None, None, 0]),
        ),
        klass=rng.choice(["live", "normal", "normal", "background"]),
        weight=rng.choice([1.0, 1.0, 3.0]),
        exclusive=rng.random() < 0.05,
        shared_prefix=rng.choice([0, 0, len(opening)]),
    )


def next_turn(i: int, rng: random.Random, house: House) -> Submit:
    """Somebody comes back to a conversation that has ended: all of it, and a new question."""
    before = house.requests[rng.choice(list(house.ended)[-8:])]
    prompt = [*before.prompt, *house.received.get(before.id, []), *[rng.randrange(45) for _ in range(3)]]
    return msgspec.structs.replace(before, id=f"r{i}", prompt=prompt, exclusive=False)


def storm(
    seed: int, steps: int, depth: int, hash_key: Any, groups: list[Group], layers: int = 1, host: int = 0
) -> House:
    house = House(depth, blocks=20, hash_key=hash_key, groups=groups, layers=layers, host=host)
    live_through(house, random.Random(seed), steps)
    return house


def live_through(house: House, rng: random.Random, steps: int) -> None:
    """One long random life. The odds change as it goes on, so that it is full at times and empty at others."""
    for step in range(steps):
        crowded = (step // 200) % 2
        dice = rng.random()
        if dice < (0.25 if crowded else 0.06) and len(house.scheduler.live) < 40:
            again = house.host and house.ended and rng.random() < 0.5
            house.submit(next_turn(step, rng, house) if again else request(step, rng))
        elif dice < 0.29 and house.scheduler.live:
            if rng.random() < 0.3:
                house.abort(rng.choice(list(house.scheduler.live)))
        elif dice < 0.2905:
            house.crash()
        elif dice < 0.65 and len(house.flights) < house.depth:
            house.launch()
        elif house.flights:
            house.collect()
        house.scheduler.check()
        if step % 10 == 0:
            who_holds_what_is_told(house)
    house.finish()


def who_holds_what_is_told(house: House) -> None:
    """Counted block by block: `holdings` puts each block of a table in exactly one place."""
    own: Counter[str] = Counter()
    doubled: Counter[str] = Counter()
    shared = 0
    for group in range(len(house.space.pools)):
        tables: dict[int, list[str]] = {}
        for seq in house.scheduler.running:
            for block in seq.tables[group] if seq.tables else []:
                if block >= 0:
                    tables.setdefault(block, []).append(seq.person)
        for people in tables.values():
            if len(set(people)) > 1:
                shared += 1
            else:
                own[people[0]] += 1
                doubled[people[0]] += len(people) > 1
    told = house.scheduler.holdings()
    assert {each.person: each.blocks for each in told.people if each.blocks} == own
    assert {each.person: each.doubled for each in told.people if each.doubled} == +doubled
    assert told.shared == shared
    assert sum(own.values()) + shared <= house.scheduler.pool_state().used
    house.sharing += shared
    house.doubling += sum(doubled.values())


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("groups", [GROUPS[:1], GROUPS], ids=["full", "with a window"])
@pytest.mark.parametrize("hash_key", [hash, weak_hash], ids=["hash", "weak hash"])
def test_every_promise_holds_in_a_storm(depth: int, groups: list[Group], hash_key: Any) -> None:
    house = storm(seed=depth, steps=3000, depth=depth, hash_key=hash_key, groups=groups)
    assert house.preemptions > 0 and house.hits > 0 and len(house.ended) > 100, "the storm was a breeze"
    assert house.sharing > 0 and house.doubling > 0


@pytest.mark.parametrize("depth", [1, 2])
def test_every_promise_holds_where_chunks_are_cut_by_layers(depth: int) -> None:
    house = storm(seed=depth, steps=6000, depth=depth, hash_key=hash, groups=GROUPS, layers=5)
    assert house.preemptions > 0 and len(house.ended) > 100 and house.cuts > 50, "the storm was a breeze"


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("host", [3, 40], ids=["a few slots", "twice the pool"])
def test_every_promise_holds_with_a_host_tier(depth: int, host: int) -> None:
    """The texts are read back through blocks and slots: a move that is missing, too many, too early or too late is a
    wrong text, and each step says again that every slot is explained."""
    house = storm(seed=depth, steps=4000, depth=depth, hash_key=hash, groups=GROUPS, layers=3, host=host)
    assert house.preemptions > 0 and len(house.ended) > 100, "the storm was a breeze"
    assert house.moved_out > 500 and house.moved_in > (100 if host == 40 else 5) and house.brought > 0


@pytest.mark.parametrize("first", range(1, 5))
@pytest.mark.parametrize("same", range(5, 9))
def test_a_block_that_one_waits_for_goes_to_nobody_else(first: int, same: int) -> None:
    """Two ask the same, two plans apart: when the second has filled a block, it takes the first one's and gives back its
    own, once no running step reads that. The first waits for it; in the next plan the oldest needs one, too."""
    house = House(depth=2, blocks=15, hash_key=hash, groups=GROUPS[:1])
    talks = Sampling(max_tokens=30, temperature=0.0, end_tokens=(END,), prompt_logprobs=0)

    def submit(name: str, length: int) -> None:
        prompts = ([token + step for step in range(length)] for token in range(45 - length))
        prompt = next(each for each in prompts if len(expected(each, 30, CONTEXT)) == 30)
        house.submit(Submit(name, "a", prompt, talks))

    submit("oldest", first)
    submit("waits", same)
    for _ in range(2):
        while len(house.flights) < 2:
            house.launch()
        house.collect()
    submit("gives back", same)
    house.finish()
    assert house.preemptions


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("hash_key", [hash, lambda key: hash(key) & 255], ids=["hash", "one byte of hash"])
@pytest.mark.parametrize("host", [0, 12], ids=["no tier", "a small tier"])
def test_every_promise_holds_for_a_hundred_thousand_steps(depth: int, hash_key: Any, host: int) -> None:
    house = storm(
        seed=7, steps=100_000, depth=depth, hash_key=hash_key, groups=GROUPS, layers=5 * depth - 4, host=host
    )
    print(
        f"{len(house.ended)} requests, {house.preemptions} preemptions, {house.hits} tokens hit, {house.brought} of them "
        f"from the host, {house.crashes} crashes"
    )
    assert house.crashes > 0


class Machine(RuleBasedStateMachine):
    """The same promises, with hypothesis choosing the moves and shrinking what breaks them."""

    house_type = House

    @initialize(
        depth=st.sampled_from([1, 2]),
        blocks=st.integers(6, 24),
        weak=st.booleans(),
        window=st.booleans(),
        layers=st.sampled_from([1, 3]),
        host=st.sampled_from([0, 1, 2, 5, 30]),
    )
    def start(self, depth: int, blocks: int, weak: bool, window: bool, layers: int, host: int) -> None:
        hash_key = (lambda key: hash(key) & 255) if weak else hash
        self.house = self.house_type(depth, blocks, hash_key, GROUPS if window else GROUPS[:1], layers, host)
        self.count = 0

    @rule(seed=st.integers(0, 2**32))
    def submit(self, seed: int) -> None:
        self.count += 1
        self.house.submit(request(self.count, random.Random(seed)))

    @precondition(lambda self: self.house.ended)
    @rule(seed=st.integers(0, 2**32))
    def come_back(self, seed: int) -> None:
        self.count += 1
        self.house.submit(next_turn(self.count, random.Random(seed), self.house))

    @precondition(lambda self: self.house.scheduler.live)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        self.house.abort(data.draw(st.sampled_from(sorted(self.house.scheduler.live))))

    @precondition(lambda self: len(self.house.flights) < self.house.depth)
    @rule()
    def launch(self) -> None:
        self.house.launch()

    @precondition(lambda self: self.house.flights)
    @rule()
    def collect(self) -> None:
        self.house.collect()

    @rule()
    def crash(self) -> None:
        self.house.crash()

    @invariant()
    def all_blocks_are_explained(self) -> None:
        if hasattr(self, "house"):
            self.house.scheduler.check()

    def teardown(self) -> None:
        if hasattr(self, "house"):
            self.house.finish()


TestMachine = Machine.TestCase
TestMachine.settings = settings(
    max_examples=60, stateful_step_count=60, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_thousand_lives_break_no_promise() -> None:
    run_state_machine_as_test(Machine, settings=settings(TestMachine.settings, max_examples=1000))
