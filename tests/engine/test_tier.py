"""The second tier of the prefix cache, block by block: nothing is lost that there is room for, and every move is right.

Sequences come, adopt, grow, are computed and go in any order, with any number of them between two launches, which the
scheduler does rarely. A pretended memory says what is in every block and slot: all tokens up to the block's end.
"""

from __future__ import annotations

import random
from collections import Counter, deque

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from homebox.engine.blocks import BEHIND_WINDOW, Group, KVSpace
from homebox.engine.plan import StepPlan
from homebox.engine.request import Sequence
from homebox.engine.scheduler import Limits, Scheduler
from homebox.wire.frames import Sampling, Submit
from tests.engine.null_model import NullRunner, expected

BLOCK = 2
Content = tuple[int, ...]  # of a block: all tokens up to its end


def sequence(tokens: list[int], person: str = "a") -> Sequence:
    return Sequence(Submit("r", person, tokens, Sampling(max_tokens=1)), 0, len(tokens) + 1)


class Memory:
    """A device with a space over it. `launch` is what a step does: moves, then all of these are computed."""

    def __init__(self, blocks: int, host: int, groups: list[Group] | None = None) -> None:
        groups = groups or [Group((0,))]
        self.space = KVSpace(groups, [blocks] * len(groups), BLOCK, host_slots=host)
        self.device: list[dict[int, Content]] = [{} for _ in groups]
        self.host: list[dict[int, Content]] = [{} for _ in groups]
        self.inside: list[Sequence] = []
        self.step = self.out = self.into = 0

    def enter(self, seq: Sequence, moves: int = 99) -> int | None:
        """Tokens that need no computing; None where it does not fit. So many are moved at first, then the rest."""
        hits = self.space.match(seq)
        if self.space.blocks_for(len(seq.tokens)) - self.space.spared(seq, hits) > self.space.available():
            return None
        for most in (moves, 99):
            found, moved = self.space.first(seq, self.space.match(seq), most)
            assert moved <= most
            self.space.adopt(seq, found)
            self.space.check([*self.inside, seq])
        hit = seq.computed
        assert self.space.extend(seq, len(seq.tokens)), "admission counted too few"
        self.inside.append(seq)
        self.space.check(self.inside)
        return hit

    def leave(self, seq: Sequence) -> None:
        self.inside.remove(seq)
        self.space.release(seq)

    def launch(self) -> None:
        for group, moves in enumerate(self.space.moves()):
            for block, slot in moves.out:
                self.host[group][slot] = self.device[group][block]
            for block, slot in moves.into:
                self.device[group][block] = self.host[group][slot]
            self.out += len(moves.out)
            self.into += len(moves.into)
        self.step += 1
        self.space.launch(self.step)
        for seq in self.inside:
            for group, table in enumerate(seq.tables):
                for i in range(seq.computed // BLOCK, len(table)):
                    self.device[group][table[i]] = tuple(seq.tokens[: (i + 1) * BLOCK])
                for i, block in enumerate(table):
                    whole = tuple(seq.tokens[: (i + 1) * BLOCK])
                    assert block == BEHIND_WINDOW or self.device[group][block] == whole, "another's content"
        for seq in self.inside:
            seq.computed = seq.scheduled = len(seq.tokens)
            self.space.settle(seq)
        self.space.complete(self.step)

    def run(self, tokens: list[int], person: str = "a") -> int:
        """One that comes, is computed, and goes. Returns its hit."""
        seq = sequence(tokens, person)
        hit = self.enter(seq)
        assert hit is not None
        self.launch()
        self.leave(seq)
        self.space.check(self.inside)
        return hit


def test_who_comes_back_finds_all_that_was_evicted_and_another_person_does_not() -> None:
    memory = Memory(blocks=4, host=8)
    mine = list(range(9))  # four whole blocks and a token
    memory.run(mine[:8])
    memory.run([50] * 8)
    assert memory.space.pools[0].tier.used == 4 and memory.out == 4
    assert memory.run(mine[:8], "b") == 0
    assert memory.run(mine[:8]) == 6  # its last token is computed again, and so is its block
    assert memory.into == 3 and memory.space.brought_tokens == 6


def test_what_the_host_still_has_is_evicted_without_a_move() -> None:
    memory = Memory(blocks=4, host=12)
    for _ in range(3):
        memory.run([1] * 8)
        memory.run([2] * 8)
    assert memory.out == 8


def test_host_memory_is_bounded_and_what_rested_longest_goes_first() -> None:
    memory = Memory(blocks=4, host=4)
    for who in range(3):
        memory.run([who] * 8)
    assert memory.space.pools[0].tier.used == 4
    assert memory.run([0] * 8) == 0
    assert memory.run([2] * 8) == 6


def test_of_a_conversation_its_end_is_overwritten_first() -> None:
    memory = Memory(blocks=4, host=4)
    memory.run([1] * 8)
    memory.run([2] * 8)  # all ones are on the host, which is full
    memory.run([3] * 4)  # two of twos go there, too
    assert memory.run([1] * 8) == 4


def test_what_has_gone_back_to_the_device_is_overwritten_before_what_is_nowhere_else() -> None:
    memory = Memory(blocks=8, host=8)
    for who in (1, 2, 3, 4):
        memory.run([who] * 8)  # at the end ones and twos are on the host
    memory.run([2] * 8)  # threes are kept instead of ones; twos have gone back
    memory.run([5] * 8)  # fours are kept instead of twos
    assert memory.run([3] * 8) == 6


def test_a_content_may_leave_and_come_back_in_one_plan() -> None:
    memory = Memory(blocks=4, host=8)
    memory.run([1] * 8)
    large, again = sequence([2] * 4), sequence([1] * 5)
    assert memory.enter(large) == 0  # evicts two of the four
    memory.leave(large)  # and gives way before anything was launched
    rest = sequence([3] * 4)
    assert memory.enter(rest) == 0
    memory.leave(rest)
    assert memory.enter(again) == 4
    memory.launch()


def test_a_block_that_waits_for_its_move_may_be_given_to_somebody_else() -> None:
    memory = Memory(blocks=4, host=8)
    memory.run([1] * 8)
    memory.run([2] * 8)
    back = sequence([1] * 8)
    assert memory.enter(back) == 6
    memory.leave(back)  # before a launch: its contents are still only on the host
    memory.run([3] * 8)
    assert memory.run([1] * 8) == 6


def test_with_every_slot_wanted_what_is_evicted_is_forgotten() -> None:
    memory = Memory(blocks=4, host=3)
    memory.run([1] * 8)
    memory.run([2] * 8)  # of ones, three blocks are kept: the last evicted are the first of them
    assert memory.run([1] * 8) == 6  # that reads all three slots, and needs four blocks of twos
    assert memory.run([2] * 8) == 0


def test_behind_a_window_nothing_is_brought_back() -> None:
    memory = Memory(blocks=8, host=32, groups=[Group((0,)), Group((1,), window=3)])
    memory.run(list(range(16)))
    memory.run([40] * 16)
    assert memory.run(list(range(16))) == 14
    assert memory.into == 7 + 1


def test_who_goes_on_from_what_is_behind_a_window_keeps_that_as_well() -> None:
    memory = Memory(blocks=8, host=0, groups=[Group((0,)), Group((1,), window=3)])
    memory.run([1] * 8)
    memory.run([2] * 8)
    assert memory.run([1] * 8) == 6
    memory.run([3] * 8)  # evicts twos, in both groups
    assert memory.run([1] * 8) == 6


def test_without_a_tier_nothing_moves() -> None:
    memory = Memory(blocks=4, host=0)
    for who in (1, 2, 1):
        assert memory.run([who] * 8) == 0
    assert memory.out == memory.into == 0


def chatter(length: int, max_tokens: int) -> list[int]:
    """A prompt of so many tokens whose answer does not end before it must."""
    rng = random.Random(length)
    while True:
        prompt = [rng.randrange(45) for _ in range(length)]
        if len(expected(prompt, max_tokens, 10**6)) == max_tokens:
            return prompt


class Room:
    """A scheduler with room for two conversations, whose steps take 20 ms and a move of a block 1 ms more."""

    def __init__(self, depth: int, beside: bool = False) -> None:
        self.depth = depth
        space = KVSpace([Group((0,))], [110], 16, host_slots=300)
        limits = Limits(4096, 4, 512, horizon_tokens=16, moves_beside=beside)
        self.scheduler = Scheduler(limits, space)
        self.runner = NullRunner(space, step_ms=20.0, token_ms=0.01, move_ms=1.0)
        self.plans: list[StepPlan] = []
        self.flights: deque[StepPlan] = deque()
        self.made: Counter[str] = Counter()

    def submit(self, name: str, person: str, prompt: list[int], max_tokens: int = 1) -> None:
        talk = Sampling(max_tokens=max_tokens, temperature=0.0)
        assert self.scheduler.submit(Submit(name, person, prompt, talk)) is None

    def run(self, *until: str) -> None:
        """Steps until these have their first tokens."""
        while not all(self.made[name] for name in until):
            while len(self.flights) < self.depth:
                if (plan := self.scheduler.plan(0.02 * len(self.plans))) is None:
                    break
                self.plans.append(plan)
                self.flights.append(plan)
            plan = self.flights.popleft()
            for progress in self.scheduler.commit(plan, self.runner.collect(self.runner.launch(plan))):
                self.made[progress.id] += len(progress.tokens)
            self.scheduler.check()

    def computed(self, name: str) -> int:
        return sum(row.count for plan in self.plans for row in plan.rows if row.id == name)


@pytest.mark.parametrize("readers", [0, 1])
@pytest.mark.parametrize(
    ("depth", "beside", "most"), [(1, False, 20), (2, False, 20), (1, True, 20), (2, True, 40)]
)
def test_long_conversations_come_back_so_that_no_reader_notices(
    depth: int, beside: bool, most: int, readers: int
) -> None:
    """Beside a reader, whatever else is in a step may take 18 ms: nine blocks come back, and send nine others away. Where they
    move while the step before is computed, they may take its 20 ms, too."""
    room = Room(depth, beside)
    histories = {who: chatter(800 + i, 1) for i, who in enumerate(("mia", "ida"))}
    for who, history in [*histories.items(), ("other", chatter(1601, 1))]:
        room.submit(f"{who}'s", who, history)
        room.run(f"{who}'s")
    if readers:
        room.submit("reader", "leo", chatter(10, 60), max_tokens=60)
        room.run("reader")
    room.plans.clear()
    for who, history in histories.items():
        room.submit(who, who, [*history, 1, 2, 3])
    room.run(*histories)
    brought = [len(plan.moved_in) for plan in room.plans if plan.moved_in]
    assert sum(brought) > 80 and all(room.computed(who) < 3 + 16 for who in histories)
    if readers:
        assert all("reader" in {row.id for row in plan.rows} for plan in room.plans)
        assert most / 2 < max(len(plan.moved_in) + len(plan.moved_out) for plan in room.plans) <= most
    else:
        assert len(brought) == 1


def test_who_finds_no_blocks_for_what_is_on_the_host_does_not_wait_for_them() -> None:
    """It is a prompt like any other then: lower ranks make room for it, or it gives way."""
    memory = Memory(blocks=8, host=20)
    memory.run([1] * 12)
    memory.run([2] * 16)  # six blocks of ones are on the host
    assert memory.enter(sequence([3] * 10)) == 0
    scheduler, back = Scheduler(Limits(100), memory.space), sequence([1] * 12)
    assert scheduler._bring_back(back, memory.space.match(back), 4) == 3
    assert not back.returning and back.computed == 6
    memory.leave(memory.inside[0])
    assert scheduler._bring_back(back, memory.space.match(back), 1) == 1 and back.returning
    assert scheduler._bring_back(back, memory.space.match(back), 1) == 1 and not back.returning
    memory.space.check([back])


class Machine(RuleBasedStateMachine):
    @initialize(
        blocks=st.integers(3, 8),
        host=st.sampled_from([0, 1, 3, 6, 20]),
        window=st.booleans(),
    )
    def start(self, blocks: int, host: int, window: bool) -> None:
        groups = [Group((0,)), Group((1,), window=3)] if window else [Group((0,))]
        self.memory = Memory(blocks, host, groups)

    @rule(seed=st.integers(0, 2**32))
    def enter(self, seed: int) -> None:
        rng = random.Random(seed)
        most = self.memory.space.capacity_tokens()
        tokens = [rng.randrange(2)] * rng.randrange(1, most + 1) + [rng.randrange(3) for _ in range(3)]
        self.memory.enter(sequence(tokens[:most], rng.choice("aab")), rng.choice([0, 1, 2, 99]))

    @precondition(lambda self: self.memory.inside)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        self.memory.leave(data.draw(st.sampled_from(self.memory.inside)))

    @rule()
    def launch(self) -> None:
        self.memory.launch()

    @invariant()
    def all_blocks_and_slots_are_explained(self) -> None:
        if hasattr(self, "memory"):
            self.memory.space.check(self.memory.inside)


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_two_thousand_lives_of_a_tier() -> None:
    run_state_machine_as_test(Machine, settings=settings(TestMachine.settings, max_examples=2000))
