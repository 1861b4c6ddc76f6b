"""`Attention` on a GPU: what `paged.py` computes, planned by `work.py`, over a cache of tokens in blocks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from homebox.kernels.attention import BatchShape, PagedCache
from homebox.kernels.triton import paged
from homebox.kernels.triton.tuning import Attend, padded, tuning
from homebox.kernels.triton.work import Work, cut


@dataclass(frozen=True)
class _Planned:
    """Of a group of layers: its work on the device, and the places where the step's tokens go, `[tokens]` int64."""

    work: Work
    few: torch.Tensor
    many: torch.Tensor
    joins: torch.Tensor
    tables: torch.Tensor
    slots: torch.Tensor


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
    ) -> None:
        """`windows[group]`: how many tokens back a query sees, itself included; None is all. `scale` defaults to
        head_dim ** -0.5. `softcap`: scores are `softcap * tanh(score / softcap)`, 0 is off."""
        self.cache = cache
        self.windows = windows
        self.heads = heads
        self.kv_heads, self.head_dim = cache.k[0].shape[1:]
        self.scale = self.head_dim**-0.5 if scale is None else scale
        self.softcap = softcap
        self.device = cache.k[0].device
        self.sizes = sizes or tuning(self.device).attend.of(self.head_dim)
        self.shared = heads // self.kv_heads
        self._planned: list[_Planned] = []
        self._rows = torch.empty(0, 4, dtype=torch.int32)
        self._parts = torch.empty(0)
        self._part_sums = torch.empty(0)

    def plan(self, shape: BatchShape) -> None:
        starts, counts, slots = (part.numpy() for part in (shape.starts, shape.counts, shape.slots))
        tokens = np.cumsum(counts) - counts
        self._rows = self._upload(np.stack((slots, starts, tokens, counts), axis=1))
        self._planned = [self._plan(shape, starts, counts, group) for group in range(len(self.windows))]
        most = max(planned.work.parts for planned in self._planned)
        lanes = most * self.kv_heads * self._few
        self._parts = torch.empty(lanes, self.head_dim, dtype=torch.float32, device=self.device)
        self._part_sums = torch.empty(lanes, 2, dtype=torch.float32, device=self.device)

    def write(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> None:
        self.cache.store(layer, self.slots(layer), k, v)

    def slots(self, layer: int) -> torch.Tensor:
        """Where the step's tokens go in the cache of a layer, `[tokens]` int64."""
        return self._planned[self.cache.layer_groups[layer]].slots

    def attend(self, layer: int, q: torch.Tensor) -> torch.Tensor:
        q = q.contiguous()
        return self.attend_into(layer, q, torch.empty_like(q))

    def attend_into(self, layer: int, q: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """`attend` into `out`, every element of it; both contiguous."""
        group = self.cache.layer_groups[layer]
        planned = self._planned[group]
        if len(planned.few):
            self._launch(layer, q, out, planned, planned.few, self._few, self.sizes.few_warps)
        if len(planned.many):
            self._launch(layer, q, out, planned, planned.many, self._many, self.sizes.many_warps)
        if len(planned.joins):
            paged.join[(len(planned.joins), self.kv_heads)](
                planned.joins, self._rows, out, self._parts, self._part_sums, self.kv_heads,
                DIM=self.head_dim, PADDED=padded(self.head_dim), SHARED=self.shared, M=self._few,
                num_warps=4,
            )  # fmt: skip
        return out

    @property
    def _few(self) -> int:
        return max(self.sizes.few, padded(self.shared))

    @property
    def _many(self) -> int:
        return max(self.sizes.many, padded(self.shared))

    def _launch(
        self,
        layer: int,
        q: torch.Tensor,
        out: torch.Tensor,
        planned: _Planned,
        items: torch.Tensor,
        m: int,
        warps: int,
    ) -> None:
        cache = self.cache
        paged.attend[(len(items), self.kv_heads)](
            q, cache.k[layer], cache.v[layer], cache.k_scales[layer], cache.v_scales[layer], items, self._rows,
            planned.tables, out, self._parts, self._part_sums, self.kv_heads, planned.tables.shape[1], self.scale,
            DIM=self.head_dim, PADDED=padded(self.head_dim), SHARED=self.shared, M=m, N=self.sizes.keys,
            BLOCK=cache.block_size, SPLIT=self.sizes.split,
            WINDOW=self.windows[cache.layer_groups[layer]] or 0, SOFTCAP=self.softcap, KV=cache.kind,
            num_warps=warps, num_stages=self.sizes.stages,
        )  # fmt: skip

    def _plan(self, shape: BatchShape, starts: np.ndarray, counts: np.ndarray, group: int) -> _Planned:
        work = cut(
            starts, counts, few_queries=self._few // self.shared, many_queries=self._many // self.shared,
            split=self.sizes.split, window=self.windows[group],
        )  # fmt: skip
        size = self.cache.block_size
        rows = np.repeat(np.arange(len(counts)), counts)
        positions = starts[rows] + np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
        table = shape.tables[group].numpy()
        blocks = table[shape.slots.numpy()[rows], positions // size].astype(np.int64)
        return _Planned(
            work,
            self._upload(work.few),
            self._upload(work.many),
            self._upload(work.joins),
            shape.tables[group].to(self.device),
            torch.from_numpy(blocks * size + positions % size).to(self.device),
        )

    def _upload(self, numbers: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(numbers, np.int32)).to(self.device)
