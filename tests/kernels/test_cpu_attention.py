"""Native paged attention: what the reference says, and for a query the same bits alone, in a chunk and among others."""

from __future__ import annotations

import ctypes
import random

import pytest
import torch

from homebox.kernels.attention import BatchShape, PagedCache
from homebox.kernels.cpu.attention import BlockCache, NativeAttention
from homebox.kernels.reference import ReferenceAttention
from tests.kernels.conftest import LEVELS, native

BLOCKS = 300
DTYPES = [torch.float32, torch.bfloat16]
Rows = list[tuple[int, int]]  # tokens that are cached, tokens that are new


class Pair:
    """The native kernel and the reference over the same keys and values, in blocks in no order."""

    def __init__(
        self,
        functions: ctypes.CDLL,
        heads: int,
        kv_heads: int,
        dim: int,
        window: int | None,
        dtype: torch.dtype,
    ) -> None:
        self.heads, self.kv_heads, self.dim, self.dtype = heads, kv_heads, dim, dtype
        self.cache = BlockCache(
            layer_groups=(0,), blocks=(BLOCKS,), kv_heads=kv_heads, head_dim=dim, dtype=dtype
        )
        self.native = NativeAttention(functions, self.cache, (window,), heads)
        paged = PagedCache(
            layer_groups=(0,), blocks=(BLOCKS,), block_size=16, kv_heads=kv_heads, head_dim=dim,
            dtype=torch.float32, device=torch.device("cpu"),
        )  # fmt: skip
        self.reference = ReferenceAttention(paged, (window,), heads)
        self.free = list(range(BLOCKS))
        random.Random(heads).shuffle(self.free)
        self.random = torch.Generator().manual_seed(dim)

    def sequence(self, length: int) -> tuple[list[int], torch.Tensor, torch.Tensor, torch.Tensor]:
        """A table, and all its queries, keys and values."""
        table = [self.free.pop() for _ in range(-(-length // 16))]
        q = torch.randn(length, self.heads, self.dim, generator=self.random)
        k, v = (torch.randn(length, self.kv_heads, self.dim, generator=self.random) for _ in "kv")
        if self.dtype == torch.bfloat16:  # scaled queries are rounded, too
            q = (q * self.dim**-0.5).bfloat16().float() * self.dim**0.5
        return table, q, k.to(self.dtype).float(), v.to(self.dtype).float()

    def step(
        self, which: NativeAttention | ReferenceAttention, rows: Rows, sequences: list
    ) -> list[torch.Tensor]:
        starts, counts = [start for start, _ in rows], [count for _, count in rows]
        which.plan(BatchShape.of(starts, counts, [[table for table, *_ in sequences]]))

        def new(part: int) -> torch.Tensor:
            return torch.cat([s[part][a : a + n] for (a, n), s in zip(rows, sequences, strict=True)])

        which.write(0, new(2), new(3))
        return list(which.attend(0, new(1)).split(counts))

    def fill(self, rows: Rows, sequences: list) -> None:
        """Write what is cached, to both."""
        for (start, _), sequence in zip(rows, sequences, strict=True):
            if start:
                for which in (self.native, self.reference):
                    self.step(which, [(0, start)], [sequence])


RAGGED: Rows = [
    (0, 1),
    (15, 1),
    (16, 1),
    (0, 40),
    (63, 2),
    (64, 1),
    (100, 37),
    (511, 1),
    (512, 1),
    (530, 20),
    (0, 17),
]


@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "window"),
    [
        (9, 3, 64, None), (4, 4, 64, None), (8, 1, 64, 50), (16, 2, 80, None), (6, 3, 96, 100), (4, 2, 128, None),
        (4, 1, 256, 33), (2, 2, 16, None), (4, 2, 32, 1), (60, 1, 16, None), (5, 1, 64, 600),
    ],
)  # fmt: skip
@pytest.mark.parametrize("dtype", DTYPES)
def test_it_says_what_the_reference_says(
    functions: ctypes.CDLL, heads: int, kv_heads: int, dim: int, window: int | None, dtype: torch.dtype
) -> None:
    pair = Pair(functions, heads, kv_heads, dim, window, dtype)
    sequences = [pair.sequence(start + count) for start, count in RAGGED]
    pair.fill(RAGGED, sequences)
    ours, theirs = (pair.step(which, RAGGED, sequences) for which in (pair.native, pair.reference))
    for mine, wanted in zip(ours, theirs, strict=True):
        # In bf16 the weights of the values are rounded, by 2^-9 of themselves at most.
        off = 2e-5 if dtype == torch.float32 else 2**-8
        torch.testing.assert_close(mine, wanted, rtol=off, atol=off)


@pytest.mark.parametrize(("window", "size"), [(None, 1.0), (70, 1.0), (700, 1.0), (None, 2e-37)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_query_has_the_same_bits_alone_in_a_chunk_and_among_others(
    functions: ctypes.CDLL, window: int | None, size: float, dtype: torch.dtype
) -> None:
    """Of values of that `size`: of 2e-37 many products are subnormal."""
    pair = Pair(functions, 9, 3, 64, window, dtype)
    sequence, other = pair.sequence(1200), pair.sequence(530)
    sequence[3].mul_(size)
    whole = pair.step(pair.native, [(0, 1200)], [sequence])[0]
    for position in (0, 1, 63, 64, 511, 512, 513, 900, 1023, 1024, 1199):
        assert torch.equal(pair.step(pair.native, [(position, 1)], [sequence])[0][0], whole[position])
    for start, count in ((0, 7), (500, 30), (1000, 200)):
        assert torch.equal(
            pair.step(pair.native, [(start, count)], [sequence])[0], whole[start : start + count]
        )
    together = pair.step(pair.native, [(1100, 1), (0, 530), (1150, 3)], [sequence, other, sequence])
    assert torch.equal(together[0][0], whole[1100])
    assert torch.equal(together[2], whole[1150:1153])


@pytest.mark.long
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(9, 3, 64), (8, 1, 80), (4, 4, 128)])
@pytest.mark.parametrize("window", [None, 70])
@pytest.mark.parametrize("dtype", DTYPES)
def test_levels_that_fuse_multiply_and_add_give_the_same_bits(
    heads: int, kv_heads: int, dim: int, window: int | None, dtype: torch.dtype
) -> None:
    """Matrix registers and vectors, for one query and for many, with products that are subnormal, too."""
    fused = [level for level in LEVELS if level != "portable"]
    if len(fused) < 2:
        pytest.skip(f"this processor has one such level: {fused}")
    answers = []
    for level in fused:
        pair = Pair(native(level), heads, kv_heads, dim, window, dtype)
        sequences = [pair.sequence(start + count) for start, count in RAGGED]
        for index, (_, _, keys, values) in enumerate(sequences):
            small = torch.logspace(0, -38, len(keys))[torch.randperm(len(keys), generator=pair.random)]
            if index % 2:
                keys *= small[:, None, None]
            values *= small[:, None, None] if index % 3 else 2e-37
        pair.fill(RAGGED, sequences)
        answers.append(torch.cat(pair.step(pair.native, RAGGED, sequences)))
    assert answers[0].isfinite().all()
    for level, answer in zip(fused, answers, strict=True):
        assert torch.equal(answer, answers[0]), level


@pytest.mark.parametrize("dtype", DTYPES)
def test_cleared_slots_are_zero_and_their_neighbours_are_not(
    functions: ctypes.CDLL, dtype: torch.dtype
) -> None:
    pair = Pair(functions, 2, 1, 32, None, dtype)
    sequence = pair.sequence(40)
    pair.step(pair.native, [(0, 40)], [sequence])
    table = torch.tensor(sequence[0])
    pair.cache.clear([table], 10, 20)
    keys, values = pair.cache.k[0][table], pair.cache.v[0][table]
    if dtype == torch.bfloat16:  # [blocks, 1, 16, 16, 2] and [blocks, 1, 2, 8, 16, 2]
        keys = keys.permute(0, 1, 2, 4, 3).reshape(-1, 1, 32, 16)
        values = values.permute(0, 1, 3, 5, 2, 4).reshape(-1, 1, 16, 32)
    keys, values = (part.float() for part in (keys, values))
    keys = keys.permute(0, 3, 1, 2).reshape(-1, 32)[:40]
    values = values.permute(0, 2, 1, 3).reshape(-1, 32)[:40]
    for part, written in ((keys, sequence[2]), (values, sequence[3])):
        assert not part[10:30].any()
        assert torch.equal(part[:10], written[:10, 0]) and torch.equal(part[30:], written[30:, 0])
