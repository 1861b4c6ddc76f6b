"""Which token comes next, on a GPU: the arithmetic of kernels/sampling.py, to the bit.

Four launches for a batch of all kinds of wishes, and nothing that the CPU must look at in between:

  survey  each block of a row says how high it goes, so that a whole GPU is at it even for one person
  settle  what follows of a row: its likeliest token, whether it is broken, and how far down to look
  weigh   each block of a row says what its weights come to, and hands in the tokens above the floor
  choose  the token of a row

Weights are whole numbers, so their sums are the same in any order, and a border (of top-k, of top-p, of the draw itself)
is found by halving the range in which it lies: nothing is sorted. What a row hands in reaches for what people ask; where
it does not (a nearly flat row, a top-k of thousands), the same halving goes over the whole row: slower, and as exact.

Each fp64 step rounds once: no multiply is fused with an add.
"""

from __future__ import annotations

import triton
import triton.language as tl

from homebox.kernels.triton.launch import kernel

# What a row is asked for, fp64: all whole numbers among them are below 2^53.
WISH = tl.constexpr(6)
TEMPERATURE = tl.constexpr(0)  # 0: the likeliest
INVERSE = tl.constexpr(1)  # 1 / temperature, bounded
NUMBER = tl.constexpr(2)  # in [0, 1): where to draw
TOP_K = tl.constexpr(3)  # at most the vocabulary; 0: off
TOP_P = tl.constexpr(4)
LEAST = tl.constexpr(5)  # weights below it are 0: min-p

# What kind of row it is.
SETTLED = tl.constexpr(0)  # the likeliest was asked for, or the row is broken
PLAIN = tl.constexpr(1)
RANKED = tl.constexpr(2)  # top-k or top-p choose first, and min-p among what they leave

# What is wrong with a row.
BROKEN = tl.constexpr(1)  # it holds a NaN
EMPTY = tl.constexpr(2)  # it holds nothing above -inf

BITS = tl.constexpr(44)
NOTHING = tl.constexpr(-40.0)  # e^NOTHING in fixed point rounds to 0
LARGEST = tl.constexpr(3.4028234663852886e38)
LOG2E = tl.constexpr(1.4426950408889634)
LN2_HIGH = tl.constexpr(0.6931471803691238)
LN2_LOW = tl.constexpr(1.9082149292705877e-10)
HALF_WAY = tl.constexpr(6755399441055744.0)  # 1.5 * 2^52: added and taken away, it rounds to a whole number
LOWEST_KEY = tl.constexpr(-2147483648)
NO_TOKEN = tl.constexpr(2147483647)


@triton.jit
def _weights(logits, highest, inverse):
    """As `weights` there: fixed point, int64. `highest` fp32, `inverse` fp64."""
    x = (logits.to(tl.float64) - tl.minimum(highest, LARGEST).to(tl.float64)) * inverse
    x = tl.where(x > NOTHING, x, NOTHING)
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
    """int64 in the order of the logits; -0.0 and 0.0 are one."""
    bits = (logits + 0.0).to(tl.int32, bitcast=True)
    return tl.where(bits < 0, LOWEST_KEY - bits, bits).to(tl.int64)


@triton.jit
def _logit(key):
    """The logit that has this key."""
    key = key.to(tl.int32)
    return tl.where(key < 0, LOWEST_KEY - key, key).to(tl.float32, bitcast=True)


@triton.jit
def _item(logits, tokens, SHIFT: tl.constexpr):
    """int64, no two alike: a higher logit is more, and of equal ones the first token is."""
    return (_key(logits) << SHIFT) | ((1 << SHIFT) - 1 - tokens.to(tl.int64))


@triton.jit
def _below(highest, temperature, TIMES: tl.constexpr):
    """The logit that lies so many temperatures below the highest. What is below NOTHING of them weighs nothing."""
    return (tl.minimum(highest, LARGEST).to(tl.float64) + TIMES * temperature).to(tl.float32)


