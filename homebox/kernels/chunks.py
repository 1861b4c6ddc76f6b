"""What does a library need to know that computes attention for chunks of prompts in our stead?

Rows of few queries stay with our own kernel, since their sums do not depend on who is beside them. A library is given
the whole step, with nothing to see for those rows; their outputs are written over afterwards. All of it is made on the
device, once a step, and nobody looks at it, so that a captured step can be run again with other numbers.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch.nn.functional import pad


class Segments(NamedTuple):
    """A step's rows in one group, int32, contiguous. `borders`: `[rows + 1]`, where each row's tokens begin, and the end of
    the last. `seen`: `[rows]`, the keys that a row's last query sees, counted from position 0; none for a row of few queries.
    `pages`: `[rows, width]`, the block of each `block_size` positions, as far as the row's last token."""

    borders: torch.Tensor
    seen: torch.Tensor
    pages: torch.Tensor


class Chunks(Protocol):
    """Who computes it. `name`: with its version, as a person would say it."""

    name: str

    def __call__(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, segments: Segments, window: int | None, scale: float,
        softcap: float,
    ) -> torch.Tensor:  # fmt: skip
        """Causal attention of `q`, `[tokens, heads, head_dim]`, over `k` and `v`, `[blocks, block_size, kv_heads, head_dim]`:
        a new tensor of `q`'s shape, contiguous. What it holds for rows that see nothing is anything. Called in a step that is
        being captured."""


def segments(
    rows: torch.Tensor, tables: tuple[torch.Tensor, ...], windows: tuple[int | None, ...], *, few: int, block_size: int
) -> tuple[Segments, ...]:  # fmt: skip
    """Of each group. `rows`, `tables`: as in `Placed`; rows of at most `few` tokens are left to somebody else."""
    slots, starts, _, counts = rows.unbind(dim=1)
    borders = pad(counts.cumsum(0, dtype=torch.int32), (1, 0))
    seen = (starts + counts) * (counts > few)
    made = []
    for table, window in zip(tables, windows, strict=True):
        pages = table[slots.long()]
        if window is not None:
            # A kernel reads keys in tiles, also such as lie before the window, with weight 0. These blocks may be
            # nobody's, or somebody's whose numbers are none, and 0 times NaN is NaN; so it finds one of the row's own there.
            first = (starts + 1 - window).clamp(min=0) // block_size
            entries = torch.arange(table.shape[1], device=table.device)
            pages = pages.gather(1, entries.maximum(first[:, None]))
        made.append(Segments(borders, seen, pages))
    return tuple(made)
