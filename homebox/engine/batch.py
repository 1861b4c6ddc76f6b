"""What does the model read of a plan?

The rows of a step as arrays of numbers, in buffers that are made once and filled anew for each step, and the block
tables and last tokens of all slots, which live from step to step and change where a plan says so. A step copies what is
new in it. Whoever reads the arrays does so before the next step fills them.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from itertools import chain

import numpy as np
import torch

from homebox.engine.plan import Row, TableChange
from homebox.kernels.attention import BatchShape


class Batch:
    """All int32, on the CPU. `ids`, `positions`: `[tokens]` of the last `fill`; `tables[group]`: `[slots, width]`."""

    def __init__(self, slots: int, groups: int, width: int) -> None:
        self._tables = [np.zeros((slots, width), np.int32) for _ in range(groups)]
        self.tables = tuple(torch.from_numpy(table) for table in self._tables)
        self.last_tokens = [0] * slots
        self._rows = np.zeros((3, slots), np.int32)  # slots, starts, counts
        self._tokens = np.zeros((2, 512), np.int32)  # ids, positions
        self.ids = self.positions = torch.empty(0, dtype=torch.int32)

    def change(self, changes: Seq[TableChange]) -> None:
        for change in changes:
            end = change.index + len(change.blocks)
            self._tables[change.group][change.slot, change.index : end] = change.blocks

    def table(self, slot: int) -> list[torch.Tensor]:
        """The block tables of one slot, one `[width]` a group."""
        return [table[slot] for table in self.tables]

    def fill(self, rows: Seq[Row]) -> BatchShape:
        """Lay these rows side by side. A row without ids is the token that its slot made last."""
        count = len(rows)
        tokens = sum(row.count for row in rows)
        if tokens > self._tokens.shape[1]:
            self._tokens = np.zeros((2, 2 * tokens), np.int32)
        slots, starts, counts = self._rows[:, :count]
        ids, positions = self._tokens[:, :tokens]
        slots[:] = [row.slot for row in rows]
        starts[:] = [row.start for row in rows]
        counts[:] = [row.count for row in rows]
        last = self.last_tokens
        ids[:] = list(chain.from_iterable(row.tokens or (last[row.slot],) for row in rows))
        if tokens == count:
            positions[:] = starts
        else:
            offsets = np.cumsum(counts) - counts
            positions[:] = np.repeat(starts - offsets, counts) + np.arange(tokens)
        self.ids, self.positions = torch.from_numpy(ids), torch.from_numpy(positions)
        return BatchShape(
            torch.from_numpy(slots), torch.from_numpy(starts), torch.from_numpy(counts), self.tables
        )
