"""Paged attention in Triton against the reference, over the same keys and values in blocks in no order."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field

import pytest
import torch

from homebox.kernels.attention import BatchShape, KvKind, PagedCache, decode, encode
from homebox.kernels.reference import ReferenceAttention
from homebox.kernels.triton.attention import TritonAttention
from homebox.kernels.triton.tuning import Attend

BLOCK = 8
SIZES = Attend(
    few=16, many=32, many_large=32, keys=16, split=32, few_warps=4, many_warps=4, stages=1, programs=4
)
Rows = list[tuple[int, int]]  # tokens that are cached, tokens that are new

# Around the borders of blocks (8), turns (16) and splits (32), as one token, as a few and as a chunk.
RAGGED: Rows = [(0, 1), (7, 1), (15, 1), (31, 1), (32, 2), (90, 1), (0, 37), (29, 7)]


@dataclass
class House:
    """A cache with sequences in it, and what the reference says of them in fp32."""

    heads: int
    kv_heads: int
    dim: int
    window: int | None = None
    kind: KvKind = KvKind.AS_IS
    dtype: torch.dtype = torch.float32
    softcap: float = 0.0
    rows: Rows = field(default_factory=lambda: RAGGED)

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(self.dim * self.heads)
        lengths = [start + count for start, count in self.rows]
        needed = [-(-length // BLOCK) for length in lengths]
        free = list(range(sum(needed) + 3))
        random.Random(self.heads).shuffle(free)
        self.tables = [[free.pop() for _ in range(count)] for count in needed]
        common = {
            "layer_groups": (0,), "blocks": (sum(needed) + 3,), "block_size": BLOCK, "kv_heads": self.kv_heads,
            "head_dim": self.dim, "device": torch.device("cpu"),
        }  # fmt: skip
        self.cache = PagedCache(dtype=self.dtype, kind=self.kind, **common)
        self.exact = PagedCache(dtype=torch.float32, **common)
        for codes in (*self.cache.k, *self.cache.v):
            codes.fill_(77)  # what nobody wrote is not to be seen
        self.keys, self.values = ([self._drawn(generator, n, self.kv_heads) for n in lengths] for _ in "kv")
        self.kept: list[tuple[torch.Tensor, torch.Tensor]] = []  # keys and values as the cache has them
        self.queries = [self._drawn(generator, count, self.heads) for _, count in self.rows]

    def _drawn(self, generator: torch.Generator, tokens: int, heads: int) -> torch.Tensor:
        return torch.randn(tokens, heads, self.dim, generator=generator).to(self.dtype)

    def attention(self, sizes: Attend = SIZES) -> TritonAttention:
        return TritonAttention(self.cache, (self.window,), self.heads, softcap=self.softcap, sizes=sizes)

    def shape(self, chosen: list[int]) -> BatchShape:
        starts, counts = zip(*(self.rows[i] for i in chosen), strict=True)
        return BatchShape.of(starts, counts, [[self.tables[i] for i in chosen]])

    def fill(self) -> None:
        """Write what is cached and what is new, into both caches: the reference sees what 8 bits kept."""
        for table, keys, values in zip(self.tables, self.keys, self.values, strict=True):
            positions = torch.arange(len(keys))
            slots = torch.tensor(table)[positions // BLOCK] * BLOCK + positions % BLOCK
            self.cache.store(0, slots, keys, values)
            if self.kind:
                keys, values = (decode(*encode(x, self.kind), self.kind) for x in (keys, values))
            self.kept.append((keys.float(), values.float()))
            self.exact.store(0, slots, *self.kept[-1])

    def ours(self, chosen: list[int] | None = None, sizes: Attend = SIZES) -> torch.Tensor:
        chosen = list(range(len(self.rows))) if chosen is None else chosen
        attention = self.attention(sizes)
        attention.plan(self.shape(chosen))
        q = torch.cat([self.queries[i] for i in chosen])
        out = torch.full_like(q, math.nan)  # every element is written
        return attention.attend_into(0, q, out)

    def wanted(self) -> torch.Tensor:
        if self.softcap:
            return self._with_softcap()
        reference = ReferenceAttention(self.exact, (self.window,), self.heads)
        reference.plan(self.shape(list(range(len(self.rows)))))
        return reference.attend(0, torch.cat(self.queries).float())

    def _with_softcap(self) -> torch.Tensor:
        """Written out: the reference has none."""
        shared = self.heads // self.kv_heads
        found = []
        for (start, count), q, kept in zip(self.rows, self.queries, self.kept, strict=True):
            k, v = (x.repeat_interleave(shared, dim=1) for x in kept)
            scores = torch.einsum("qhd,khd->hqk", q.float(), k) * self.dim**-0.5
            scores = self.softcap * torch.tanh(scores / self.softcap)
            position, key = start + torch.arange(count)[:, None], torch.arange(start + count)
            hidden = key > position
            if self.window is not None:
                hidden |= key <= position - self.window
            found.append(torch.einsum("hqk,khd->qhd", scores.masked_fill(hidden, -math.inf).softmax(-1), v))
        return torch.cat(found)


# What a type cannot hold, of values around 1: of the inputs, of the weights that meet the values, of the result.
BOUNDS = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
FP32, FP16, BF16 = BOUNDS
AS_IS, INT8, FP8 = KvKind
# heads, key heads, size of a head, window, how keys and values are stored, type, cap of scores
SHAPES = [
    (4, 4, 64, None, AS_IS, FP32, 0.0),
    (2, 1, 80, 33, AS_IS, FP32, 1.5),
    (6, 2, 96, None, INT8, FP32, 0.0),
    (4, 1, 128, 40, FP8, FP32, 0.0),
    (5, 1, 256, None, AS_IS, FP32, 0.0),
    (6, 1, 64, 1, AS_IS, FP32, 0.0),
    (7, 1, 80, None, FP8, BF16, 0.0),
    (8, 1, 96, 7, AS_IS, BF16, 0.0),
    (4, 2, 128, None, INT8, BF16, 1.5),
    (2, 2, 256, 100, INT8, FP16, 0.0),
    (6, 2, 64, None, AS_IS, FP16, 0.0),
    (8, 1, 128, 17, FP8, FP16, 1.5),
]
_Shape = tuple[int, int, int, int | None, KvKind, torch.dtype, float]


def is_within_its_bound(house: House) -> None:
    house.fill()
    off = BOUNDS[house.dtype]
    torch.testing.assert_close(house.ours().float(), house.wanted(), rtol=off, atol=off)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_it_says_what_the_reference_says_in_fp32(shape: _Shape) -> None:
    is_within_its_bound(House(*shape))


def test_the_shapes_hold_every_size_of_a_head_and_every_number_of_heads_that_share_keys() -> None:
    assert {dim for _, _, dim, *_ in SHAPES} == {64, 80, 96, 128, 256}
    assert {heads // kv_heads for heads, kv_heads, *_ in SHAPES} == set(range(1, 9))


def test_a_decoded_token_has_the_same_bits_whoever_is_beside_it() -> None:
    house = House(6, 3, 64)
    house.fill()
    together = house.ours()
    ends = torch.tensor([count for _, count in RAGGED]).cumsum(0)
    for row, (_, count) in enumerate(RAGGED):
        assert torch.equal(house.ours([row]), together[ends[row] - count : ends[row]])


@pytest.mark.long
@pytest.mark.parametrize("dim", [64, 80, 96, 128, 256])
@pytest.mark.parametrize("shared", range(1, 9))
@pytest.mark.parametrize("window", [None, 1, 50])
@pytest.mark.parametrize("kind", list(KvKind))
@pytest.mark.parametrize(("dtype", "softcap"), [(FP32, 0.0), (BF16, 1.5)])
def test_every_shape(
    dim: int, shared: int, window: int | None, kind: KvKind, dtype: torch.dtype, softcap: float
) -> None:
    is_within_its_bound(House(2 * shared, 2, dim, window, kind, dtype, softcap))
