"""What is done to every token by itself: adding to the residual stream and normalising it, the gate of an MLP, rounding to
8 bits."""

from __future__ import annotations

import triton.language as tl

from homebox.kernels.triton.launch import kernel
from homebox.kernels.triton.paged import encode_e4m3


@kernel(num_warps=4)
def add_and_norm(
    x,  # [tokens, SIZE]: the residual stream, added to in place
    added,  # [tokens, SIZE], where ADD
    weight,  # [SIZE]
    normed,  # [tokens, SIZE]
    eps,
    SIZE: tl.constexpr,
    PADDED: tl.constexpr,
    ADD: tl.constexpr,
):
    """`x += added`, `normed = x / rms(x) * weight` (RMSNorm: Zhang and Sennrich 2019), sums in fp32."""
    row = tl.program_id(0).to(tl.int64) * SIZE
    i = tl.arange(0, PADDED)
    inside = i < SIZE
    value = tl.load(x + row + i, mask=inside, other=0.0)
    if ADD:
        # Rounded to the stream's type before it is normalised: what comes out is the norm of what is kept.
        both = value.to(tl.float32) + tl.load(added + row + i, mask=inside, other=0.0).to(tl.float32)
        value = both.to(x.dtype.element_ty)
        tl.store(x + row + i, value, mask=inside)
    wide = value.to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(wide * wide, 0) / SIZE + eps)
    out = wide * scale * tl.load(weight + i, mask=inside, other=0.0).to(tl.float32)
    tl.store(normed + row + i, out.to(normed.dtype.element_ty), mask=inside)


@kernel(num_warps=4)
def silu_and_multiply(
    gate_up,  # [tokens, 2 * SIZE]
    out,  # [tokens, SIZE]
    SIZE: tl.constexpr,
    TURN: tl.constexpr,
):
    """`silu(gate) * up`, computed in fp32 and rounded once."""
    row = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * TURN + tl.arange(0, TURN)
    inside = i < SIZE
    gate = tl.load(gate_up + row * 2 * SIZE + i, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * SIZE + SIZE + i, mask=inside, other=0.0).to(tl.float32)
    product = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out + row * SIZE + i, product.to(out.dtype.element_ty), mask=inside)


@kernel(num_warps=8)
def round_to_e4m3(
    x,  # [tokens, SIZE]
    codes,  # [tokens, SIZE] e4m3 as uint8
    scales,  # [tokens] fp32
    SIZE: tl.constexpr,
    PADDED: tl.constexpr,
):
    """Each row with a scale from its extreme, as kernels/fp8.py rounds a weight."""
    token = tl.program_id(0)
    row = token.to(tl.int64) * SIZE
    i = tl.arange(0, PADDED)
    inside = i < SIZE
    value = tl.load(x + row + i, mask=inside, other=0.0).to(tl.float32)
    peak = tl.max(tl.abs(value), 0)
    nothing = tl.sum(value * 0.0, 0)  # or no number, where one is in here: a maximum would pass it over
    value = value * tl.where(peak > 0.0, 448.0 / tl.where(peak > 0.0, peak, 1.0), 0.0)
    tl.store(codes + row + i, encode_e4m3(value), mask=inside)
    tl.store(scales + token, peak / 448.0 + nothing)
