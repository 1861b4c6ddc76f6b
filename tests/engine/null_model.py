"""A model without arithmetic: the next token is a hash of the whole sequence, read back *through the block tables*.

It keeps a pretended KV memory in which a slot holds the token that was computed there and a digest of all tokens before
it, as real keys and values do. A table that is wrong, a block that was freed or given away too early, a prefix hit on
the wrong parent, a row with the wrong positions: all of them are seen here, and `expected` says what the text must be. A launched step runs as late as it may, when it is collected.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from itertools import chain, pairwise

from homebox.engine.blocks import KVSpace
from homebox.engine.plan import Outcome, Row, StepPlan, StepResult, decode, encode

VOCABULARY = 50
END = 49


def next_token(tokens: Sequence[int]) -> int:
    return zlib.crc32(bytes(tokens)) % VOCABULARY


def expected(prompt: Sequence[int], max_tokens: int, limit: int) -> list[int]:
    """The whole answer to a prompt; it ends with END, or when one of the limits is reached."""
    tokens = list(prompt)
    while len(tokens) < min(limit, len(prompt) + max_tokens):
        tokens.append(next_token(tokens))
        if tokens[-1] == END:
            break
    return tokens[len(prompt) :]


Cell = tuple[int, int]  # a token, and the digest of all tokens up to it
NOTHING: Cell = (-1, -1)


class NullRunner:
    def __init__(
        self,
        space: KVSpace,
        step_ms: float = 10.0,
        token_ms: float = 0.0,
        layers: int = 1,
        move_ms: float = 4.0,
    ) -> None:
        self.space = space
        self.layers = layers
        self.cuts = 0  # rows that did not pass all layers in one step
        self.step_ms = step_ms
        self.token_ms = token_ms
        self.move_ms = move_ms
        # Of each group: block, to what its slots hold.
        self.memory: list[dict[int, list[Cell]]] = [{} for _ in space.pools]
        # Of each group: slot, to what it keeps on the host.
        self.host: list[dict[int, list[Cell]]] = [{} for _ in space.pools]
        self.moved_out = self.moved_in = 0
        self.pool: dict[int, int] = {}
        # Of each slot and group: the block table, as the plans have said it.
        self.tables: dict[tuple[int, int], list[int]] = {}
        # What a row saw in its last step, which was right. Looking at it again is comparing two lists.
        self._seen: dict[tuple[int, int], tuple[int, list[Cell]]] = {}
        # Of each slot: the chunk that is on its way through the layers, and how many it has passed.
        self._under_way: dict[int, tuple[str, int, int, int, int]] = {}

    def launch(self, plan: StepPlan) -> StepPlan:
        return decode(encode(plan))  # a plan is only what can be written down

    def collect(self, plan: StepPlan) -> StepResult:
        outcomes = []
        self._move(plan)
        for admission in plan.admitted:
            self._under_way.pop(admission.slot, None)
        for change in plan.tables:
            table = self.tables.setdefault((change.slot, change.group), [])
            assert change.index <= len(table), "a table with a gap"
            table[change.index :] = change.blocks
        for row in plan.rows:
            tokens = row.tokens or (self.pool[row.slot],)
            assert len(tokens) == row.count
            if not self._passes(row, row is plan.rows[-1]):
                outcomes.append(Outcome())
                continue
            digests = [self._compute(row, group, tokens) for group in range(len(self.memory))]
            outcome = Outcome()
            if row.sample:
                whole = next(
                    digest
                    for digest, group in zip(digests, self.space.groups, strict=True)
                    if group.window is None
                )
                self.pool[row.slot] = whole % VOCABULARY  # as `next_token` of all that was read back
                outcome = Outcome(token=self.pool[row.slot])
            outcomes.append(outcome)
        step_ms = self.step_ms + self.token_ms * plan.tokens
        moved_ms = self.move_ms * (len(plan.moved_out) + len(plan.moved_in))
        return StepResult(plan.step, tuple(outcomes), step_ms, moved_ms)

    def _move(self, plan: StepPlan) -> None:
        for group, block, slot in plan.moved_out:
            self.host[group][slot] = list(self.memory[group][block])
        for group, block, slot in plan.moved_in:
            self.memory[group][block] = list(self.host[group][slot])
        for moves in (plan.moved_out, plan.moved_in):  # so that a device may do each of them in any order
            assert len({(group, block) for group, block, _ in moves}) == len(moves), "a block is moved twice"
            assert len({(group, slot) for group, _, slot in moves}) == len(moves), "a slot is moved twice"
        self.moved_out += len(plan.moved_out)
        self.moved_in += len(plan.moved_in)

    def _passes(self, row: Row, last: bool) -> bool:
        """Whether the row's tokens pass the last layer; each layer is to be passed once, in order."""
        chunk = (row.id, row.residency, row.start, row.count)
        *known, depth = self._under_way.pop(row.slot, (*chunk, 0))
        assert tuple(known) == chunk, "a chunk was left on its way"
        begin, end = row.layers or (0, self.layers)
        assert begin == depth and begin < end <= self.layers, "a layer is passed twice, or never"
        assert row.layers is None or last, "only the last row may be cut"
        if end < self.layers:
            assert not row.sample and not row.targets
            self._under_way[row.slot] = (*chunk, end)
            self.cuts += 1
        return end == self.layers

    def _compute(self, row: Row, group: int, tokens: Sequence[int]) -> int:
        """Write the row's tokens into one group's memory, look at all that the last of them can see, and return its
        digest."""
        size, table, memory = self.space.block_size, self.tables[row.slot, group], self.memory[group]
        window, refs = self.space.groups[group].window, self.space.pools[group].refs
        end = row.start + row.count
        first = 0 if window is None else max(0, row.start - window + 1)
        held = table[first // size : -(-end // size)]
        assert -1 not in held, "a visible block was given back"
        assert all(refs[block] for block in held), "a block in use by a running step is free"
        digest = memory[table[(row.start - 1) // size]][(row.start - 1) % size][1] if row.start else 0
        for position, token in zip(range(row.start, end), tokens, strict=True):
            digest = zlib.crc32(bytes([token]), digest)
            memory.setdefault(table[position // size], [NOTHING] * size)[position % size] = token, digest
        before = first // size * size
        cells = list(chain.from_iterable(memory[block] for block in held))[first - before : end - before]
        self._look(cells, first, (group, row.slot))
        return digest

    def _look(self, cells: list[Cell], first: int, row: tuple[int, int]) -> None:
        seen_first, seen = self._seen.get(row, (0, []))
        known = len(seen) if seen_first == first and cells[: len(seen)] == seen else 0
        if first == known == 0:
            assert cells[0] == (cells[0][0], zlib.crc32(bytes([cells[0][0]]))), "KV of another sequence"
        for (_, before), (token, digest) in pairwise(cells[max(0, known - 1) :]):
            assert digest == zlib.crc32(bytes([token]), before), "KV of another sequence"
        self._seen[row] = first, cells
