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
def _logit(key):
    """The logit that has this key."""
    return tl.where(key < 0, LOWEST_KEY - key, key).to(tl.float32, bitcast=True)


@triton.jit
def _place(u, weights, total):
    """Where the drawn sum is reached: how many of the weights, in their order, come before."""
    target = tl.minimum((u * total.to(tl.float64)).to(tl.int64), total - 1)
    return tl.sum((tl.cumsum(weights, 0) <= target).to(tl.int32), 0)


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
    at = row * tl.num_programs(1) + block
    tl.store(peaks + at, tl.where(broken, float("nan"), peak))
    tl.store(places + at, tl.min(tl.where(x == peak, token, 2147483647), 0))


@triton.jit
def settle(
    peaks,
    places,
    top_k,  # [rows] int32
    temperature,  # [rows] fp32
    highest,  # [rows] fp32: NaN where the row holds one
    tokens,  # [rows] int32: the first token that has it
    floors,  # [rows] fp32: what is gathered for top-k and top-p
    blocks,
    vocab,
    BLOCKS: tl.constexpr,
    LOOK: tl.constexpr,  # temperatures below the highest
):
    """The highest of a row, and how far down to look first: so many blocks reach so high that top-k is among them."""
    row = tl.program_id(0).to(tl.int64)
    b = tl.arange(0, BLOCKS)
    x = tl.load(peaks + row * blocks + b, mask=b < blocks, other=float("-inf"))
    place = tl.load(places + row * blocks + b, mask=b < blocks, other=2147483647)
    broken = tl.sum((x != x).to(tl.int32), 0) > 0
    x = tl.where(x != x, float("-inf"), x)
    peak = tl.max(x, 0)
    tl.store(highest + row, tl.where(broken, float("nan"), peak))
    tl.store(tokens + row, tl.minimum(tl.min(tl.where(x == peak, place, 2147483647), 0), vocab - 1))
    k = tl.load(top_k + row)
    ranked = tl.sort(x, descending=True)
    of_k = tl.max(tl.where(b == k - 1, ranked, float("-inf")), 0)
    of_p = peak - LOOK * tl.load(temperature + row)
    tl.store(floors + row, tl.where(k > 0, of_k, of_p))


