"""What must an attention kernel offer, and where do keys and values live?

The model calls `write` and `attend` once a layer; `plan` is called once a step with the shape of the whole batch, so
that everything that does not depend on the layer (slot lists, masks, launch parameters) is made once. Implementations
never see requests, only rows of numbers. `kernels.reference` is the oracle for all others.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Protocol

import torch


@dataclass(frozen=True)
class BatchShape:
    """The flat batch of one step: row i holds `counts[i]` consecutive tokens, starting at position `starts[i]`, and its
    block table in a group is `tables[group][slots[i]]`. All int32, on the CPU: `slots`, `starts`, `counts` `[rows]`, `tables[group]`
    `[slots, width]`, contiguous.

    Tables may be buffers that live longer than a step: only the blocks of the positions that a row writes or sees are
    to be read; what lies behind a sliding window or beyond the row's last token may be -1 or somebody else's.
    """

    slots: torch.Tensor
    starts: torch.Tensor
    counts: torch.Tensor
    tables: tuple[torch.Tensor, ...]

    def first(self, rows: int) -> BatchShape:
        """The batch of its first rows."""
        return BatchShape(self.slots[:rows], self.starts[:rows], self.counts[:rows], self.tables)

    @staticmethod
    def of(starts: Seq[int], counts: Seq[int], tables: Seq[Seq[Seq[int]]]) -> BatchShape:
        """From plain numbers: `tables[group][i]` is row i's block table in that group."""
        width = max(len(table) for group in tables for table in group)
        padded = [[[*table, *[-1] * (width - len(table))] for table in group] for group in tables]
        return BatchShape(
            slots=torch.arange(len(starts), dtype=torch.int32),
            starts=torch.tensor(starts, dtype=torch.int32),
            counts=torch.tensor(counts, dtype=torch.int32),
            tables=tuple(torch.tensor(group, dtype=torch.int32) for group in padded),
        )


class PagedCache:
    """Keys and values of all layers in blocks. `k[layer]`, `v[layer]`: `[slots, kv_heads, head_dim]`, where the slot
    of token p of a sequence is `table[p // block_size] * block_size + p % block_size`. `groups[group]`: the same memory,
    `[blocks, layers, 2, numbers]`."""

    def __init__(
        self,
        *,
        layer_groups: tuple[int, ...],
        blocks: tuple[int, ...],
        block_size: int,
        kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """`layer_groups[layer]` is the layer's group, `blocks[group]` how many blocks each of its layers has."""
        self.layer_groups = layer_groups
        self.block_size = block_size
        numbers = block_size * kv_heads * head_dim
        size = 2 * numbers * sum(blocks[group] for group in layer_groups)
        memory = torch.zeros(size, dtype=dtype, device=device)
        self.groups, halves = in_groups(memory, layer_groups, blocks, numbers)
        self.k, self.v = (
            [half.view(-1, kv_heads, head_dim) for half in part] for part in zip(*halves, strict=True)
        )

    def clear(self, tables: Seq[torch.Tensor], start: int, count: int) -> None:
        """Zero what was written for positions `start` .. `start + count - 1` of the sequence whose block table in
        a group is `tables[group]`, `[width]`."""
        positions = torch.arange(start, start + count)
        for layer, group in enumerate(self.layer_groups):
            slots = (
                tables[group][positions // self.block_size] * self.block_size + positions % self.block_size
            )
            self.k[layer][slots] = 0
            self.v[layer][slots] = 0

    @staticmethod
    def block_bytes(layers: int, block_size: int, kv_heads: int, head_dim: int, dtype: torch.dtype) -> int:
        """Bytes of one block over `layers` layers, keys and values together."""
        return 2 * layers * block_size * kv_heads * head_dim * dtype.itemsize


def in_groups(
    memory: torch.Tensor, layer_groups: Seq[int], blocks: Seq[int], numbers: int
) -> tuple[list[torch.Tensor], list[tuple[torch.Tensor, torch.Tensor]]]:
    """Divide `memory`, flat, so that the layers of a group lie side by side, in each of them all keys before all values,
    `numbers` each in a block. Two views of it: of each group `[blocks, layers, 2, numbers]`, and of each layer the keys and
    the values, `[blocks, numbers]`."""
    groups, used = [], 0
    layers = [layer_groups.count(group) for group in range(len(blocks))]
    for count, depth in zip(blocks, layers, strict=True):
        part = memory[used : (used := used + count * depth * 2 * numbers)]
        groups.append(part.view(depth, 2, count, numbers).permute(2, 0, 1, 3))
    indices = [layer_groups[:layer].count(group) for layer, group in enumerate(layer_groups)]
    halves = [(groups[g][:, i, 0], groups[g][:, i, 1]) for g, i in zip(layer_groups, indices, strict=True)]
    return groups, halves


class Cache(Protocol):
    """Keys and values of all layers, wherever a kernel likes them to lie. `groups[group]`: all of a group's memory,
    `[blocks, layers, 2, numbers]`, in any order of strides."""

    groups: list[torch.Tensor]

    @property
    def block_size(self) -> int: ...

    def clear(self, tables: Seq[torch.Tensor], start: int, count: int) -> None:
        """As `PagedCache.clear`."""


class Attention(Protocol):
    """`windows[group]`: how many tokens back a query sees, itself included; None is all."""

    name: str
    windows: tuple[int | None, ...]

    @property
    def cache(self) -> Cache: ...

    def plan(self, shape: BatchShape) -> None:
        """Prepare for one step. Called before the first layer."""

    def write(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> None:
        """Store the step's keys and values, `[tokens, kv_heads, head_dim]`, into their slots."""

    def attend(self, layer: int, q: torch.Tensor) -> torch.Tensor:
        """Causal attention of `q`, `[tokens, heads, head_dim]`, over everything written so far; same shape."""
