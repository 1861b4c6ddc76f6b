"""Attention over blocks in place, on a GPU: one kernel for decoding, for chunks of prompts and for drafts.

The work of a step is a list of items, made on the CPU (work.py): some queries of a row, and the split of its context
that they meet, or all of it. A program takes items one after the other, of one key head: how many programs there are does not
depend on how much there is to do, so that a captured launch serves every step, and what is computed for an item does not
depend on what else is in the batch. Query heads that share a key head lie side
by side as if they were more queries, so keys and values are read once for all of them.

Online softmax: Milakov and Gimelshein 2018. Splits of a context, joined in order: Dao et al., FlashDecoding, 2023.
"""

from __future__ import annotations

import triton
import triton.language as tl

from homebox.kernels.triton.launch import kernel

LOG2_E = tl.constexpr(1.4426950408889634)
# How keys and values are stored.
AS_IS = tl.constexpr(0)
INT8 = tl.constexpr(1)  # a scale for each token and head
FP8 = tl.constexpr(2)  # e4m3 as bits, likewise: not every GPU has the type

INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)

ITEM = tl.constexpr(5)  # numbers of an item: row, first query, queries, split (-1: all), part (-1: none)


@triton.jit
def decode_e4m3(bits):
    """fp32 of e4m3 bits, exact. There are no NaNs in a cache."""
    return tiny_e4m3(bits).to(tl.float32) * 256.0


@triton.jit
def tiny_e4m3(bits):
    """fp16 of e4m3 bits, 2^8 times too small, which is exact: the same bits, a little further up. Shifts and a
    conversion from fp16, which every GPU that we compile for has, so there is no list of those that can (compile.py has it on each)."""
    wide = bits.to(tl.uint16)
    half = ((wide & 0x80) << 8) | ((wide & 0x7F) << 7)
    return half.to(tl.float16, bitcast=True)


@triton.jit
def encode_e4m3(x):
    """e4m3 bits of fp32 within 448, to nearest, ties to even."""
    sign = tl.where(x < 0, 0x80, 0)
    size = tl.minimum(tl.abs(x), 448.0)
    bits = size.to(tl.int32, bitcast=True)
    # Normal: three bits of the fraction stay, and the exponent's bias falls from 127 to 7.
    normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) - ((127 - 7) << 3)
    # Below 2^-6 the steps are 2^-9: adding 1.5 * 2^23 rounds to whole ones.
    small = (size * 512.0 + 12582912.0) - 12582912.0
    return (tl.where(size < 0.015625, small.to(tl.int32), normal) | sign).to(tl.uint8)


@triton.jit
def dot(a, b):
    """`a` times `b` in fp32, `[M, K]` and `[K, N]` of one type. The interpreter multiplies the bits of bf16."""
    if INTERPRETED:
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, input_precision="ieee")


