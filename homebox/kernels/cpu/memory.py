"""Where do weights and blocks lie?

In large pages where the kernel has them (Linux, transparent huge pages on request): every step reads all weights once and
blocks in no order at all, and with pages of 4 KiB the processor would spend a third of that time looking up where
they are (docs/decisions/025). Memory is taken from the system when it is first written, not before; on a machine with
several memory nodes, from all that are asked for in turns.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import platform
from collections.abc import Sequence

import torch

_HUGE = 2 * 2**20
_LINE = 64  # bytes of a cache line, and of the widest vector
_MBIND = {"x86_64": 237, "aarch64": 235}  # mbind(2): the number of the call
_INTERLEAVE = 3


def pages(size: int, nodes: Sequence[int] = ()) -> torch.Tensor:
    """`size` zeros, uint8, at the beginning of a large page; spread over memory `nodes` if any are
    named."""
    whole = mmap.mmap(-1, max(size, 1) + _HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        whole.madvise(mmap.MADV_HUGEPAGE)
    memory = torch.frombuffer(whole, dtype=torch.uint8)  # keeps the map
    if nodes:
        spread(memory, nodes)
    return memory[-memory.data_ptr() % _HUGE :][:size]


def spread(memory: torch.Tensor, nodes: Sequence[int]) -> bool:
    """Have untouched memory, from the beginning of a page on, come from these nodes in turns. False where the system does not
    do that (a sandbox may forbid it): then it comes from the node of whoever writes it first."""
    mask = ctypes.c_uint64(sum(1 << node for node in nodes))
    number = _MBIND.get(platform.machine())
    return max(nodes) < 64 and number is not None and not ctypes.CDLL(None).syscall(
        ctypes.c_long(number), ctypes.c_void_p(memory.data_ptr()), ctypes.c_ulong(memory.nbytes),
        ctypes.c_long(_INTERLEAVE), ctypes.byref(mask), ctypes.c_ulong(65), ctypes.c_ulong(0),
    )  # fmt: skip


class Arena:
    """Memory for many weights, a few large pages at a time, so that small ones share them. `nodes` as in `pages`."""

    def __init__(self, nodes: Sequence[int] = (), at_once: int = 16 * _HUGE) -> None:
        self._nodes, self._at_once = nodes, at_once
        self._rest = torch.empty(0, dtype=torch.uint8)

    def take(self, size: int) -> torch.Tensor:
        """`size` zeros, uint8, at the beginning of a cache line."""
        room = -(-size // _LINE) * _LINE
        if room > len(self._rest):
            self._rest = pages(max(room, self._at_once), self._nodes)
        taken, self._rest = self._rest[:size], self._rest[room:]
        return taken


def give_back() -> None:
    """What was freed, and the C library has kept for later, goes back to the system: after a load that is as much as the
    largest tensors took on their way. Nothing happens where the C library is another one."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
