"""What must an attention kernel offer, and where do keys and values live?

The model calls `write` and `attend` once a layer; `plan` is called once a step with the shape of the whole batch, so
that everything that does not depend on the layer (slot lists, masks, launch parameters) is made once. Implementations
never see requests, only rows of numbers. `kernels.reference` is the oracle for all others.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, Protocol

import numpy as np
import torch


class KvKind(IntEnum):
    """How keys and values are stored: as they are computed, or in 8 bits with a scale for each token and head."""

    AS_IS = 0
    INT8 = 1
    FP8 = 2  # e4m3, its bits in uint8: not every device has the type


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


_LARGEST = {KvKind.INT8: 127.0, KvKind.FP8: 448.0}


def encode(x: torch.Tensor, kind: KvKind) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and scales of `[tokens, kv_heads, head_dim]`: `scale * code` is near `x`. Scales: fp32, `[tokens, kv_heads]`."""
    x = x.float()
    peaks = x.abs().amax(dim=-1)
    inverse = torch.where(peaks > 0, _LARGEST[kind] / peaks, 0.0)
    x = x * inverse[..., None]
    codes = x.round().to(torch.int8) if kind == KvKind.INT8 else x.to(torch.float8_e4m3fn).view(torch.uint8)
    return codes, peaks / _LARGEST[kind]


def decode(codes: torch.Tensor, scales: torch.Tensor, kind: KvKind) -> torch.Tensor:
    """fp32 of what `encode` made."""
    values = codes.view(torch.float8_e4m3fn).float() if kind == KvKind.FP8 else codes.float()
    return values * scales[..., None]


class PagedCache:
    """Keys and values of all layers in blocks. `k[layer]`, `v[layer]`: `[slots, kv_heads, head_dim]`, where the slot
    of token p of a sequence is `table[p // block_size] * block_size + p % block_size`. In 8 bits `k_scales[layer]`,
    `v_scales[layer]` belong to them, fp32, `[slots, kv_heads]`. `memories`: where all of it lies, see `Cache`."""

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
        kind: KvKind = KvKind.AS_IS,
    ) -> None:
        """`layer_groups[layer]` is the layer's group, `blocks[group]` how many blocks each of its layers has. `dtype` is
        that of what is computed."""
        self.layer_groups = layer_groups
        self.block_size = block_size
        self.kind = kind
        stored = {KvKind.AS_IS: dtype, KvKind.INT8: torch.int8, KvKind.FP8: torch.uint8}[kind]
        heads = block_size * kv_heads
        total = 2 * sum(blocks[group] for group in layer_groups)
        memory = torch.zeros(total * heads * head_dim, dtype=stored, device=device)
        codes, halves = in_groups(memory, layer_groups, blocks, heads * head_dim)
        self.memories = [codes]
        self.k, self.v = (
            [half.view(-1, kv_heads, head_dim) for half in part] for part in zip(*halves, strict=True)
        )
        self.k_scales = self.v_scales = [torch.zeros(0, device=device)] * len(layer_groups)
        if kind:
            memory = torch.zeros(total * heads, dtype=torch.float32, device=device)
            scales, halves = in_groups(memory, layer_groups, blocks, heads)
            self.memories.append(scales)
            self.k_scales, self.v_scales = (
                [half.view(-1, kv_heads) for half in part] for part in zip(*halves, strict=True)
            )

    def store(self, layer: int, slots: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        """Keys and values, `[tokens, kv_heads, head_dim]`, into their slots, `[tokens]`."""
        for x, codes, scales in ((k, self.k, self.k_scales), (v, self.v, self.v_scales)):
            if self.kind:
                x, its_scales = encode(x, self.kind)
                scales[layer].index_copy_(0, slots, its_scales)
            codes[layer].index_copy_(0, slots, x.to(codes[layer].dtype))

    def blocks_of(self, layer: int, blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of whole blocks, a copy: `[blocks * block_size, kv_heads, head_dim]`."""

        def taken(x: torch.Tensor) -> torch.Tensor:
            return x.view(-1, self.block_size, *x.shape[1:]).index_select(0, blocks).flatten(0, 1)

        k, v = taken(self.k[layer]), taken(self.v[layer])
        if self.kind:
            k = decode(k, taken(self.k_scales[layer]), self.kind)
            v = decode(v, taken(self.v_scales[layer]), self.kind)
        return k, v

    def clear(self, tables: Seq[torch.Tensor], start: int, count: int) -> None:
        """Zero what was written for positions `start` .. `start + count - 1` of the sequence whose block table in
        a group is `tables[group]`, `[width]`."""
        positions = torch.arange(start, start + count)
        self.clear_places(
            [
                t[positions // self.block_size].long() * self.block_size + positions % self.block_size
                for t in tables
            ]
        )

    def clear_places(self, places: Seq[torch.Tensor]) -> None:
        """Zero these slots; `places[group]`: `[tokens]`."""
        for layer, group in enumerate(self.layer_groups):
            slots = places[group].to(self.k[layer].device)
            for part in (self.k, self.v, *((self.k_scales, self.v_scales) if self.kind else ())):
                part[layer][slots] = 0

    @staticmethod
    def block_bytes(
        layers: int,
        block_size: int,
        kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        kind: KvKind = KvKind.AS_IS,
    ) -> int:
        """Bytes of one block over `layers` layers, keys and values together."""
        each = head_dim + torch.float32.itemsize if kind else head_dim * dtype.itemsize
        return 2 * layers * block_size * kv_heads * each


class Placed(NamedTuple):
    """The numbers of a step on the device, int32 where nothing else is said. `rows`: `[rows, 4]`, slot, first position, first
    token in the batch, tokens. Of each group: `items`, `[.., 5]`, `spans`, `[3, 2]`: which of them are of few queries, of many,
    and joins (the first, how many); `tables`: `[slots, width]`; `places`: `[tokens]` int64, where a token goes in the
    cache, -1 is nowhere."""

    rows: torch.Tensor
    items: torch.Tensor
    spans: tuple[torch.Tensor, ...]
    tables: tuple[torch.Tensor, ...]
    places: tuple[torch.Tensor, ...]


class StepWork(NamedTuple):
    """What attention has to do in a step: `items` and `spans` as in `Placed`, on the CPU, the spans `[groups, 3, 2]`; whether any
    item is of many queries; how many parts of splits there are."""

    items: np.ndarray
    spans: np.ndarray
    many: bool
    parts: int


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
    """Keys and values of all layers, wherever a kernel likes them to lie. `memories`: all that belongs to a block, one or more
    lists with a tensor for each group, `[blocks, layers, 2, numbers]` in any order of strides."""

    memories: list[list[torch.Tensor]]

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
