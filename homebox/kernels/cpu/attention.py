"""Attention by the native kernels, over blocks that lie as they like them.

Keys of a block are `[kv_heads, head_dim, 16]`, values `[kv_heads, 16, head_dim]` (attention.h): other than in
`PagedCache` a vector then holds 16 keys, and nothing is gathered. In bf16 they are
`[kv_heads, head_dim / 2, 16, 2]` and `[kv_heads, head_dim / 16, 8, 16, 2]`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch

from homebox.kernels.attention import BatchShape, in_groups
from homebox.kernels.cpu import abi
from homebox.kernels.cpu.abi import KvKind
from homebox.kernels.cpu.memory import pages

_KINDS = {torch.float32: KvKind.FLOAT32, torch.bfloat16: KvKind.BFLOAT16}


def kv_dtype(exact: bool) -> torch.dtype:
    """How these kernels keep keys and values best. `exact`: the weights are fp32. Beside rounded ones 16 bits add nothing
    that could be seen (docs/decisions/024)."""
    return torch.float32 if exact else torch.bfloat16


class BlockCache:
    """Keys and values of all layers. `k[layer]`: `[blocks, kv_heads, head_dim, 16]`, `v[layer]`: `[blocks, kv_heads, 16,
    head_dim]`, with bf16 as above. `memories`: see `Cache`. `dtype` is fp32 or
    bf16."""

    block_size = abi.BLOCK

    def __init__(
        self,
        *,
        layer_groups: tuple[int, ...],
        blocks: tuple[int, ...],
        kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
    ) -> None:
        """`layer_groups[layer]` is the layer's group, `blocks[group]` how many blocks each of its layers has."""
        self.layer_groups = layer_groups
        self.kv_heads, self.head_dim, self.dtype = kv_heads, head_dim, dtype
        each = kv_heads * head_dim * abi.BLOCK
        memory = pages(2 * each * dtype.itemsize * sum(blocks[group] for group in layer_groups)).view(dtype)
        keys: tuple[int, ...] = (head_dim, abi.BLOCK)
        values: tuple[int, ...] = (abi.BLOCK, head_dim)
        if dtype == torch.bfloat16:
            keys, values = (
                (head_dim // 2, abi.BLOCK, 2),
                (head_dim // abi.LANES, abi.BLOCK // 2, abi.LANES, 2),
            )
        groups, halves = in_groups(memory, layer_groups, blocks, each)
        self.memories = [groups]
        self.k = [half.view(-1, kv_heads, *keys) for half, _ in halves]
        self.v = [half.view(-1, kv_heads, *values) for _, half in halves]

    @staticmethod
    def block_bytes(layers: int, kv_heads: int, head_dim: int, dtype: torch.dtype) -> int:
        """Bytes of one block over `layers` layers, keys and values together."""
        return 2 * layers * abi.BLOCK * kv_heads * head_dim * dtype.itemsize

    def clear(self, tables: Sequence[torch.Tensor], start: int, count: int) -> None:
        """Zero what was written for positions `start` .. `start + count - 1` of the sequence whose block table in
        a group is `tables[group]`, `[width]`."""
        positions = torch.arange(start, start + count)
        for layer, group in enumerate(self.layer_groups):
            blocks, slots = tables[group][positions // abi.BLOCK].long(), positions % abi.BLOCK
            self.k[layer][blocks, :, :, slots] = 0
            if self.dtype == torch.bfloat16:
                self.v[layer][blocks, :, :, slots // 2, :, slots % 2] = 0
            else:
                self.v[layer][blocks, :, slots] = 0


class NativeAttention:
    """`Attention` on the CPU. `windows[group]`: how many tokens back a query sees, itself included; None is all."""

    name = "native"

    def __init__(
        self,
        functions: ctypes.CDLL,
        cache: BlockCache,
        windows: tuple[int | None, ...],
        heads: int,
        scale: float | None = None,
    ) -> None:
        """`scale` of the scores defaults to head_dim ** -0.5."""
        self.functions = functions
        self.cache = cache
        self.windows = windows
        self.scale = cache.head_dim**-0.5 if scale is None else scale
        self.shape = abi.Shape(heads, cache.kv_heads, cache.head_dim, _KINDS[cache.dtype])
        self.batches = (abi.Batch * len(windows))()
        self._planned: BatchShape | None = None  # keeps what `batches` points at

    def plan(self, shape: BatchShape) -> None:
        self._planned = shape
        tokens = int(shape.counts.sum())
        for batch, window, table in zip(self.batches, self.windows, shape.tables, strict=True):
            batch.rows, batch.tokens = len(shape.slots), tokens
            batch.width, batch.window = table.shape[1], window or 0
            batch.slots, batch.starts = shape.slots.data_ptr(), shape.starts.data_ptr()
            batch.counts, batch.tables = shape.counts.data_ptr(), table.data_ptr()

    def write(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> None:
        k, v = k.contiguous(), v.contiguous()
        self.functions.hb_write_kv(
            ctypes.byref(self.shape), self._batch(layer), k.data_ptr(), v.data_ptr(), *self.blocks(layer)
        )

    def attend(self, layer: int, q: torch.Tensor) -> torch.Tensor:
        q = (q * self.scale).contiguous()
        out = torch.empty_like(q)
        self.functions.hb_attend(
            ctypes.byref(self.shape), self._batch(layer), q.data_ptr(), *self.blocks(layer), out.data_ptr()
        )
        return out

    def blocks(self, layer: int) -> tuple[int, int]:
        """Where a layer's keys and values lie."""
        return self.cache.k[layer].data_ptr(), self.cache.v[layer].data_ptr()

    def _batch(self, layer: int) -> object:
        return ctypes.byref(self.batches[self.cache.layer_groups[layer]])