@triton.jit
def weigh(
    logits,
    highest,
    inverse,  # [rows] fp64
    least,  # [rows] int64: weights below it are 0 (min-p); 0 without
    ranked,  # [rows] int32: whether top-k or top-p choose first, and min-p among what they leave
    sums,  # [rows, blocks] int64
    vocab,
    TOKENS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    token = block * TOKENS + tl.arange(0, TOKENS)
    x = tl.load(logits + row * vocab + token, mask=token < vocab, other=float("-inf"))
    w = _weights(x, tl.load(highest + row), tl.load(inverse + row))
    low = (w < tl.load(least + row)) & (tl.load(ranked + row) == 0)
    tl.store(sums + row * tl.num_programs(1) + block, tl.sum(tl.where(low | (token >= vocab), 0, w), 0))


@triton.jit
def pick(
    logits,
    highest,
    inverse,
    least,
    ranked,
    numbers,  # [rows] fp64: the uniform number of the draw
    sums,
    tokens,
    blocks,
    vocab,
    TOKENS: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    """The token of a row without top-k and top-p. `inverse` is 0 in a greedy row, which stays as it is."""
    row = tl.program_id(0).to(tl.int64)
    scale = tl.load(inverse + row)
    if (tl.load(ranked + row) != 0) | (scale == 0.0):
        return
    u = tl.load(numbers + row)
    b = tl.arange(0, BLOCKS)
    of_block = tl.load(sums + row * blocks + b, mask=b < blocks, other=0)
    total = tl.sum(of_block, 0)
    if total <= 0:  # a NaN: the row is an error of its own
        return
    block = _place(u, of_block, total)
    before = tl.sum(tl.where(b < block, of_block, 0), 0)
    token = block * TOKENS + tl.arange(0, TOKENS)
    x = tl.load(logits + row * vocab + token, mask=token < vocab, other=float("-inf"))
    w = _weights(x, tl.load(highest + row), scale)
    w = tl.where((w < tl.load(least + row)) | (token >= vocab), 0, w)
    target = tl.minimum((u * total.to(tl.float64)).to(tl.int64), total - 1)
    reached = tl.sum((before + tl.cumsum(w, 0) <= target).to(tl.int32), 0)
    tl.store(tokens + row, block * TOKENS + reached)


@triton.jit
def gather(
    logits,
    floors,
    ranked,
    counts,  # [rows] int32, 0 before
    items,  # [rows, MOST] int64: key above, the token's complement below, in no order
    vocab,
    TOKENS: tl.constexpr,
    MOST: tl.constexpr,
):
    """The tokens of a row from its floor on. More than MOST are counted and not kept."""
    row = tl.program_id(0).to(tl.int64)
    if tl.load(ranked + row) == 0:
        return
    token = tl.program_id(1) * TOKENS + tl.arange(0, TOKENS)
    x = tl.load(logits + row * vocab + token, mask=token < vocab, other=float("-inf"))
    wanted = (x >= tl.load(floors + row)) & (token < vocab)
    count = tl.sum(wanted.to(tl.int32), 0)
    if count == 0:
        return
    first = tl.atomic_add(counts + row, count)
    place = first + tl.cumsum(wanted.to(tl.int32), 0) - 1
    item = (_key(x).to(tl.int64) << 32) | (4294967295 - token.to(tl.int64))
    tl.store(items + row * MOST + place, item, mask=wanted & (place < MOST))


@triton.jit
def choose(
    counts,
    items,
    highest,
    inverse,
    least,
    top_k,
    top_p,  # [rows] fp64
    ranked,
    numbers,
    sums,
    tokens,
    missed,  # [rows] int32: 1 where the gathered tokens do not reach
    blocks,
    vocab,
    BLOCKS: tl.constexpr,
    MOST: tl.constexpr,
):
    """The token of a row with top-k or top-p, out of what was gathered."""
    row = tl.program_id(0).to(tl.int64)
    if tl.load(ranked + row) == 0:
        return
    count = tl.load(counts + row)
    k = tl.load(top_k + row)
    p = tl.load(top_p + row)
    i = tl.arange(0, MOST)
    item = tl.load(items + row * MOST + i, mask=i < count, other=-9223372036854775808)
    item = tl.sort(item, descending=True)
    inside = i < tl.minimum(count, MOST)
    if k > 0:
        inside = inside & (i < k)
    w = _weights(_logit((item >> 32).to(tl.int32)), tl.load(highest + row), tl.load(inverse + row))
    w = tl.where(inside, w, 0)
    sum_of_w = tl.cumsum(w, 0)
    here = tl.sum(w, 0)
    total = here
    if k == 0:
        b = tl.arange(0, BLOCKS)
        total = tl.sum(tl.load(sums + row * blocks + b, mask=b < blocks, other=0), 0)
    # The smallest set whose weight reaches top-p: a token stays while those before it do not.
    enough = tl.maximum(tl.ceil(p * total.to(tl.float64)).to(tl.int64), 1)
    short = count > MOST
    if k > 0:
        short = short | (count < tl.minimum(k, vocab))
    else:
        short = short | (here < tl.minimum(enough, total))
    if short:
        tl.store(missed + row, 1)
        return
    if p < 1.0:
        w = tl.where(sum_of_w - w >= enough, 0, w)
    w = tl.where(w < tl.load(least + row), 0, w)
    place = _place(tl.load(numbers + row), w, tl.sum(w, 0))
    item = tl.sum(tl.where(i == place, item, 0), 0)
    tl.store(tokens + row, (4294967295 - (item & 4294967295)).to(tl.int32))
