"""Paged attention in plain torch: gather the blocks, then `scaled_dot_product_attention`.

Slow and obvious; every other kernel is compared with it. Rows of one token (decode) are computed together, padded to
the size of their bucket, which only their own length decides, so that neighbours change nothing; longer rows one by one. Query heads that share a key head are laid side by side
as if they were more queries of that head, so keys and values are never repeated.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn.functional import scaled_dot_product_attention

from homebox.kernels.attention import BatchShape, PagedCache


def bucket(context: int) -> int:
    """To how many tokens a context is padded: a power of two from 64 to 512, then a multiple of 512."""
    return max(64, 1 << (context - 1).bit_length()) if context <= 512 else -(-context // 512) * 512


def buckets(contexts: torch.Tensor) -> torch.Tensor:
    """`bucket` of each."""
    steps = torch.tensor([64, 128, 256, 512])
    few = steps[torch.bucketize(contexts, steps).clamp(max=3)]
    return torch.where(contexts <= 512, few, (contexts + 511) // 512 * 512)


@dataclass(frozen=True)
class _Part:
    """`rows` rows of `count` tokens that are computed in one call. `tokens`: their flat indices, `[rows * count]`;
    `blocks`: their block tables, padded, `[rows * blocks]`; `mask`: additive, `[rows, 1, shared * count, blocks * size]`, or
    `[rows, 1, 1, blocks * size]` for single tokens."""

    rows: int
    count: int
    tokens: torch.Tensor
    blocks: torch.Tensor
    mask: torch.Tensor


class ReferenceAttention:
    name = "reference"

    def __init__(
        self, cache: PagedCache, windows: tuple[int | None, ...], heads: int, scale: float | None = None
    ) -> None:
        """`windows[group]`: how many tokens back a query sees, itself included; None is all. `scale` defaults to
        head_dim ** -0.5."""
        self.cache = cache
        self.windows = windows
        self.heads = heads
        self.scale = scale
        self._parts: list[list[_Part]] = []
        self._written: list[torch.Tensor] = []

    def plan(self, shape: BatchShape) -> None:
        self._parts = [self._plan_group(shape, group) for group in range(len(self.windows))]
        self._written = [self._written_slots(shape, group) for group in range(len(self.windows))]

    def write(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> None:
        slots = self._written[self.cache.layer_groups[layer]]
        self.cache.store(layer, slots, k, v)

    def attend(self, layer: int, q: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(q)
        kv_heads = self.cache.k[layer].shape[1]
        shared = self.heads // kv_heads
        for part in self._parts[self.cache.layer_groups[layer]]:
            rows, count = part.rows, part.count
            # [rows, count, kv_heads, shared, dim] -> [rows, kv_heads, shared * count, dim]
            query = q.index_select(0, part.tokens).view(rows, count, kv_heads, shared, -1)
            query = query.permute(0, 2, 3, 1, 4).reshape(rows, kv_heads, shared * count, -1)
            # [rows, kv_heads, context, dim]
            keys, values = (
                x.to(q.dtype).view(rows, -1, *x.shape[1:]).transpose(1, 2)
                for x in self.cache.blocks_of(layer, part.blocks)
            )
            mixed = scaled_dot_product_attention(query, keys, values, attn_mask=part.mask, scale=self.scale)
            mixed = mixed.view(rows, kv_heads, shared, count, -1).permute(0, 3, 1, 2, 4)
            out.index_copy_(0, part.tokens, mixed.reshape(rows * count, self.heads, -1))
        return out

    def _written_slots(self, shape: BatchShape, group: int) -> torch.Tensor:
        size = self.cache.block_size
        counts = shape.counts.long()
        rows = torch.arange(len(counts)).repeat_interleave(counts)
        within = torch.arange(len(rows)) - (counts.cumsum(0) - counts)[rows]
        positions = shape.starts[rows] + within
        blocks = shape.tables[group][shape.slots[rows].long(), positions // size].long()
        return (blocks * size + positions % size).to(self.cache.k[0].device)

    def _plan_group(self, shape: BatchShape, group: int) -> list[_Part]:
        ends = shape.counts.cumsum(0)
        single = shape.counts == 1
        padded = torch.where(single, buckets(shape.starts + 1), 0)
        parts = [
            self._part(shape, group, torch.tensor([row]), ends, int(shape.starts[row] + shape.counts[row]))
            for row in torch.nonzero(~single).flatten().tolist()
        ]
        for context in padded[single].unique().tolist():
            parts.append(self._part(shape, group, torch.nonzero(padded == context).flatten(), ends, context))
        return parts

    def _part(
        self, shape: BatchShape, group: int, rows: torch.Tensor, ends: torch.Tensor, context: int
    ) -> _Part:
        """`rows` have equally many tokens; `ends[row]` is the flat index behind the row's last one."""
        size, window = self.cache.block_size, self.windows[group]
        count = int(shape.counts[rows[0]])
        starts = shape.starts[rows].long()
        longest = -(-context // size)
        first = torch.zeros_like(starts) if window is None else (starts - window + 1).clamp(min=0) // size
        # A row reads no blocks but its own: those behind its window and beyond its end are replaced by others of
        # its table, and the mask hides them.
        last = (starts + count - 1) // size
        entries = torch.arange(longest).clamp(min=first[:, None], max=last[:, None])
        blocks = shape.tables[group][shape.slots[rows].long()[:, None], entries].long()
        tokens = (ends[rows] - count)[:, None] + torch.arange(count)
        queries = starts[:, None, None] + torch.arange(count)[:, None]
        keys = torch.arange(longest * size)
        hidden = keys > queries
        if window is not None:
            hidden |= keys <= queries - window
        mask = torch.zeros(hidden.shape).masked_fill_(hidden, float("-inf"))[:, None]
        if count > 1:
            mask = mask.repeat(1, 1, self.heads // self.cache.k[0].shape[1], 1)
        device = self.cache.k[0].device
        return _Part(
            len(rows), count, tokens.flatten().to(device), blocks.flatten().to(device), mask.to(device)
        )
