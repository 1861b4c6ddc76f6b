"""Where do blocks lie that have left the device, and how do they go there and back?

In host memory that is made once, a slot a block: all layers of its group side by side, in the blocks' own layout, so that
what comes back has the bits that went. Which block goes into which slot, and when, is said by the plan of a step; here
is no bookkeeping.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from homebox.kernels.attention import Cache


class HostBlocks:
    """`slots` of each group: `[slots, layers, 2, numbers]`. The system gives this memory when it is first written."""

    def __init__(self, cache: Cache, slots: int) -> None:
        self._device = cache.groups
        self._host = [torch.empty((slots, *group.shape[1:]), dtype=group.dtype) for group in cache.groups]

    def move(self, out: Iterable[tuple[int, int, int]], into: Iterable[tuple[int, int, int]]) -> None:
        """Copy these out, then those in, one by one: (group, block on the device, slot on the host)."""
        for group, block, slot in out:
            self._host[group][slot].copy_(self._device[group][block])
        for group, block, slot in into:
            self._device[group][block].copy_(self._host[group][slot])
