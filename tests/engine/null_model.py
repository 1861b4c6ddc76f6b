"""A model without arithmetic: the next token is a hash of the whole sequence, read back *through the block tables*.

It keeps a pretended KV memory in which a slot holds the token that was computed there and a digest of all tokens before
it, as real keys and values do. A table that is wrong, a block that was freed or given away too early, a prefix hit on
the wrong parent, a row with the wrong positions: all of them are seen here, and `expected` says what the text must be. A launched step runs as late as it may, when it is collected.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

from homebox.engine.blocks import KVSpace
from homebox.engine.plan import Outcome, StepPlan, StepResult, decode, encode

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


class NullRunner:
    def __init__(self, space: KVSpace, step_ms: float = 10.0, token_ms: float = 0.0) -> None:
        self.space = space
        self.step_ms = step_ms
        self.token_ms = token_ms
        self.memory: list[dict[int, tuple[int, int]]] = [{} for _ in space.pools]
        self.pool: dict[int, int] = {}

    def launch(self, plan: StepPlan) -> StepPlan:
        return decode(encode(plan))  # a plan is only what can be written down

    def collect(self, plan: StepPlan) -> StepResult:
        size = self.space.block_size
        outcomes = []
        for row in plan.rows:
            end = row.start + row.count
            tokens = row.tokens or (self.pool[row.slot],)
            assert len(tokens) == row.count
            sequence: list[int] = []
            for group, table in enumerate(row.tables):
                window = self.space.groups[group].window
                first = 0 if window is None else max(0, row.start - window + 1)
                held = {table[p // size] for p in range(first, end)}
                assert -1 not in held, "a visible block was given back"
                assert all(self.space.pools[group].refs[b] for b in held), (
                    "a block in use by a running step is free"
                )
                memory = self.memory[group]
                slots = [-1 if b < 0 else b * size + i for b in table for i in range(size)]
                digest = memory[slots[row.start - 1]][1] if row.start else 0
                for position, token in zip(range(row.start, end), tokens, strict=True):
                    digest = zlib.crc32(bytes([token]), digest)
                    memory[slots[position]] = token, digest
                for p in range(first + 1, end):
                    token, digest = memory[slots[p]]
                    assert digest == zlib.crc32(bytes([token]), memory[slots[p - 1]][1]), (
                        "KV of another sequence"
                    )
                if window is None:
                    sequence = [memory[slots[p]][0] for p in range(end)]
            outcome = Outcome()
            if row.sample:
                self.pool[row.slot] = next_token(sequence)
                outcome = Outcome(token=self.pool[row.slot])
            outcomes.append(outcome)
        step_ms = self.step_ms + self.token_ms * sum(row.count for row in plan.rows)
        return StepResult(plan.step, tuple(outcomes), step_ms)
