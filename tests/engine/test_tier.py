"""The second tier of the prefix cache, block by block: nothing is lost that there is room for, and every move is right.

Sequences come, adopt, grow, are computed and go in any order, with any number of them between two launches, which the
scheduler does rarely. A pretended memory says what is in every block and slot: all tokens up to the block's end.
"""

from __future__ import annotations

import random

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
from homebox.engine.request import Sequence
from homebox.wire.frames import Sampling, Submit

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

    def enter(self, seq: Sequence) -> int | None:
        """Tokens that need no computing; None where it does not fit."""
        hits = self.space.match(seq)
        if self.space.blocks_for(len(seq.tokens)) - self.space.spared(hits) > self.space.available():
            return None
        hit = self.space.adopt(seq, hits)
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
        self.memory.enter(sequence(tokens[:most], rng.choice("aab")))

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
TestMachine.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_two_thousand_lives_of_a_tier() -> None:
    run_state_machine_as_test(Machine, settings=settings(TestMachine.settings, max_examples=2000))
