"""Another library computes chunks of prompts, our kernel all else: together they say what the reference says."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from homebox.kernels.attention import BatchShape, KvKind, PagedCache
from homebox.kernels.chunks import segments
from homebox.kernels.flash import FlashAttention
from homebox.kernels.triton.attention import TritonAttention
from tests.engine.conftest import RunningEngine
from tests.kernels.triton.flash_stand_in import HALVES, calls, with_kvcache
from tests.kernels.triton.test_device_decoder import CHUNK, ask, on_triton
from tests.kernels.triton.test_paged import BF16, BLOCK, BOUNDS, FP16, RAGGED, SIZES, House

# Tokens that are cached, tokens that are new: chunks from the start, over a context, of one more than a few; and decoding.
MIXED = [(40, 1), (0, 37), (29, 7), (90, 21), (15, 1), (13, 17)]


def beside(house: House) -> TritonAttention:
    """Our attention, with a library for rows of many queries."""
    library = FlashAttention("a library", with_kvcache())
    return TritonAttention(
        house.cache, (house.window,), house.heads, softcap=house.softcap, sizes=SIZES, chunks=library
    )


@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "window", "dtype", "softcap"),
    [(4, 2, 64, None, BF16, 0.0), (6, 1, 80, 33, FP16, 1.5), (2, 2, 128, 7, BF16, 0.0)],
)
def test_with_a_library_for_chunks_every_row_is_within_the_bound_of_our_own(
    heads: int, kv_heads: int, dim: int, window: int | None, dtype: torch.dtype, softcap: float
) -> None:
    house = House(heads, kv_heads, dim, window, KvKind.AS_IS, dtype, softcap, MIXED)
    house.fill()
    attention = beside(house)
    attention.plan(house.shape(list(range(len(MIXED)))))
    before = calls["done"]
    out = attention.attend(0, torch.cat(house.queries))
    assert calls["done"] == before + 1
    torch.testing.assert_close(out.float(), house.wanted(), rtol=BOUNDS[dtype], atol=BOUNDS[dtype])
    # What is decoded is our kernel's, bit for bit, so it stays the same whoever is beside it.
    alone = house.ours([0, 4])
    assert torch.equal(out[:1], alone[:1]) and torch.equal(out[1 + 37 + 7 + 21 :][:1], alone[1:])


def test_a_step_without_chunks_does_not_reach_the_library() -> None:
    house = House(4, 2, 64, dtype=BF16, rows=[(40, 1), (7, 2)])
    house.fill()
    attention = beside(house)
    attention.plan(house.shape([0, 1]))
    before = calls["done"]
    assert torch.equal(attention.attend(0, torch.cat(house.queries)), house.ours())
    assert calls["done"] == before


def test_rows_and_tokens_that_are_only_padding_change_nothing() -> None:
    house = House(4, 2, 64, dtype=BF16, rows=MIXED)
    house.fill()
    attention = beside(house)
    attention.plan(house.shape(list(range(len(MIXED)))))
    q = torch.cat(house.queries)
    right = attention.attend(0, q)
    placed, many = attention.placed()
    padding = torch.zeros(3, 4, dtype=torch.int32)
    attention.use(placed._replace(rows=torch.cat((placed.rows, padding))), many)
    out = attention.attend(0, torch.cat((q, torch.full_like(q[:5], math.nan))))
    assert torch.equal(out[: len(q)], right)


def test_what_lies_behind_a_window_may_be_nobodys_or_not_a_number() -> None:
    house = House(4, 2, 64, window=19, dtype=BF16, rows=[(100, 30), (57, 24), (60, 1)])
    house.fill()
    wanted = house.wanted()
    nobodys = min({*range(len(house.cache.k[0]) // BLOCK)} - {b for table in house.tables for b in table})
    for x in (house.cache.k[0], house.cache.v[0]):
        x[nobodys * BLOCK : (nobodys + 1) * BLOCK] = math.nan
    for (start, _), table in zip(house.rows, house.tables, strict=True):
        behind = (start + 1 - 19) // BLOCK
        table[:behind] = [-1 if i % 2 else nobodys for i in range(behind)]
    attention = beside(house)
    attention.plan(house.shape([0, 1, 2]))
    out = attention.attend(0, torch.cat(house.queries))
    torch.testing.assert_close(out.float(), wanted, rtol=BOUNDS[BF16], atol=BOUNDS[BF16])


def test_layers_that_see_less_far_have_blocks_of_their_own() -> None:
    cache = PagedCache(
        layer_groups=(0, 1, 0), blocks=(9, 9), block_size=BLOCK, kv_heads=2, head_dim=64, dtype=BF16,
        device=torch.device("cpu"),
    )  # fmt: skip
    generator = torch.Generator().manual_seed(3)
    for x in (*cache.k, *cache.v):
        x.normal_(generator=generator)
    q = torch.randn(31, 4, 64, generator=generator).to(BF16)
    library = FlashAttention("a library", with_kvcache())
    ours, beside = (
        TritonAttention(cache, (None, 12), 4, sizes=SIZES, chunks=chunks) for chunks in (None, library)
    )
    shape = BatchShape.of([20, 3], [30, 1], [[[8, 1, 7, 2, 6, 3, 5], [4]], [[-1, 0, 8, 1, 7, 2, 6], [5]]])
    for attention in (ours, beside):
        attention.plan(shape)
    for layer in range(3):
        right = ours.attend(layer, q).float()
        torch.testing.assert_close(
            beside.attend(layer, q).float(), right, rtol=2 * BOUNDS[BF16], atol=2 * BOUNDS[BF16]
        )


def test_the_stand_in_is_as_picky_as_the_library() -> None:
    house = House(4, 2, 64, rows=RAGGED)  # fp32, which it does not take
    house.fill()
    attention = beside(house)
    attention.plan(house.shape(list(range(len(RAGGED)))))
    with pytest.raises(RuntimeError, match="only supports fp16, bf16"):
        attention.attend(0, torch.cat(house.queries))


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_a_library_finds_the_blocks_of_every_key_and_never_one_of_somebody_else(data: st.DataObject) -> None:
    size, few = data.draw(st.sampled_from([4, 16])), data.draw(st.integers(1, 16))
    window = data.draw(st.none() | st.integers(1, 60))
    rows = data.draw(st.lists(st.tuples(st.integers(0, 90), st.integers(0, 40)), min_size=1, max_size=5))
    width = 130 // size + 1
    table = torch.full((len(rows), width), -1, dtype=torch.int32)
    slots = data.draw(st.permutations(range(len(rows))))
    tokens, numbers = 0, []
    for slot, (start, count) in zip(slots, rows, strict=True):
        first = 0 if window is None else max(start + 1 - window, 0) // size
        last = (start + count - 1) // size
        table[slot, first : last + 1] = 1000 * slot + torch.arange(first, last + 1, dtype=torch.int32)
        numbers.append((slot, start, tokens, count))
        tokens += count
    (made,) = segments(
        torch.tensor(numbers, dtype=torch.int32), (table,), (window,), few=few, block_size=size
    )
    assert made.borders.tolist() == [0, *itertools.accumulate(count for _, count in rows)]
    for slot, (start, count), seen, pages in zip(
        slots, rows, made.seen.tolist(), made.pages.tolist(), strict=True
    ):
        assert seen == (start + count if count > few else 0)
        lowest = 0 if window is None else max(start + 1 - window, 0)
        for position in range(seen):
            assert pages[position // size] == 1000 * slot + max(position, lowest) // size
    assert all(part.dtype == torch.int32 and part.is_contiguous() for part in made)


@pytest.mark.filterwarnings("ignore:overflow")  # what padding holds is anything
def test_captured_steps_with_chunks_by_a_library_make_the_texts_of_the_plain_decoder(
    engine: Callable[..., RunningEngine],
) -> None:
    asked = {"kernels": "reference", "max_chunk_tokens": CHUNK}
    ours, theirs = engine(**asked), engine(**asked)
    # In fp32, which the library does not take, so that the texts are the same to the last token.
    library = FlashAttention("a library", with_kvcache((*HALVES, torch.float32)))
    device = on_triton(ours, depth=2, chunks=library)
    prompts = {"chunked": 2 * CHUNK + 1}
    right = ask(theirs, prompts, 2)
    calls.clear()
    assert ask(ours, prompts, 2) == right
    assert device.replays > 0 and calls["done"] > calls["seen"] > 0, "no chunk was in a captured step"
