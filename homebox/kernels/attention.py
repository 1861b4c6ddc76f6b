"""What must an attention kernel offer, and where do keys and values live?

The model calls `write` and `attend` once a layer; `plan` is called once a step with the shape of the whole batch, so
that everything that does not depend on the layer (slot lists, masks, launch parameters) is made once. Implementations
never see requests, only rows of numbers. `kernels.reference` is the oracle for all others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch


@dataclass(frozen=True)
class BatchShape:
    """The flat batch of one step: row i holds `counts[i]` consecutive tokens, starting at position `starts[i]`.

    `tables[group][i]` is row i's block table in that group; -1 marks a block behind the sliding window.
    """

    starts: tuple[int, ...]
    counts: tuple[int, ...]
    tables: tuple[tuple[tuple[int, ...], ...], ...]


class PagedCache:
    """Keys and values of all layers in blocks. `k[layer]`, `v[layer]`: `[slots, kv_heads, head_dim]`, where the slot
    of token p of a sequence is `table[p // block_size] * block_size + p % block_size`."""

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
        shapes = [(blocks[group] * block_size, kv_heads, head_dim) for group in layer_groups]
        self.k = [torch.zeros(shape, dtype=dtype, device=device) for shape in shapes]
        self.v = [torch.zeros(shape, dtype=dtype, device=device) for shape in shapes]

    def clear(self, tables: tuple[tuple[int, ...], ...], start: int, count: int) -> None:
        """Zero what was written for positions `start` .. `start + count - 1` of the sequence with these tables."""
        size = self.block_size
        for layer, group in enumerate(self.layer_groups):
            slots = [tables[group][p // size] * size + p % size for p in range(start, start + count)]
            self.k[layer][slots] = 0
            self.v[layer][slots] = 0

    @staticmethod
    def block_bytes(layers: int, block_size: int, kv_heads: int, head_dim: int, dtype: torch.dtype) -> int:
        """Bytes of one block over `layers` layers, keys and values together."""
        return 2 * layers * block_size * kv_heads * head_dim * dtype.itemsize


class Attention(Protocol):
    """`windows[group]`: how many tokens back a query sees, itself included; None is all."""

    name: str
    cache: PagedCache
    windows: tuple[int | None, ...]

    def plan(self, shape: BatchShape) -> None:
        """Prepare for one step. Called before the first layer."""

    def write(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> None:
        """Store the step's keys and values, `[tokens, kv_heads, head_dim]`, into their slots."""

    def attend(self, layer: int, q: torch.Tensor) -> torch.Tensor:
        """Causal attention of `q`, `[tokens, heads, head_dim]`, over everything written so far; same shape."""