@kernel()
def attend(
    queries,  # [tokens, heads, DIM]
    keys,  # [slots, kv_heads, DIM], as are the values
    values,
    key_scales,  # [slots, kv_heads], where KV is not AS_IS
    value_scales,
    items,  # [.., ITEM]
    span,  # [2]: which of the items are ours: the first, how many
    rows,  # [rows, 4]: slot of the block table, first position, first token in the batch, tokens
    tables,  # [slots, width]
    output,  # [tokens, heads, DIM]
    parts,  # [parts, kv_heads, M, DIM] fp32
    part_sums,  # [parts, kv_heads, M, 2] fp32: peak, sum
    kv_heads,
    width,
    scale,  # of scores
    DIM: tl.constexpr,
    PADDED: tl.constexpr,  # the power of two that DIM is padded to
    SHARED: tl.constexpr,  # query heads a key head
    M: tl.constexpr,  # queries times heads of an item
    N: tl.constexpr,  # keys of a turn
    BLOCK: tl.constexpr,
    SPLIT: tl.constexpr,  # keys of a split, a multiple of N
    WINDOW: tl.constexpr,  # 0: none
    SOFTCAP: tl.constexpr,  # 0: none
    KV: tl.constexpr,
):
    head = tl.program_id(1)
    begin_item = tl.load(span)
    end_item = begin_item + tl.load(span + 1)
    for item in range(begin_item + tl.program_id(0), end_item, tl.num_programs(0)):
        row = tl.load(items + item * ITEM)
        first = tl.load(items + item * ITEM + 1)
        count = tl.load(items + item * ITEM + 2)
        split = tl.load(items + item * ITEM + 3)
        part = tl.load(items + item * ITEM + 4)
        slot = tl.load(rows + row * 4)
        start = tl.load(rows + row * 4 + 1) + first
        token = tl.load(rows + row * 4 + 2) + first

        m = tl.arange(0, M)
        query = m // SHARED
        valid = query < count
        position = start + query
        d = tl.arange(0, PADDED)
        inside = d < DIM
        heads = kv_heads * SHARED
        at = ((token + query).to(tl.int64) * heads + head * SHARED + m % SHARED)[:, None] * DIM + d[None, :]
        q = tl.load(queries + at, mask=valid[:, None] & inside[None, :], other=0.0)

        begin = 0
        end = start + count
        if WINDOW > 0:
            begin = tl.maximum(start + 1 - WINDOW, 0)
        if split >= 0:
            begin = tl.maximum(begin, split * SPLIT)
            end = tl.minimum(end, (split + 1) * SPLIT)

        peak = tl.full([M], float("-inf"), tl.float32)
        total = tl.zeros([M], tl.float32)
        mixed = tl.zeros([M, PADDED], tl.float32)
        # Turns are counted from position 0, so that a query's turns are the same in any chunk.
        for turn in range(begin // N, tl.cdiv(end, N)):
            key = turn * N + tl.arange(0, N)
            seen = (key >= begin) & (key < end)
            block = tl.load(tables + slot.to(tl.int64) * width + key // BLOCK, mask=seen, other=0)
            place = (block.to(tl.int64) * BLOCK + key % BLOCK) * kv_heads + head
            here = seen[:, None] & inside[None, :]
            k = tl.load(keys + place[:, None] * DIM + d[None, :], mask=here, other=0.0)
            if KV == FP8:
                k = decode_e4m3(k)
            if KV == INT8:
                k = k.to(tl.float32)
            scores = dot(q, tl.trans(k.to(q.dtype)))
            if KV != AS_IS:
                scores *= tl.load(key_scales + place, mask=seen, other=0.0)[None, :]
            scores *= scale
            if SOFTCAP > 0.0:
                # tanh, by what every GPU has
                scores = SOFTCAP * (1.0 - 2.0 / (tl.exp2(scores * (2.0 * LOG2_E / SOFTCAP)) + 1.0))
            visible = seen[None, :] & (key[None, :] <= position[:, None])
            if WINDOW > 0:
                visible &= key[None, :] > position[:, None] - WINDOW
            scores = tl.where(visible, scores * LOG2_E, float("-inf"))

            higher = tl.maximum(peak, tl.max(scores, 1))
            base = tl.where(higher == float("-inf"), 0.0, higher)  # nothing seen yet: 2^(-inf - 0) is 0
            weights = tl.exp2(scores - base[:, None])
            fade = tl.exp2(peak - base)
            total = total * fade + tl.sum(weights, 1)
            v = tl.load(values + place[:, None] * DIM + d[None, :], mask=here, other=0.0)
            if KV == FP8:
                v = decode_e4m3(v)
            if KV == INT8:
                v = v.to(tl.float32)
            if KV != AS_IS:
                weights *= tl.load(value_scales + place, mask=seen, other=0.0)[None, :]
            mixed = mixed * fade[:, None] + dot(weights.to(q.dtype), v.to(q.dtype))
            peak = higher

        if part < 0:
            out = mixed / tl.where(total == 0.0, 1.0, total)[:, None]
            tl.store(output + at, out.to(output.dtype.element_ty), mask=valid[:, None] & inside[None, :])
        else:
            lane = (part.to(tl.int64) * kv_heads + head) * M + m
            tl.store(parts + lane[:, None] * DIM + d[None, :], mixed, mask=inside[None, :])
            tl.store(part_sums + lane * 2, peak)
            tl.store(part_sums + lane * 2 + 1, total)


@kernel(num_warps=4)
def join(
    items,  # [.., ITEM]; here an item is: row, first query, queries, first part, parts
    span,  # [2]
    rows,
    output,
    parts,
    part_sums,
    kv_heads,
    DIM: tl.constexpr,
    PADDED: tl.constexpr,
    SHARED: tl.constexpr,
    M: tl.constexpr,
):
    """The splits of an item, joined in order."""
    head = tl.program_id(1)
    begin_item = tl.load(span)
    end_item = begin_item + tl.load(span + 1)
    for item in range(begin_item + tl.program_id(0), end_item, tl.num_programs(0)):
        row = tl.load(items + item * ITEM)
        first = tl.load(items + item * ITEM + 1)
        count = tl.load(items + item * ITEM + 2)
        part = tl.load(items + item * ITEM + 3)
        splits = tl.load(items + item * ITEM + 4)
        token = tl.load(rows + row * 4 + 2) + first

        m = tl.arange(0, M)
        d = tl.arange(0, PADDED)
        inside = d < DIM
        peak = tl.full([M], float("-inf"), tl.float32)
        total = tl.zeros([M], tl.float32)
        mixed = tl.zeros([M, PADDED], tl.float32)
        for split in range(splits):
            lane = ((part + split).to(tl.int64) * kv_heads + head) * M + m
            its_peak = tl.load(part_sums + lane * 2)
            its_total = tl.load(part_sums + lane * 2 + 1)
            its_mixed = tl.load(parts + lane[:, None] * DIM + d[None, :], mask=inside[None, :], other=0.0)
            higher = tl.maximum(peak, its_peak)
            base = tl.where(higher == float("-inf"), 0.0, higher)
            fade = tl.exp2(peak - base)
            its_fade = tl.exp2(its_peak - base)
            total = total * fade + its_total * its_fade
            mixed = mixed * fade[:, None] + its_mixed * its_fade[:, None]
            peak = higher
        query = m // SHARED
        heads = kv_heads * SHARED
        at = ((token + query).to(tl.int64) * heads + head * SHARED + m % SHARED)[:, None] * DIM + d[None, :]
        out = mixed / tl.where(total == 0.0, 1.0, total)[:, None]
        tl.store(
            output + at, out.to(output.dtype.element_ty), mask=(query < count)[:, None] & inside[None, :]
        )