@triton.jit
def _border(items, weights, enough, low, high):
    """The least number from `low` to `high` with less than `enough` above it: what stands there or higher is what
    is needed to have `enough`."""
    while low < high:
        middle = low + ((high - low) >> 1)
        fits = tl.sum(tl.where(items > middle, weights, 0), 0) < enough
        high = tl.where(fits, middle, high)
        low = tl.where(fits, low, middle + 1)
    return low


@triton.jit
def _target(number, total):
    """The draw, as how much of `total` comes before it."""
    return tl.minimum((number * total.to(tl.float64)).to(tl.int64), total - 1)


@triton.jit
def _enough(top_p, total):
    return tl.maximum(tl.ceil(top_p * total.to(tl.float64)).to(tl.int64), 1)


@kernel(exact=True, num_warps=4)
def survey(
    logits,  # [rows, vocab] fp32
    peaks,  # [rows, blocks] fp32, NaN where the block holds one
    places,  # [rows, blocks] int32: the first token that has the peak
    vocab,
    TOKENS: tl.constexpr,  # of a block
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
    tl.store(places + at, tl.min(tl.where(x == peak, token, NO_TOKEN), 0))


@kernel(exact=True, num_warps=4)
def settle(
    peaks,
    places,
    wishes,  # [rows, WISH] fp64
    highest,  # [rows] fp32: NaN where the row holds one
    floors,  # [rows] fp32: from where on tokens are handed in
    kinds,  # [rows] int32
    counts,  # [rows] int32: of what is handed in
    tokens,  # [rows]: the first token that has the highest logit; of a broken row some token
    flags,  # [rows] int32: 0, or BROKEN, or EMPTY
    blocks,
    BLOCKS: tl.constexpr,  # the power of two that holds `blocks`
    LOOK: tl.constexpr,  # temperatures below the highest
):
    """How far down to look: without top-k some temperatures, with it to where so many blocks reach that top-k tokens
    are among them, and never to what weighs nothing."""
    row = tl.program_id(0).to(tl.int64)
    b = tl.arange(0, BLOCKS)
    x = tl.load(peaks + row * blocks + b, mask=b < blocks, other=float("-inf"))
    place = tl.load(places + row * blocks + b, mask=b < blocks, other=NO_TOKEN)
    broken = tl.sum((x != x).to(tl.int32), 0) > 0
    x = tl.where(x != x, float("-inf"), x)
    peak = tl.max(x, 0)
    flag = tl.where(broken, BROKEN, tl.where(peak == float("-inf"), EMPTY, 0))
    temperature = tl.load(wishes + row * WISH + TEMPERATURE)
    top_k = tl.load(wishes + row * WISH + TOP_K).to(tl.int32)
    ranked = (top_k > 0) | (tl.load(wishes + row * WISH + TOP_P) < 1.0)
    kind = tl.where(ranked, RANKED, PLAIN)
    kind = tl.where((flag != 0) | (temperature == 0.0), SETTLED, kind)
    tl.store(highest + row, tl.where(broken, float("nan"), peak))
    tl.store(tokens + row, tl.min(tl.where(x == peak, place, NO_TOKEN), 0))
    tl.store(flags + row, flag)
    tl.store(kinds + row, kind)
    tl.store(counts + row, 0)
    if kind == RANKED:
        floor = _below(peak, temperature, -LOOK)
        if (top_k > 0) & (top_k <= blocks):
            keys = _key(x)
            floor = _logit(_border(keys, (b >= 0).to(tl.int32), top_k, tl.min(keys, 0), tl.max(keys, 0)))
        tl.store(floors + row, tl.maximum(floor, _below(peak, temperature, NOTHING)))


@kernel(exact=True, num_warps=4)
def weigh(
    logits,
    wishes,
    peaks,
    highest,
    floors,
    kinds,
    sums,  # [rows, blocks] int64
    counts,
    items,  # [rows, MOST] int64, in no order; more than MOST are counted and not kept
    vocab,
    TOKENS: tl.constexpr,
    MOST: tl.constexpr,
    SHIFT: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    kind = tl.load(kinds + row)
    if kind == SETTLED:
        return
    peak = tl.load(highest + row)
    at = row * tl.num_programs(1) + block
    if tl.load(peaks + at) < _below(peak, tl.load(wishes + row * WISH + TEMPERATURE), NOTHING):
        tl.store(sums + at, 0)
        return
    token = block * TOKENS + tl.arange(0, TOKENS)
    x = tl.load(logits + row * vocab + token, mask=token < vocab, other=float("-inf"))
    if (kind == PLAIN) | (tl.load(wishes + row * WISH + TOP_K) == 0.0):
        w = _weights(x, peak, tl.load(wishes + row * WISH + INVERSE))
        least = tl.where(kind == PLAIN, tl.load(wishes + row * WISH + LEAST), 0.0).to(tl.int64)
        tl.store(sums + at, tl.sum(tl.where(w < least, 0, w), 0))
    if kind == RANKED:
        handed = (x >= tl.load(floors + row)) & (token < vocab)
        count = tl.sum(handed.to(tl.int32), 0)
        if count > 0:
            place = tl.atomic_add(counts + row, count) + tl.cumsum(handed.to(tl.int32), 0) - 1
            tl.store(items + row * MOST + place, _item(x, token, SHIFT), mask=handed & (place < MOST))


@kernel(exact=True, num_warps=8)
def choose(
    logits,
    wishes,
    highest,
    floors,
    kinds,
    sums,
    counts,
    items,
    tokens,
    blocks,
    vocab,
    TOKENS: tl.constexpr,
    BLOCKS: tl.constexpr,
    MOST: tl.constexpr,
    SHIFT: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    kind = tl.load(kinds + row)
    if kind == SETTLED:
        return
    logits += row * vocab
    wishes += row * WISH
    peak = tl.load(highest + row)
    b = tl.arange(0, BLOCKS)
    if kind == PLAIN:
        of_block = tl.load(sums + row * blocks + b, mask=b < blocks, other=0)
        tl.store(tokens + row, _of_all(logits, wishes, peak, of_block, vocab, TOKENS))
    else:
        count = tl.load(counts + row)
        top_k = tl.load(wishes + TOP_K).to(tl.int32)
        inverse = tl.load(wishes + INVERSE)
        i = tl.arange(0, MOST)
        kept = i < tl.minimum(count, MOST)
        item = tl.load(items + row * MOST + i, mask=kept, other=0)
        low = tl.min(tl.where(kept, item, 9223372036854775807), 0)
        high = tl.max(tl.where(kept, item, -9223372036854775807), 0)
        if (top_k > 0) & (count > top_k):
            low = _border(item, kept.to(tl.int32), top_k, low, high)
        kept = kept & (item >= low)
        w = tl.where(kept, _weights(_logit(item >> SHIFT), peak, inverse), 0)
        here = tl.sum(w, 0)
        total = here
        if top_k == 0:
            total = tl.sum(tl.load(sums + row * blocks + b, mask=b < blocks, other=0), 0)
        top_p = tl.load(wishes + TOP_P)
        enough = _enough(top_p, total)
        short = here < tl.minimum(enough, total)
        if top_k > 0:  # what weighs nothing is nobody's rank
            bottom = _below(peak, tl.load(wishes + TEMPERATURE), NOTHING)
            short = (count < top_k) & (tl.load(floors + row) > bottom)
        if short | (count > MOST):
            found = _of_row(logits, wishes, peak, total, vocab, MOST, SHIFT)
        else:
            if top_p < 1.0:
                low = _border(item, w, enough, low, high)
            w = tl.where((item < low) | (w < tl.load(wishes + LEAST).to(tl.int64)), 0, w)
            before = _target(tl.load(wishes + NUMBER), tl.sum(w, 0))
            found = _border(item, w, before + 1, low, high)
        tl.store(tokens + row, (1 << SHIFT) - 1 - (found & ((1 << SHIFT) - 1)))


@triton.jit
def _of_all(logits, wishes, peak, of_block, vocab, TOKENS: tl.constexpr):
    """The token of a plain row: first the block where the draw is reached, then the token in it."""
    total = tl.sum(of_block, 0)
    target = _target(tl.load(wishes + NUMBER), total)
    passed = tl.cumsum(of_block, 0) <= target
    block = tl.sum(passed.to(tl.int32), 0)
    before = tl.sum(tl.where(passed, of_block, 0), 0)
    token = block * TOKENS + tl.arange(0, TOKENS)
    x = tl.load(logits + token, mask=token < vocab, other=float("-inf"))
    w = _weights(x, peak, tl.load(wishes + INVERSE))
    w = tl.where(w < tl.load(wishes + LEAST).to(tl.int64), 0, w)
    return block * TOKENS + tl.sum((before + tl.cumsum(w, 0) <= target).to(tl.int32), 0)


@triton.jit
def _of_row(logits, wishes, peak, total, vocab, WIDE: tl.constexpr, SHIFT: tl.constexpr):
    """The item that is drawn with top-k or top-p out of a whole row. `total`: where there is no top-k."""
    inverse = tl.load(wishes + INVERSE)
    least = tl.load(wishes + LEAST).to(tl.int64)
    top_k = tl.load(wishes + TOP_K).to(tl.int64)
    top_p = tl.load(wishes + TOP_P)
    low = _key(_below(peak, tl.load(wishes + TEMPERATURE), NOTHING)) << SHIFT
    high = (_key(peak) << SHIFT) | ((1 << SHIFT) - 1)
    if top_k > 0:
        low = _border_of_row(logits, peak, inverse, 0, top_k, low, high, vocab, True, WIDE, SHIFT)
        total = _above(logits, peak, inverse, 0, low - 1, vocab, False, WIDE, SHIFT)
    if top_p < 1.0:
        enough = _enough(top_p, total)
        low = _border_of_row(logits, peak, inverse, 0, enough, low, high, vocab, False, WIDE, SHIFT)
    left = _above(logits, peak, inverse, least, low - 1, vocab, False, WIDE, SHIFT)
    before = _target(tl.load(wishes + NUMBER), left)
    return _border_of_row(logits, peak, inverse, least, before + 1, low, high, vocab, False, WIDE, SHIFT)


@triton.jit
def _border_of_row(
    logits, peak, inverse, least, enough, low, high, vocab, COUNT: tl.constexpr, WIDE: tl.constexpr, SHIFT: tl.constexpr
):  # fmt: skip
    """`_border` over a whole row."""
    while low < high:
        middle = low + ((high - low) >> 1)
        fits = _above(logits, peak, inverse, least, middle, vocab, COUNT, WIDE, SHIFT) < enough
        high = tl.where(fits, middle, high)
        low = tl.where(fits, low, middle + 1)
    return low


@triton.jit
def _above(
    logits, peak, inverse, least, border, vocab, COUNT: tl.constexpr, WIDE: tl.constexpr, SHIFT: tl.constexpr
):  # fmt: skip
    """How many tokens of a row are above an item, or their weights, less those below `least`."""
    total = tl.zeros([WIDE], tl.int64)
    for first in range(0, vocab, WIDE):
        token = first + tl.arange(0, WIDE)
        x = tl.load(logits + token, mask=token < vocab, other=float("-inf"))
        counted = (_item(x, token, SHIFT) > border) & (token < vocab)
        if COUNT:
            total += counted.to(tl.int64)
        else:
            w = _weights(x, peak, inverse)
            total += tl.where(counted & (w >= least), w, 0)
    return tl.sum(total, 0)
