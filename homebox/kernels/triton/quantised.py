"""Few rows times a quantised weight: the weight is read once, as it is stored, and unpacked in registers.

A weight is groups of 32 inputs (kernels/grouped.py), or codes of e4m3 with a scale for each output (kernels/fp8.py). With 4
bits a group is 16 bytes: inputs 0 to 15 in the low, 16 to 31 in the high halves, so that one load of a thread is one
group, and each half of it meets a run of inputs of its own.

`meet_*` is for one row, a person alone: codes are multiplied with the inputs as they are, in fp32, and a group's scale meets the
sum of its 32, so a weight costs three instructions and never passes through shared memory. `multiply_*` is for more rows: the weight is
made for tensor cores, which costs the same for 16 rows as for one. Beyond, a dense product of the unpacked weight
is faster. Where each begins is in tuning.py.

Where the outputs are too few to fill a GPU, the inputs are cut into `splits`, as many whatever the rows are, and a second pass
(`add_up`) adds these in order: the sums are the same each time.
"""

from __future__ import annotations

import triton
import triton.language as tl

from homebox.kernels.triton.launch import kernel
from homebox.kernels.triton.paged import dot, tiny_e4m3

GROUP = tl.constexpr(32)
HALF = tl.constexpr(16)
TINY = tl.constexpr(256.0)  # so many times too small is what `tiny_e4m3` makes


@kernel()
def meet_int4(
    x,  # [1, inputs]
    codes,  # [outputs, inputs / 2] uint8
    scales,  # [outputs, inputs / 32], as are the minimums
    minimums,
    bias,  # [outputs], where BIAS
    out,  # [1, outputs], or [splits, 1, outputs] fp32 where there are several
    rows,  # 1
    groups,
    outputs,
    of_split,  # groups
    BIAS: tl.constexpr,
    N: tl.constexpr,  # outputs of a program
    GROUPS: tl.constexpr,  # of a turn
):
    n = tl.program_id(0) * N + tl.arange(0, N)
    g = tl.arange(0, GROUPS)
    j = tl.arange(0, HALF)
    begin = tl.program_id(1) * of_split
    end = tl.minimum(begin + of_split, groups)
    total = tl.zeros([N, GROUPS], tl.float32)
    for turn in range(begin, end, GROUPS):
        group = turn + g
        here = group < end
        at = n.to(tl.int64)[:, None] * groups + group[None, :]
        known = (n < outputs)[:, None] & here[None, :]
        packed = tl.load(codes + at[:, :, None] * HALF + j, mask=known[:, :, None], other=0)
        d = tl.load(scales + at, mask=known, other=0.0).to(tl.float32)
        least = tl.load(minimums + at, mask=known, other=0.0).to(tl.float32)
        from_x = x + group[:, None] * GROUP + j[None, :]
        low = tl.load(from_x, mask=here[:, None], other=0.0).to(tl.float32)
        high = tl.load(from_x + HALF, mask=here[:, None], other=0.0).to(tl.float32)
        met = _whole(packed & 0xF) * low[None, :, :] + _whole(packed >> 4) * high[None, :, :]
        total += tl.sum(met, 2) * d + tl.sum(low + high, 1)[None, :] * least
    _finish(tl.sum(total, 1)[None, :], bias, out, tl.arange(0, 1), n, rows, outputs, tl.program_id(1), BIAS)


