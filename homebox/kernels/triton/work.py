"""Into which items is a step's attention cut? Pure numbers, made on the CPU while the GPU computes the step before.

A row of few new tokens (decoding, drafts) is cut along its context, in splits of a fixed length, so that one long
conversation keeps a whole GPU busy, and so that its sums are the same whatever else is in the batch. A longer row is
cut along its queries; each item then reads all that its queries see.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int32]
ITEM = 5


@dataclass(frozen=True)
class Work:
    """`few`, `many`: `[items, 5]`, row, first query, queries, split (-1: all), part (-1: none), for the two shapes that
    the kernel has. `joins`: `[joins, 5]`, row, first query, queries, first part, parts. `parts`: how many there are."""

    few: Numbers
    many: Numbers
    joins: Numbers
    parts: int


def cut(
    starts: Numbers, counts: Numbers, *, few_queries: int, many_queries: int, split: int, window: int | None
) -> Work:
    """`starts`, `counts`: `[rows]`, as in BatchShape. An item holds up to `few_queries` or `many_queries` queries."""
    short = counts <= few_queries
    rows = np.flatnonzero(short)
    position, queries = starts[rows], counts[rows]
    first = np.zeros_like(position) if window is None else np.maximum(position + 1 - window, 0)
    first_split = first // split
    splits = (position + queries - 1) // split + 1 - first_split
    items = _repeat(rows, splits)
    within = _within(splits)
    joined = splits > 1
    parts = np.where(joined, splits, 0)
    first_part = np.cumsum(parts) - parts
    owner = np.repeat(np.arange(len(rows)), splits)
    few = _items(
        items,
        np.zeros_like(items),
        counts[items],
        np.where(joined[owner], first_split[owner] + within, -1),
        np.where(joined[owner], first_part[owner] + within, -1),
    )
    joins = _items(
        rows[joined], np.zeros_like(rows[joined]), queries[joined], first_part[joined], splits[joined]
    )
    long = np.flatnonzero(~short)
    tiles = -(-counts[long] // many_queries)
    items = _repeat(long, tiles)
    begins = _within(tiles) * many_queries
    nothing = np.full_like(begins, -1)
    many = _items(items, begins, np.minimum(counts[items] - begins, many_queries), nothing, nothing)
    return Work(few, many, joins, int(parts.sum()))


def _items(*columns: npt.NDArray[np.integer]) -> Numbers:
    return np.stack(columns, axis=1).astype(np.int32)


def _repeat(rows: npt.NDArray[np.integer], times: npt.NDArray[np.integer]) -> npt.NDArray[np.integer]:
    return np.repeat(rows, times)


def _within(counts: npt.NDArray[np.integer]) -> npt.NDArray[np.integer]:
    """0, 1, .. of each, behind each other."""
    ends = np.cumsum(counts)
    return np.arange(int(ends[-1]) if len(ends) else 0) - np.repeat(ends - counts, counts)
