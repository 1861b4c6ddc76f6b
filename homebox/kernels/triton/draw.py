"""Which token comes next, on a GPU: the arithmetic of kernels/sampling.py, to the bit.

A row is cut into blocks of tokens, so that a whole GPU is at it even for one person. First each block says how high it
goes, then what its weights come to; weights are whole numbers, so the sums are the same in any order. Without top-k and
top-p a row's program finds the block where the drawn sum is reached, and the token in it. With them, the tokens near the
highest are gathered and sorted; where these do not reach, which is rare, the border is found by halving over the whole
row, bit by bit of the order of logits.

Each fp64 step rounds once: these kernels are compiled with enable_fp_fusion=False.
"""

from __future__ import annotations

import triton
import triton.language as tl

BITS = tl.constexpr(44)
LEAST = tl.constexpr(-40.0)
LARGEST = tl.constexpr(3.4028234663852886e38)
LOG2E = tl.constexpr(1.4426950408889634)
LN2_HIGH = tl.constexpr(0.6931471803691238)
LN2_LOW = tl.constexpr(1.9082149292705877e-10)
HALF_WAY = tl.constexpr(6755399441055744.0)  # 1.5 * 2^52: added and taken away, it rounds to a whole number
LOWEST_KEY = tl.constexpr(-2147483648)


@triton.jit
def _weights(logits, highest, inverse):
    """As `weights` there: fixed point, int64. `highest` fp32, `inverse` fp64: 1 / temperature, bounded."""
    x = (logits.to(tl.float64) - tl.minimum(highest, LARGEST).to(tl.float64)) * inverse
    x = tl.where(x > LEAST, x, LEAST)
    x = tl.where(x > 0.0, 0.0, x)
    k = (x * LOG2E + HALF_WAY) - HALF_WAY
    r = x - k * LN2_HIGH
    r = r - k * LN2_LOW
    e = r * 0.0 + 2.505210838544172e-08  # 1 / 11!
    e = e * r + 2.755731922398589e-07
    e = e * r + 2.7557319223985893e-06
    e = e * r + 2.48015873015873e-05
    e = e * r + 0.0001984126984126984
    e = e * r + 0.001388888888888889
    e = e * r + 0.008333333333333333
    e = e * r + 0.041666666666666664
    e = e * r + 0.16666666666666666
    e = e * r + 0.5
    e = e * r + 1.0
    e = e * r + 1.0
    power = ((k.to(tl.int64) + (1023 + BITS)) << 52).to(tl.float64, bitcast=True)
    return ((e * power + HALF_WAY) - HALF_WAY).to(tl.int64)


@triton.jit
def _key(logits):
    """int32 in the order of the logits; -0.0 and 0.0 are one."""
    bits = (logits + 0.0).to(tl.int32, bitcast=True)
    return tl.where(bits < 0, LOWEST_KEY - bits, bits)


@triton.jit
def survey(
    logits,  # [rows, vocab] fp32
    peaks,  # [rows, blocks] fp32, NaN where the block holds one
    places,  # [rows, blocks] int32: the first token that has the peak
    vocab,
    TOKENS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    token = block * TOKENS + tl.arange(0, TOKENS)
    x = tl.load(logits + row * vocab + token, mask=token < vocab, other=float("-inf"))
    broken = tl.sum((x != x).to(tl.int32), 0) > 0
    x = tl.where(x != x, float("-inf"), x)
    peak = tl.max(x, 0)
    place = tl.min(tl.where(x == peak, token, 2147483647), 0)
    at = row * tl.num_programs(1) + block
    tl.store(peaks + at, tl.where(broken, float("nan"), peak))
    tl.store(places + at, place)


@triton.jit
def settle(
    peaks,
    places,
    highest,  # [rows] fp32
    tokens,  # [rows] int32: the greedy choice
    blocks,
    BLOCKS: tl.constexpr,
):
    """The highest of a row, NaN where it holds one, and its first token."""
    row = tl.program_id(0).to(tl.int64)
    b = tl.arange(0, BLOCKS)
    x = tl.load(peaks + row * blocks + b, mask=b < blocks, other=float("-inf"))
    place = tl.load(places + row * blocks + b, mask=b < blocks, other=2147483647)
    broken = tl.sum((x != x).to(tl.int32), 0) > 0
    x = tl.where(x != x, float("-inf"), x)
    peak = tl.max(x, 0)
    tl.store(highest + row, tl.where(broken, float("nan"), peak))
    tl.store(tokens + row, tl.min(tl.where(x == peak, place, 2147483647), 0))


@triton.jit
def weigh(
    logits,
    highest,
    inverse,  # [rows] fp64
    least,  # [rows] int64: weights below it are 0 (min-p); 0 without
    sums,  # [rows, blocks] int64
    vocab,
    TOKENS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    token = block * TOKENS + tl.arange(0, TOKENS)
    x = tl.load(logits + row * vocab + token, mask=token < vocab, other=float("-inf"))
    w = _weights(x, tl.load(highest + row), tl.load(inverse + row))
    w = tl.where((w < tl.load(least + row)) | (token >= vocab), 0, w)
    tl.store(sums + row * tl.num_programs(1) + block, tl.sum(w, 0))
