"""Few rows times a quantised weight: the weight is read as it is stored, and unpacked in registers.

A weight is groups of 32 inputs (kernels/grouped.py). With 4 bits a group is 16 bytes: inputs 0 to 15 in the low, 16 to 31
in the high halves, so that each half of the codes meets a run of inputs of its own and nothing is shuffled. For many
rows a dense product of the unpacked weight is faster; where that begins is in tuning.py.
"""

from __future__ import annotations

import triton
import triton.language as tl

from homebox.kernels.triton.launch import kernel
from homebox.kernels.triton.paged import dot

GROUP = tl.constexpr(32)


@kernel()
def multiply_int4(
    x,  # [rows, inputs]
    codes,  # [outputs, inputs / 2] uint8
    scales,  # [outputs, inputs / 32], as are the minimums
    minimums,
    bias,  # [outputs], where BIAS
    out,  # [rows, outputs]
    rows,
    inputs,
    outputs,
    BIAS: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    GROUPS: tl.constexpr,  # of a turn
):
    n = tl.program_id(0) * N + tl.arange(0, N)
    m = tl.program_id(1) * M + tl.arange(0, M)
    groups = inputs // GROUP
    HALF: tl.constexpr = GROUP // 2
    byte = tl.arange(0, GROUPS * HALF)
    g = tl.arange(0, GROUPS)
    low_input = byte // HALF * GROUP + byte % HALF
    total = tl.zeros([M, N], tl.float32)
    for turn in range(0, groups, GROUPS):
        # What lies beyond the last input is 0 in x, so what it meets does not matter.
        here = (byte // HALF + turn < groups)[None, :]
        packed = tl.load(
            codes + n.to(tl.int64)[:, None] * (inputs // 2) + turn * HALF + byte[None, :],
            mask=(n < outputs)[:, None] & here,
            other=0,
        )
        at = n.to(tl.int64)[:, None] * groups + turn + g[None, :]
        known = (n < outputs)[:, None] & (turn + g < groups)[None, :]
        d = _spread(tl.load(scales + at, mask=known, other=0.0), N, GROUPS, HALF)
        least = _spread(tl.load(minimums + at, mask=known, other=0.0), N, GROUPS, HALF)
        low = ((packed & 0xF).to(tl.float32) * d + least).to(x.dtype.element_ty)
        high = ((packed >> 4).to(tl.float32) * d + least).to(x.dtype.element_ty)
        from_x = x + m.to(tl.int64)[:, None] * inputs + turn * GROUP + low_input[None, :]
        mask = (m < rows)[:, None] & here
        total += dot(tl.load(from_x, mask=mask, other=0.0), tl.trans(low))
        total += dot(tl.load(from_x + HALF, mask=mask, other=0.0), tl.trans(high))
    _finish(total, bias, out, m, n, rows, outputs, BIAS)


@kernel()
def multiply_int8(
    x,
    codes,  # [outputs, inputs] int8
    scales,
    bias,
    out,
    rows,
    inputs,
    outputs,
    BIAS: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    GROUPS: tl.constexpr,
):
    n = tl.program_id(0) * N + tl.arange(0, N)
    m = tl.program_id(1) * M + tl.arange(0, M)
    groups = inputs // GROUP
    WHOLE: tl.constexpr = GROUP * 1
    k = tl.arange(0, GROUPS * WHOLE)
    g = tl.arange(0, GROUPS)
    total = tl.zeros([M, N], tl.float32)
    for turn in range(0, groups, GROUPS):
        here = (k + turn * GROUP < inputs)[None, :]
        code = tl.load(
            codes + n.to(tl.int64)[:, None] * inputs + turn * GROUP + k[None, :],
            mask=(n < outputs)[:, None] & here,
            other=0,
        )
        at = n.to(tl.int64)[:, None] * groups + turn + g[None, :]
        known = (n < outputs)[:, None] & (turn + g < groups)[None, :]
        d = _spread(tl.load(scales + at, mask=known, other=0.0), N, GROUPS, WHOLE)
        weight = (code.to(tl.float32) * d).to(x.dtype.element_ty)
        from_x = x + m.to(tl.int64)[:, None] * inputs + turn * GROUP + k[None, :]
        rows_of_x = tl.load(from_x, mask=(m < rows)[:, None] & here, other=0.0)
        total += dot(rows_of_x, tl.trans(weight))
    _finish(total, bias, out, m, n, rows, outputs, BIAS)


@triton.jit
def _spread(x, N: tl.constexpr, GROUPS: tl.constexpr, TIMES: tl.constexpr):
    """`[N, GROUPS]` to fp32 `[N, GROUPS * TIMES]`, each value so often."""
    wide = tl.broadcast_to(x.to(tl.float32)[:, :, None], (N, GROUPS, TIMES))
    return tl.reshape(wide, (N, GROUPS * TIMES))


@triton.jit
def _finish(total, bias, out, m, n, rows, outputs, BIAS: tl.constexpr):
    if BIAS:
        total += tl.load(bias + n, mask=n < outputs, other=0.0).to(tl.float32)[None, :]
    tl.store(
        out + m.to(tl.int64)[:, None] * outputs + n[None, :],
        total.to(out.dtype.element_ty),
        mask=(m < rows)[:, None] & (n < outputs)[None, :],
    )
