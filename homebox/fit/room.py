"""Does it fit, and how many tokens of conversation does the rest hold?

A `Memory` is measured, never a share of a total; of it a margin stays free. `room` takes the demand from what is left and
gives the rest to keys and values. Numbers in, numbers out: what is said of them is in `words.py` and `advice.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from homebox.fit.demand import Demand

Kind = Literal["host", "gpu", "unified"]

GIB, MIB = 2**30, 2**20

AUTO_KV_BYTES = 2 * GIB  # on a processor, where others need memory, too; half of what is free at most
LEAST_BLOCKS = 8
# What stays free. Beside a processor's engine: the daemon and the process for large texts grow by so much. On a GPU: what a
# desktop takes between our look and our last allocation, and the gaps between torch's own blocks. Where GPU and
# system share one memory, a system that runs out takes the box with it.
MARGINS: Mapping[Kind, int] = {"host": 256 * MIB, "gpu": 512 * MIB, "unified": 8 * GIB}


@dataclass(frozen=True)
class Memory:
    """`free`: bytes, measured. `kind`: the machine's own, a GPU's, or one that both share."""

    free: int
    kind: Kind = "host"

    @property
    def margin(self) -> int:
        return MARGINS[self.kind]


@dataclass(frozen=True)
class Fit:
    """`kv_bytes`: what keys and values get, in whole blocks; `wanted_kv`: what the settings ask for, 0 for nothing."""

    demand: Demand
    memory: Memory
    kv_bytes: int
    wanted_kv: int = 0

    @property
    def fixed(self) -> int:
        """What is taken whoever speaks."""
        d = self.demand
        beside = 0 if self.memory.kind == "gpu" else d.process + d.host_kv
        return d.weights + d.activations + d.graphs + d.context + beside

    @property
    def beside(self) -> int:
        """What a GPU's model takes of the machine's own memory at its height."""
        d = self.demand
        return d.process + d.loading + d.host_kv if self.memory.kind == "gpu" else 0

    @property
    def left(self) -> int:
        """What keys and values could have at most; below 0 where it does not even come to that."""
        return self.memory.free - self.memory.margin - self.fixed

    @property
    def tokens(self) -> int:
        return self.kv_bytes // self.demand.kv_token

    @property
    def most_tokens(self) -> int:
        """With all that is left."""
        return max(self.left, 0) // self.demand.kv_block * self.demand.block_tokens

    @property
    def needed(self) -> int:
        """Free memory with which it would just fit."""
        return self.needed_for(LEAST_BLOCKS * self.demand.block_tokens)

    def needed_for(self, tokens: int) -> int:
        """Free memory with which it would have room for so many: as it runs, and for the moment in which the largest tensor
        is read. On a GPU that happens beside it."""
        d = self.demand
        loading = 0 if self.memory.kind == "gpu" else d.weights + d.loading + d.process + d.context
        return max(self.fixed + -(-tokens // d.block_tokens) * d.kv_block, loading) + self.memory.margin

    @property
    def short(self) -> int:
        """Bytes that are missing."""
        return max(self.needed - self.memory.free, 0)

    @property
    def lowered(self) -> bool:
        """Whether keys and values get less than the settings ask for."""
        return self.wanted_kv - self.kv_bytes >= self.demand.kv_block


def room(asked: Demand, memory: Memory, *, kv_bytes: int = 0, most_tokens: int = 0) -> Fit:
    """`kv_bytes`: what the settings say, 0 leaves it to us. `most_tokens`: more can never be used; 0 is no bound."""
    block, left = asked.kv_block, Fit(asked, memory, 0).left
    wanted = kv_bytes or left
    if not kv_bytes and memory.kind == "host":
        wanted = max(min(AUTO_KV_BYTES, left // 2), LEAST_BLOCKS * block)
    if most_tokens:
        wanted = min(wanted, -(-most_tokens // asked.block_tokens) * block)
    given = max(min(wanted, left), 0)
    return Fit(asked, memory, given // block * block, wanted if kv_bytes else 0)
