"""Where do blocks lie that have left the device, and how do they go there and back?

In host memory that is made once, a slot a block: all layers of its group side by side, in the blocks' own layout, so that
what comes back has the bits that went. Which block goes into which slot, and when, is said by the plan of a step; here
is no bookkeeping.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch

from homebox.kernels.attention import Cache
from homebox.kernels.device import pin


class HostBlocks:
    """`slots` of each group: `[slots, layers, 2, numbers]` for each of the cache's memories. The system gives this memory when
    it is first written; beside a GPU at once, since it is pinned there, so that the GPU copies by itself."""

    def __init__(self, cache: Cache, slots: int) -> None:
        self._places = [[_Place.of(part, slots) for part in memory] for memory in cache.memories]

    def move(self, out: Iterable[tuple[int, int, int]], into: Iterable[tuple[int, int, int]]) -> None:
        """Copy these out, then those in, one by one: (group, block on the device, slot on the host). On a GPU that is in the order
        of such calls (they share the way), and the CPU goes on. Takes no memory."""
        for group, block, slot in out:
            for memory in self._places:
                device, host, way = memory[group]
                if way is not None:
                    host[slot].copy_(way.copy_(device[block]), non_blocking=True)
                else:
                    host[slot].copy_(device[block])
        for group, block, slot in into:
            for memory in self._places:
                device, host, way = memory[group]
                if way is not None:
                    device[block].copy_(way.copy_(host[slot], non_blocking=True))
                else:
                    device[block].copy_(host[slot])


class _Place(NamedTuple):
    """Of a group: its blocks, the slots on the host, and on a GPU a block in one piece, through which the layers pass: only
    whole pieces cross the bus by themselves."""

    device: torch.Tensor
    host: torch.Tensor
    way: torch.Tensor | None

    @staticmethod
    def of(part: torch.Tensor, slots: int) -> _Place:
        shape, on_gpu = part.shape[1:], part.device.type == "cuda"
        host = torch.empty((slots, *shape), dtype=part.dtype)
        if not on_gpu:
            return _Place(part, host, None)
        pin(host, part.device)
        return _Place(part, host, torch.empty(shape, dtype=part.dtype, device=part.device))
