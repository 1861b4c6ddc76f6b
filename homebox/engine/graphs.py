"""Is a step launched kernel by kernel, or as a whole?

A captured graph costs the CPU one call where a model's layers cost hundreds. The first step of a kind runs kernel by
kernel (that compiles what is not compiled yet), the second is captured. Where there is no memory for a graph, steps of
its kind go on as the first did.
"""

from __future__ import annotations

from typing import Any

import torch

from homebox.engine.numbers import Key
from homebox.kernels.device import Device, Work

# Steps are padded to these many tokens, and captured up to the last of them.
DECODE = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64)
MIXED = (*DECODE, 96, 128, 192, 256, 384, 512)


def padded(tokens: int) -> int | None:
    """How many tokens a captured step of so many has; None: too many, it is not captured."""
    return next((size for size in MIXED if size >= tokens), None)


class Graphs:
    def __init__(self, device: Device) -> None:
        self._device = device
        self._seen: set[Key] = set()
        self._refused: set[Key] = set()
        self._graphs: dict[Key, Any] = {}
        self.captured = 0

    def run(self, key: Key, work: Work) -> bool:
        """Do this key's work, the same one each time. True where that was the first time, which takes longer."""
        if key not in self._seen:
            self._device.run(work)
            self._seen.add(key)
            return True
        if key not in self._graphs and key not in self._refused:
            try:
                self._graphs[key] = self._device.capture(work)
                self.captured += 1
            except torch.OutOfMemoryError:
                self._refused.add(key)
        if (graph := self._graphs.get(key)) is None:
            self._device.run(work)
        else:
            self._device.replay(graph)
        return False

    def forget(self) -> None:
        """What they were captured for has moved, or their memory is needed. What is in the queue already is not touched."""
        self._graphs.clear()
