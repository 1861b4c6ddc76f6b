"""A model without arithmetic for the device runner: the next token is a digest of the whole sequence, read back *through
the block tables that the device holds*, with operations that a graph can hold.

As in null_model.py a wrong table, a block given away too early, a wrong position or a token that was taken from the wrong
slot makes another text; `expected` says which is right.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from homebox.engine.numbers import ITEM, Ints
from homebox.kernels.attention import Placed, StepWork
from tests.engine.null_model import END, VOCABULARY

_PRIME = 65_521  # digests are exact in fp32
_MANY = 4


def _factor(positions: torch.Tensor) -> torch.Tensor:
    return (positions * 7919 + 104_729) % _PRIME


def digest(tokens: Sequence[int], window: int | None) -> int:
    begin = 0 if window is None else max(0, len(tokens) - window)
    factors = _factor(torch.arange(begin, len(tokens)))
    return int(((torch.tensor(tokens[begin:]) + 1) * factors).sum())


def next_token(tokens: Sequence[int], windows: Sequence[int | None]) -> int:
    total = sum((g + 1) * digest(tokens, window) for g, window in enumerate(windows))
    return total % _PRIME % VOCABULARY


def expected(prompt: Sequence[int], max_tokens: int, limit: int, windows: Sequence[int | None]) -> list[int]:
    tokens = list(prompt)
    while len(tokens) < min(limit, len(prompt) + max_tokens):
        tokens.append(next_token(tokens, windows))
        if tokens[-1] == END:
            break
    return tokens[len(prompt) :]


class NullDeviceModel:
    def __init__(self, windows: tuple[int | None, ...], blocks: int, block_size: int, context: int) -> None:
        self.spec: Any = SimpleNamespace(context=context, vocab_size=VOCABULARY)
        self.windows, self.block_size = windows, block_size
        # Of each group, one token a cell, and a spare cell for padding.
        self.memory = [torch.full((blocks * block_size + 1,), 10_000) for _ in windows]
        self.memories = [[memory[:-1].view(blocks, 1, 1, block_size) for memory in self.memory]]
        self.moves = self.tokens = 0

    def work(self, starts: Ints, counts: Ints) -> StepWork:
        self.tokens = int(counts.sum())
        items = np.zeros((len(counts), ITEM), np.int32)
        return StepWork(items, np.zeros((len(self.windows), 3, 2), np.int32), bool((counts > _MANY).any()), 0)

    def make_room(self, work: StepWork) -> bool:
        self.moves += 1
        return self.moves % 97 == 0

    def states(self, ids: torch.Tensor, positions: torch.Tensor, placed: Placed, many: bool) -> torch.Tensor:
        token = torch.arange(len(ids))[:, None]
        slot, _, first, count = placed.rows.long().unbind(dim=1)
        slots = (((token >= first) & (token < first + count)) * slot).sum(dim=1)
        total = torch.zeros(len(ids), dtype=torch.int64)
        for group, window in enumerate(self.windows):
            memory, size = self.memory[group], self.block_size
            spare = len(memory) - 1
            places = torch.where(placed.places[group] < 0, spare, placed.places[group])
            memory.index_copy_(0, places, ids.long())
            blocks = placed.tables[group][slots].long().clamp(min=0)
            cells = (blocks[:, :, None] * size + torch.arange(size)).flatten(1)
            at = torch.arange(cells.shape[1])
            seen = at <= positions[:, None]
            if window is not None:
                seen &= at > positions[:, None] - window
            total += (group + 1) * ((memory[cells] + 1) * _factor(at) * seen).sum(dim=1)
        return (total % _PRIME).float()[:, None]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return -(torch.arange(VOCABULARY) - hidden % VOCABULARY).abs()

    def clear(self, places: Sequence[torch.Tensor]) -> None:
        for memory, where in zip(self.memory, places, strict=True):
            memory[where] = 0


class Greedy:
    def choose(
        self, logits: torch.Tensor, wishes: torch.Tensor, tokens: torch.Tensor, flags: torch.Tensor
    ) -> None:
        tokens.copy_(logits.argmax(dim=-1))
        flags.zero_()
