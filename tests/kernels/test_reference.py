"""The oracle itself against the definition: softmax over what is visible, one query at a time, from a plain list."""

from __future__ import annotations

import random

import pytest
import torch

from homebox.kernels.attention import BatchShape, PagedCache
from homebox.kernels.reference import ReferenceAttention

BLOCK = 16


def definition(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, position: int, window: int | None
) -> torch.Tensor:
    """Attention of one query `[heads, dim]` at `position` over `k`, `v` `[context, kv_heads, dim]`, in fp64."""
    first = 0 if window is None else max(0, position - window + 1)
    shared = q.shape[0] // k.shape[1]
    keys = k[first : position + 1].double().repeat_interleave(shared, dim=1)
    values = v[first : position + 1].double().repeat_interleave(shared, dim=1)
    weights = torch.einsum("hd,chd->hc", q.double(), keys) / q.shape[1] ** 0.5
    return torch.einsum("hc,chd->hd", weights.softmax(-1), values)


def among_others(shape: BatchShape, used: list[int], rng: random.Random) -> BatchShape:
    """The same batch out of a buffer that is kept between steps: rows anywhere in it, and old entries behind each."""
    order = list(range(len(used) + 5))
    rng.shuffle(order)
    kept = torch.full((len(order), shape.tables[0].shape[1] + 9), 10**6, dtype=torch.int32)
    for row, (slot, blocks) in enumerate(zip(order, used, strict=False)):
        kept[slot, :blocks] = shape.tables[0][row, :blocks]
    slots = torch.tensor(order[: len(used)], dtype=torch.int32)
    return BatchShape(slots, shape.starts, shape.counts, (kept,))


@pytest.mark.parametrize("kept", [False, True], ids=["tables of the step", "tables in a kept buffer"])
@pytest.mark.parametrize("window", [None, 20])
@pytest.mark.parametrize("heads, kv_heads, dim", [(4, 4, 64), (6, 2, 80), (8, 1, 96), (3, 3, 128)])
def test_paged_attention_is_attention(
    heads: int, kv_heads: int, dim: int, window: int | None, kept: bool
) -> None:
    torch.manual_seed(heads)
    rng = random.Random(dim)
    starts = [0, 0, 15, 16, 17, 63, 5, 40, 130, 3]
    counts = [1, 33, 1, 1, 1, 1, 11, 16, 1, 40]
    blocks = 64
    cache = PagedCache(
        layer_groups=(0, 0), blocks=(blocks,), block_size=BLOCK, kv_heads=kv_heads, head_dim=dim,
        dtype=torch.float32, device=torch.device("cpu"),
    )  # fmt: skip
    free = list(range(blocks))
    rng.shuffle(free)
    tables, contexts = [], []
    for start, count in zip(starts, counts, strict=True):
        size = start + count
        table = [free.pop() for _ in range(-(-size // BLOCK))]
        k, v = torch.randn(2, size, kv_heads, dim)
        for p in range(start):
            slot = table[p // BLOCK] * BLOCK + p % BLOCK
            cache.k[1][slot], cache.v[1][slot] = k[p], v[p]
        if window is not None:  # what no query of this row can see was given back
            behind = max(0, start - window + 1) // BLOCK
            table[:behind] = [-1] * behind
        tables.append(tuple(table))
        contexts.append((k, v))
    attention = ReferenceAttention(cache, (window,), heads)
    shape = BatchShape.of(starts, counts, [tables])
    if kept:
        shape = among_others(shape, [-(-(s + n) // BLOCK) for s, n in zip(starts, counts, strict=True)], rng)
    attention.plan(shape)
    rows = list(zip(contexts, starts, counts, strict=True))
    attention.write(
        1,
        torch.cat([k[s : s + n] for (k, _), s, n in rows]),
        torch.cat([v[s : s + n] for (_, v), s, n in rows]),
    )
    q = torch.randn(sum(counts), heads, dim)
    out = attention.attend(1, q)
    token = 0
    for (k, v), start, count in rows:
        for position in range(start, start + count):
            right = definition(q[token], k, v, position, window)
            torch.testing.assert_close(out[token].double(), right, atol=1e-5, rtol=1e-5)
            token += 1
    assert not cache.k[0].any(), "another layer was written"
