"""Cutting a step's attention into items: every query meets every key that it sees, once."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from homebox.kernels.triton.work import cut

SPLIT = 16


@settings(deadline=None)
@given(
    rows=st.lists(st.tuples(st.integers(0, 80), st.integers(1, 20)), min_size=1, max_size=4),
    window=st.none() | st.integers(1, 60),
    few=st.integers(1, 8),
    many=st.integers(1, 12),
)
def test_every_query_meets_every_key_that_it_sees_once(
    rows: list[tuple[int, int]], window: int | None, few: int, many: int
) -> None:
    starts, counts = (np.array(part, np.int32) for part in zip(*rows, strict=True))
    work = cut(starts, counts, few_queries=few, many_queries=many, split=SPLIT, window=window)
    met: Counter[tuple[int, int, int]] = Counter()
    for items, most in ((work.few, few), (work.many, many)):
        for row, first, queries, split, _ in items.tolist():
            assert 1 <= queries <= most
            for query in range(first, first + queries):
                position = starts[row] + query
                least = 0 if window is None else max(0, position + 1 - window)
                for key in range(least, position + 1):
                    if split < 0 or key // SPLIT == split:
                        met[row, query, key] += 1
    wanted = {
        (row, query, key)
        for row, (start, count) in enumerate(rows)
        for query in range(count)
        for key in range(0 if window is None else max(0, start + query + 1 - window), start + query + 1)
    }
    assert set(met) == wanted and set(met.values()) == {1}


@settings(deadline=None)
@given(rows=st.lists(st.tuples(st.integers(0, 200), st.integers(1, 4)), min_size=1, max_size=12))
def test_parts_are_numbered_once_and_joined_in_the_order_of_the_context(rows: list[tuple[int, int]]) -> None:
    starts, counts = (np.array(part, np.int32) for part in zip(*rows, strict=True))
    work = cut(starts, counts, few_queries=4, many_queries=16, split=SPLIT, window=None)
    parts = {part: (row, split) for row, _, _, split, part in work.few.tolist() if part >= 0}
    assert sorted(parts) == list(range(work.parts))
    joined = [
        [parts[part] for part in range(first, first + splits)]
        for _, _, _, first, splits in work.joins.tolist()
    ]
    for (row, _, queries, _, splits), of_row in zip(work.joins.tolist(), joined, strict=True):
        assert queries == counts[row] and splits > 1
        assert of_row == [(row, split) for split in range(splits)]
    assert sum(map(len, joined)) == work.parts