@kernel()
def meet_int8(
    x,
    codes,  # [outputs, inputs] int8
    scales,
    bias,
    out,
    rows,
    groups,
    outputs,
    of_split,
    BIAS: tl.constexpr,
    N: tl.constexpr,
    GROUPS: tl.constexpr,
):
    n = tl.program_id(0) * N + tl.arange(0, N)
    # Half a group at a time: 16 bytes of a thread.
    g = tl.arange(0, 2 * GROUPS)
    j = tl.arange(0, HALF)
    begin = tl.program_id(1) * of_split * 2
    end = tl.minimum(begin + of_split * 2, groups * 2)
    total = tl.zeros([N, 2 * GROUPS], tl.float32)
    for turn in range(begin, end, 2 * GROUPS):
        half = turn + g
        here = half < end
        at = n.to(tl.int64)[:, None] * groups + (half // 2)[None, :]
        known = (n < outputs)[:, None] & here[None, :]
        of_code = n.to(tl.int64)[:, None] * (groups * GROUP) + half[None, :] * HALF
        code = tl.load(codes + of_code[:, :, None] + j, mask=known[:, :, None], other=0)
        d = tl.load(scales + at, mask=known, other=0.0).to(tl.float32)
        of_x = tl.load(x + half[:, None] * HALF + j[None, :], mask=here[:, None], other=0.0).to(tl.float32)
        total += tl.sum(code.to(tl.float32) * of_x[None, :, :], 2) * d
    _finish(tl.sum(total, 1)[None, :], bias, out, tl.arange(0, 1), n, rows, outputs, tl.program_id(1), BIAS)


@kernel()
def meet_fp8(
    x,
    codes,  # [outputs, inputs] e4m3 as uint8
    scales,  # [outputs] fp32
    bias,
    out,
    rows,
    inputs,
    outputs,
    of_split,  # groups
    BIAS: tl.constexpr,
    N: tl.constexpr,
    GROUPS: tl.constexpr,
):
    n = tl.program_id(0) * N + tl.arange(0, N)
    g = tl.arange(0, 2 * GROUPS)
    j = tl.arange(0, HALF)
    begin = tl.program_id(1) * of_split * GROUP
    end = tl.minimum(begin + of_split * GROUP, inputs)
    total = tl.zeros([N, 2 * GROUPS], tl.float32)
    for turn in range(begin, end, GROUPS * GROUP):
        k = turn + g[:, None] * HALF + j[None, :]
        known = (n < outputs)[:, None, None] & (k < end)[None, :, :]
        code = tl.load(codes + n.to(tl.int64)[:, None, None] * inputs + k[None, :, :], mask=known, other=0)
        of_x = tl.load(x + k, mask=k < end, other=0.0).to(tl.float32)
        total += tl.sum(tiny_e4m3(code).to(tl.float32) * of_x[None, :, :], 2)
    scale = tl.load(scales + n, mask=n < outputs, other=0.0) * TINY
    met = (tl.sum(total, 1) * scale)[None, :]
    _finish(met, bias, out, tl.arange(0, 1), n, rows, outputs, tl.program_id(1), BIAS)


@kernel()
def multiply_fp8(
    x,
    codes,
    scales,
    bias,
    out,
    rows,
    inputs,
    outputs,
    of_split,
    BIAS: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    GROUPS: tl.constexpr,
):
    n = tl.program_id(0) * N + tl.arange(0, N)
    m = tl.program_id(2) * M + tl.arange(0, M)
    k = tl.arange(0, GROUPS * GROUP)
    begin = tl.program_id(1) * of_split * GROUP
    end = tl.minimum(begin + of_split * GROUP, inputs)
    total = tl.zeros([M, N], tl.float32)
    for turn in range(begin, end, GROUPS * GROUP):
        here = (k + turn < end)[None, :]
        code = tl.load(
            codes + n.to(tl.int64)[:, None] * inputs + turn + k[None, :],
            mask=(n < outputs)[:, None] & here,
            other=0,
        )
        from_x = x + m.to(tl.int64)[:, None] * inputs + turn + k[None, :]
        rows_of_x = tl.load(from_x, mask=(m < rows)[:, None] & here, other=0.0)
        # Any type of 16 bits holds every code.
        weight = (tiny_e4m3(code).to(tl.float32) * TINY).to(x.dtype.element_ty)
        total += dot(rows_of_x, tl.trans(weight))
    total *= tl.load(scales + n, mask=n < outputs, other=0.0)[None, :]
    _finish(total, bias, out, m, n, rows, outputs, tl.program_id(1), BIAS)


@triton.jit
def _whole(code):
    """fp32 of a code of 4 bits: set into the fraction of 2^23, one step instead of a conversion at half the pace."""
    return (code.to(tl.int32) | 0x4B000000).to(tl.float32, bitcast=True) - 8388608.0


@kernel()
def multiply_int4(
    x,
    codes,
    scales,
    minimums,
    bias,
    out,
    rows,
    groups,
    outputs,
    of_split,
    BIAS: tl.constexpr,
    M: tl.constexpr,  # rows of a program
    N: tl.constexpr,
    GROUPS: tl.constexpr,
):
    n = tl.program_id(0) * N + tl.arange(0, N)
    m = tl.program_id(2) * M + tl.arange(0, M)
    byte = tl.arange(0, GROUPS * HALF)
    g = tl.arange(0, GROUPS)
    low_input = byte // HALF * GROUP + byte % HALF
    begin = tl.program_id(1) * of_split
    end = tl.minimum(begin + of_split, groups)
    total = tl.zeros([M, N], tl.float32)
    for turn in range(begin, end, GROUPS):
        # What lies beyond the last group is 0 in x, so what it meets does not matter.
        here = (byte // HALF + turn < end)[None, :]
        packed = tl.load(
            codes + n.to(tl.int64)[:, None] * (groups * HALF) + turn * HALF + byte[None, :],
            mask=(n < outputs)[:, None] & here,
            other=0,
        )
        at = n.to(tl.int64)[:, None] * groups + turn + g[None, :]
        known = (n < outputs)[:, None] & (turn + g < end)[None, :]
        d = _spread(tl.load(scales + at, mask=known, other=0.0), N, GROUPS, HALF)
        least = _spread(tl.load(minimums + at, mask=known, other=0.0), N, GROUPS, HALF)
        low = ((packed & 0xF).to(tl.float32) * d + least).to(x.dtype.element_ty)
        high = ((packed >> 4).to(tl.float32) * d + least).to(x.dtype.element_ty)
        from_x = x + m.to(tl.int64)[:, None] * (groups * GROUP) + turn * GROUP + low_input[None, :]
        mask = (m < rows)[:, None] & here
        total += dot(tl.load(from_x, mask=mask, other=0.0), tl.trans(low))
        total += dot(tl.load(from_x + HALF, mask=mask, other=0.0), tl.trans(high))
    _finish(total, bias, out, m, n, rows, outputs, tl.program_id(1), BIAS)


@kernel()
def multiply_int8(
    x,
    codes,
    scales,
    bias,
    out,
    rows,
    groups,
    outputs,
    of_split,
    BIAS: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    GROUPS: tl.constexpr,
):
    n = tl.program_id(0) * N + tl.arange(0, N)
    m = tl.program_id(2) * M + tl.arange(0, M)
    k = tl.arange(0, GROUPS * GROUP)
    g = tl.arange(0, GROUPS)
    begin = tl.program_id(1) * of_split
    end = tl.minimum(begin + of_split, groups)
    total = tl.zeros([M, N], tl.float32)
    for turn in range(begin, end, GROUPS):
        here = (k + turn * GROUP < end * GROUP)[None, :]
        code = tl.load(
            codes + n.to(tl.int64)[:, None] * (groups * GROUP) + turn * GROUP + k[None, :],
            mask=(n < outputs)[:, None] & here,
            other=0,
        )
        at = n.to(tl.int64)[:, None] * groups + turn + g[None, :]
        known = (n < outputs)[:, None] & (turn + g < end)[None, :]
        d = _spread(tl.load(scales + at, mask=known, other=0.0), N, GROUPS, GROUP)
        weight = (code.to(tl.float32) * d).to(x.dtype.element_ty)
        from_x = x + m.to(tl.int64)[:, None] * (groups * GROUP) + turn * GROUP + k[None, :]
        rows_of_x = tl.load(from_x, mask=(m < rows)[:, None] & here, other=0.0)
        total += dot(rows_of_x, tl.trans(weight))
    _finish(total, bias, out, m, n, rows, outputs, tl.program_id(1), BIAS)


@kernel(num_warps=4)
def unpack_int4(codes, scales, minimums, out, groups, GROUPS: tl.constexpr):
    """The weight itself, `[outputs, inputs]`: computed in fp32, rounded once. `groups`: of all of it."""
    group = tl.program_id(0).to(tl.int64) * GROUPS + tl.arange(0, GROUPS)
    j = tl.arange(0, HALF)
    known = group < groups
    packed = tl.load(codes + group[:, None] * HALF + j, mask=known[:, None], other=0)
    d = tl.load(scales + group, mask=known, other=0.0).to(tl.float32)[:, None]
    least = tl.load(minimums + group, mask=known, other=0.0).to(tl.float32)[:, None]
    low = (packed & 0xF).to(tl.float32) * d + least
    high = (packed >> 4).to(tl.float32) * d + least
    into = out + group[:, None] * GROUP + j
    tl.store(into, low.to(out.dtype.element_ty), mask=known[:, None])
    tl.store(into + HALF, high.to(out.dtype.element_ty), mask=known[:, None])


@kernel(num_warps=4)
def unpack_int8(codes, scales, out, groups, GROUPS: tl.constexpr):
    group = tl.program_id(0).to(tl.int64) * GROUPS + tl.arange(0, GROUPS)
    known = group < groups
    at = group[:, None] * GROUP + tl.arange(0, GROUP)
    code = tl.load(codes + at, mask=known[:, None], other=0)
    d = tl.load(scales + group, mask=known, other=0.0).to(tl.float32)[:, None]
    tl.store(out + at, (code.to(tl.float32) * d).to(out.dtype.element_ty), mask=known[:, None])


@kernel(num_warps=4)
def add_up(parts, bias, out, rows, outputs, splits, BIAS: tl.constexpr, N: tl.constexpr):
    """`[splits, rows, outputs]` fp32 to `[rows, outputs]`, in order."""
    n = tl.program_id(0) * N + tl.arange(0, N)
    row = tl.program_id(1)
    at = row.to(tl.int64) * outputs + n
    total = tl.zeros([N], tl.float32)
    for split in range(splits):
        total += tl.load(parts + at + split * (rows * outputs), mask=n < outputs, other=0.0)
    if BIAS:
        total += tl.load(bias + n, mask=n < outputs, other=0.0).to(tl.float32)
    tl.store(out + at, total.to(out.dtype.element_ty), mask=n < outputs)


@triton.jit
def _spread(x, N: tl.constexpr, GROUPS: tl.constexpr, TIMES: tl.constexpr):
    """`[N, GROUPS]` to fp32 `[N, GROUPS * TIMES]`, each value so often."""
    wide = tl.broadcast_to(x.to(tl.float32)[:, :, None], (N, GROUPS, TIMES))
    return tl.reshape(wide, (N, GROUPS * TIMES))


@triton.jit
def _finish(total, bias, out, m, n, rows, outputs, split, BIAS: tl.constexpr):
    if BIAS:
        total += tl.load(bias + n, mask=n < outputs, other=0.0).to(tl.float32)[None, :]
    tl.store(
        out + (split * rows + m).to(tl.int64)[:, None] * outputs + n[None, :],
        total.to(out.dtype.element_ty),
        mask=(m < rows)[:, None] & (n < outputs)[None, :],
    )
