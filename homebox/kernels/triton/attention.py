"""`Attention` on a GPU: what `paged.py` computes, planned by `work.py`, over a cache of tokens in blocks.

What a step needs are a few tensors of numbers on the device (`Placed`). The device runner keeps them in place from
step to step, so that a captured step can be run again; `plan` makes them anew each time, for whoever has no runner.

Rows of many queries may be somebody else's to compute (`chunks`, see kernels/chunks.py).
"""

from __future__ import annotations

import numpy as np
import torch

from homebox.kernels.attention import BatchShape, PagedCache, Placed, StepWork
from homebox.kernels.chunks import Chunks, Segments, segments
from homebox.kernels.triton import enter, paged
from homebox.kernels.triton.tuning import Attend, padded, tuning
from homebox.kernels.triton.work import ITEM, Numbers, cut


class TritonAttention:
    name = "triton"

    def __init__(
        self,
        cache: PagedCache,
        windows: tuple[int | None, ...],
        heads: int,
        scale: float | None = None,
        softcap: float = 0.0,
        sizes: Attend | None = None,
        chunks: Chunks | None = None,
    ) -> None:
        """`windows[group]`: how many tokens back a query sees, itself included; None is all. `scale` defaults to
        head_dim ** -0.5. `softcap`: scores are `softcap * tanh(score / softcap)`, 0 is off. `chunks`: who computes rows of many
        queries; None is our own kernel, and has to be where keys and values are stored in 8 bits."""
        self.cache = cache
        self.windows = windows
        self.heads = heads
        self.kv_heads, self.head_dim = cache.k[0].shape[1:]
        self.scale = self.head_dim**-0.5 if scale is None else scale
        self.softcap = softcap
        self.device = cache.k[0].device
        self.sizes = sizes or tuning(self.device).attend.of(self.head_dim)
        self.shared = heads // self.kv_heads
        self._placed: Placed | None = None
        self._has_many = False
        self._chunks = chunks
        self._segments: tuple[Segments, ...] = ()
        self._parts = torch.empty(0, device=self.device)
        self._part_sums = torch.empty(0, device=self.device)

    # ------------------------------------------------------------------ before a step

    def work(self, starts: Numbers, counts: Numbers) -> StepWork:
        """What there is to do for these rows."""
        works = [
            cut(
                starts, counts, few_queries=self._few // self.shared, many_queries=self._many // self.shared,
                split=self.sizes.split, window=window,
            )
            for window in self.windows
        ]  # fmt: skip
        lists = [part for work in works for part in (work.few, work.many, work.joins)]
        sizes = np.array([len(part) for part in lists], np.int32)
        firsts = np.cumsum(sizes, dtype=np.int32) - sizes
        return StepWork(
            items=np.concatenate(lists).reshape(-1, ITEM),
            spans=np.stack((firsts, sizes), axis=1).reshape(len(works), 3, 2),
            many=any(len(work.many) for work in works),
            parts=max(work.parts for work in works),
        )

    def make_room(self, work: StepWork) -> bool:
        """Have room for the parts of its splits. True if it moved: what was captured before has it at its old place."""
        lanes = work.parts * self.kv_heads * self._few
        if lanes <= len(self._part_sums):
            return False
        self._parts = torch.empty(lanes, self.head_dim, dtype=torch.float32, device=self.device)
        self._part_sums = torch.empty(lanes, 2, dtype=torch.float32, device=self.device)
        return True

    def use(self, placed: Placed, has_many: bool) -> None:
        """Take the step's numbers from here. `has_many`: whether an item of many queries can be among them."""
        self._placed, self._has_many = placed, has_many
        self._segments = ()
        if has_many and self._chunks is not None:
            few, size = self._few // self.shared, self.cache.block_size
            self._segments = segments(placed.rows, placed.tables, self.windows, few=few, block_size=size)

    def plan(self, shape: BatchShape) -> None:
        starts, counts, slots = (part.numpy() for part in (shape.starts, shape.counts, shape.slots))
        tokens = np.cumsum(counts) - counts
        work = self.work(starts, counts)
        size = self.cache.block_size
        rows = np.repeat(np.arange(len(counts)), counts)
        positions = starts[rows] + np.arange(len(rows)) - tokens[rows]
        places = []
        for table in shape.tables:
            blocks = table.numpy()[slots[rows], positions // size].astype(np.int64)
            places.append(torch.from_numpy(blocks * size + positions % size).to(self.device))
        self.make_room(work)
        placed = Placed(
            rows=self._upload(np.stack((slots, starts, tokens, counts), axis=1)),
            items=self._upload(work.items),
            spans=tuple(self._upload(span) for span in work.spans),
            tables=tuple(table.to(self.device) for table in shape.tables),
            places=tuple(places),
        )
        self.use(placed, work.many)

    # ------------------------------------------------------------------ in a layer

    def placed(self) -> tuple[Placed, bool]:
        """The numbers in use, and whether an item of many queries can be among them."""
        assert self._placed is not None, "no step was planned"
        return self._placed, self._has_many

    def write(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> None:
        assert self._placed is not None
        self.cache.store(layer, self._placed.places[self.cache.layer_groups[layer]], k, v)

    def enter(
        self, layer: int, qkv: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor, eps: float,
        q_weight: torch.Tensor | None = None, k_weight: torch.Tensor | None = None,
    ) -> torch.Tensor:  # fmt: skip
        """Queries, `[tokens, heads, head_dim]`, normalised where there are weights for that, and rotated; keys and values are
        stored. `qkv`: `[tokens, (heads + 2 * kv_heads) * head_dim]`; `cosines`, `sines`: `[tokens, head_dim / 2]` fp32."""
        assert self._placed is not None
        cache, tokens = self.cache, len(qkv)
        queries = qkv.new_empty(tokens, self.heads, self.head_dim)
        enter.enter[(tokens, self.heads + 2 * self.kv_heads)](
            qkv, cosines, sines, qkv if q_weight is None else q_weight, qkv if k_weight is None else k_weight,
            self._placed.places[cache.layer_groups[layer]], queries, cache.k[layer], cache.v[layer],
            cache.k_scales[layer], cache.v_scales[layer], self.heads, self.kv_heads, eps,
            DIM=self.head_dim, PADDED=padded(self.head_dim), NORM=q_weight is not None, KV=cache.kind,
        )  # fmt: skip
        return queries

    def attend(self, layer: int, q: torch.Tensor) -> torch.Tensor:
        q = q.contiguous()
        if self._chunks is None or not self._segments:
            return self.attend_into(layer, q, torch.empty_like(q))
        cache, group = self.cache, self.cache.layer_groups[layer]
        k, v = (x[layer].view(-1, cache.block_size, self.kv_heads, self.head_dim) for x in (cache.k, cache.v))
        out = self._chunks(q, k, v, self._segments[group], self.windows[group], self.scale, self.softcap)
        return self._few_into(layer, q, out)

    def attend_into(self, layer: int, q: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """By our own kernels into `out`, every element of a token that a row holds; both contiguous."""
        if self._has_many:
            self._launch(layer, q, out, 1, self._many, self.sizes.many_warps)
        return self._few_into(layer, q, out)

    def _few_into(self, layer: int, q: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        self._launch(layer, q, out, 0, self._few, self.sizes.few_warps)
        placed = self._placed
        assert placed is not None
        span = placed.spans[self.cache.layer_groups[layer]][2]
        paged.join[self._grid](
            placed.items, span, placed.rows, out, self._parts, self._part_sums, self.kv_heads,
            DIM=self.head_dim, PADDED=padded(self.head_dim), SHARED=self.shared, M=self._few,
        )  # fmt: skip
        return out

    @property
    def _few(self) -> int:
        return max(self.sizes.few, padded(self.shared))

    @property
    def _many(self) -> int:
        return max(self.sizes.many, padded(self.shared))

    @property
    def _grid(self) -> tuple[int, int]:
        return max(1, self.sizes.programs // self.kv_heads), self.kv_heads

    def _launch(self, layer: int, q: torch.Tensor, out: torch.Tensor, kind: int, m: int, warps: int) -> None:
        cache, placed = self.cache, self._placed
        assert placed is not None
        group = cache.layer_groups[layer]
        paged.attend[self._grid](
            q, cache.k[layer], cache.v[layer], cache.k_scales[layer], cache.v_scales[layer], placed.items,
            placed.spans[group][kind], placed.rows, placed.tables[group], out, self._parts, self._part_sums,
            self.kv_heads, placed.tables[group].shape[1], self.scale,
            DIM=self.head_dim, PADDED=padded(self.head_dim), SHARED=self.shared, M=m, N=self.sizes.keys,
            BLOCK=cache.block_size, SPLIT=self.sizes.split, WINDOW=self.windows[group] or 0,
            SOFTCAP=self.softcap, KV=cache.kind, num_warps=warps, num_stages=self.sizes.stages,
        )  # fmt: skip

    def _upload(self, numbers: Numbers) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(numbers, np.int32)).to(self.device)
