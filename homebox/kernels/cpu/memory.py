"""Where do weights and blocks lie?

In large pages where the kernel has them (Linux, transparent huge pages on request): every step reads all weights once and
blocks in no order at all, and with pages of 4 KiB the processor would spend a third of that time looking up where
they are (docs/decisions/025). Memory is taken from the system when it is first written, not before.
"""

from __future__ import annotations

import mmap

import torch

_HUGE = 2 * 2**20
_LINE = 64  # bytes of a cache line, and of the widest vector


def pages(size: int) -> torch.Tensor:
    """`size` zeros, uint8, at the beginning of a large page."""
    whole = mmap.mmap(-1, max(size, 1) + _HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        whole.madvise(mmap.MADV_HUGEPAGE)
    memory = torch.frombuffer(whole, dtype=torch.uint8)  # keeps the map
    return memory[-memory.data_ptr() % _HUGE :][:size]


class Arena:
    """Memory for many weights, a few large pages at a time, so that small ones share them."""

    def __init__(self, at_once: int = 16 * _HUGE) -> None:
        self._at_once = at_once
        self._rest = torch.empty(0, dtype=torch.uint8)

    def take(self, size: int) -> torch.Tensor:
        """`size` zeros, uint8, at the beginning of a cache line."""
        room = -(-size // _LINE) * _LINE
        if room > len(self._rest):
            self._rest = pages(max(room, self._at_once))
        taken, self._rest = self._rest[:size], self._rest[room:]
        return taken
