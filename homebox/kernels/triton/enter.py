"""From the product of q, k and v to what attention reads: one pass a head.

Queries and keys are normalised where the model says so, and rotated; queries go to a tensor of their own, keys and
values straight into their slots, rounded to 8 bits with a scale of their own where the cache is so. (RoPE: Su et al.
2021, halves of a head as the pairs that turn, the layout of Hugging Face checkpoints.)
"""

from __future__ import annotations

import triton
import triton.language as tl

from homebox.kernels.triton.launch import kernel
from homebox.kernels.triton.paged import AS_IS, FP8, INT8, encode_e4m3


@triton.jit
def _round_and_store(x, place, d, inside, codes, scales, DIM: tl.constexpr, KV: tl.constexpr):
    """One head, `[PADDED]` fp32, into slot and head `place`."""
    at = place * DIM + d
    if KV == AS_IS:
        tl.store(codes + at, x.to(codes.dtype.element_ty), mask=inside)
    else:
        peak = tl.max(tl.abs(x), 0)
        most = 127.0 if KV == INT8 else 448.0
        # No number in here: none comes out, so that it is found. A maximum would pass it over.
        scale = peak / most + tl.sum(x * 0.0, 0)
        x = x * tl.where(peak > 0.0, most / tl.where(peak > 0.0, peak, 1.0), 0.0)
        tl.store(scales + place, scale)
        if KV == FP8:
            tl.store(codes + at, encode_e4m3(x), mask=inside)
        else:
            # To nearest, ties to even; whole numbers below 2^22.
            tl.store(codes + at, ((x + 12582912.0) - 12582912.0).to(tl.int8), mask=inside)


@kernel(num_warps=1)
def enter(
    qkv,  # [tokens, (heads + 2 * kv_heads) * DIM]
    cosines,  # [tokens, DIM / 2] fp32
    sines,
    q_weight,  # [DIM], where NORM
    k_weight,
    slots,  # [tokens] int64: where a token's keys and values go; -1: nowhere
    queries,  # [tokens, heads, DIM]
    keys,  # [slots, kv_heads, DIM]
    values,
    key_scales,  # [slots, kv_heads]
    value_scales,
    heads,
    kv_heads,
    eps,
    DIM: tl.constexpr,
    PADDED: tl.constexpr,
    NORM: tl.constexpr,
    KV: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    d = tl.arange(0, PADDED)
    inside = d < DIM
    row = qkv + (token * (heads + 2 * kv_heads) + head) * DIM
    x = tl.load(row + d, mask=inside, other=0.0).to(tl.float32)
    slot = tl.load(slots + token)
    if head >= heads + kv_heads:
        if slot >= 0:
            _round_and_store(
                x, slot * kv_heads + head - heads - kv_heads, d, inside, values, value_scales, DIM, KV
            )
        return
    # The other half of a pair is loaded once more: it is in the cache.
    HALF: tl.constexpr = DIM // 2
    first = d < HALF
    other = tl.load(row + tl.where(first, d + HALF, d - HALF), mask=inside, other=0.0).to(tl.float32)
    if NORM:
        weight = q_weight if head < heads else k_weight
        norm = 1.0 / tl.sqrt(tl.sum(x * x, 0) / DIM + eps)
        x = x * norm * tl.load(weight + d, mask=inside, other=0.0).to(tl.float32)
        other_weight = tl.load(weight + tl.where(first, d + HALF, d - HALF), mask=inside, other=0.0)
        other = other * norm * other_weight.to(tl.float32)
    pair = token * HALF + tl.where(first, d, d - HALF)
    c = tl.load(cosines + pair, mask=inside, other=0.0)
    s = tl.load(sines + pair, mask=inside, other=0.0)
    x = x * c + tl.where(first, -other, other) * s
    if head < heads:
        at = (token * heads + head) * DIM + d
        tl.store(queries + at, x.to(queries.dtype.element_ty), mask=inside)
    elif slot >= 0:
        _round_and_store(x, slot * kv_heads + head - heads, d, inside, keys, key_scales, DIM, KV)
