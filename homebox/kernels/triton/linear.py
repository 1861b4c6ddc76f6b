"""A quantised weight on a GPU: few rows meet it as it is stored, many rows meet it unpacked.

For 8-bit floating point some GPUs have products of such numbers. There a step's rows are rounded as well, each with a scale
of its own, so that nobody's outlier coarsens somebody else's row; and it is all rows or none, so that nobody's
answer depends on how many are beside it.
"""

from __future__ import annotations

import torch
from torch.nn.functional import linear

from homebox.kernels.fp8 import Fp8, multiplies
from homebox.kernels.grouped import GROUP, Grouped
from homebox.kernels.triton import quantised
from homebox.kernels.triton.fused import round_to_e4m3
from homebox.kernels.triton.launch import Kernel
from homebox.kernels.triton.tuning import Multiply, Product, padded, tuning

ADDED = 512  # outputs of a program that adds the splits
UNPACKED = 128  # groups of a program that unpacks
MULTIPLE = 16  # what a product of e4m3 wants inputs and outputs to be a multiple of
_KERNELS = {
    4: (quantised.meet_int4, quantised.multiply_int4),
    8: (quantised.meet_int8, quantised.multiply_int8),
}
_UNPACK = {4: quantised.unpack_int4, 8: quantised.unpack_int8}
_FP8_KERNELS = quantised.meet_fp8, quantised.multiply_fp8


class GroupedLinear:
    """`Linear` over a `Grouped` weight. With 4 bits `codes` is `[outputs, inputs / 2]` uint8: byte j of a group's 16 has input
    j in its low and input j + 16 in its high half; with 8 bits `[outputs, inputs]` int8."""

    def __init__(
        self,
        weight: Grouped,
        bias: torch.Tensor | None,
        device: torch.device,
        sizes: Multiply | None = None,
    ) -> None:
        self.bits = weight.bits
        self.outputs, self.inputs = weight.shape
        codes = weight.codes
        if self.bits == 4:
            low, high = codes.view(self.outputs, -1, 2, GROUP // 2).unbind(2)
            codes = (low | high << 4).reshape(self.outputs, self.inputs // 2)
        self.codes = codes.contiguous().to(device)
        self.scales = weight.scales.contiguous().to(device)
        self.minimums = (
            weight.minimums.contiguous().to(device) if weight.minimums is not None else self.scales
        )
        self.bias = bias.to(device) if bias is not None else None
        self.sizes = sizes or tuning(device).multiply
        parts = [self.codes, self.scales, *([self.minimums] if self.bits == 4 else [])]
        self.nbytes = sum(part.nbytes for part in parts) + (self.bias.nbytes if self.bias is not None else 0)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if len(x) > self.sizes.most_rows:
            return linear(x, self.unpacked(x.dtype), self.bias)
        return self.multiply(x.contiguous(), x.new_empty(len(x), self.outputs))

    def multiply(self, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """`out`, `[rows, outputs]`, every element of it, from `x`, `[rows, inputs]`; both contiguous."""
        scales = (self.scales, self.minimums) if self.bits == 4 else (self.scales,)
        groups = self.inputs // GROUP
        _meet(_KERNELS[self.bits], self.sizes, x, (self.codes, *scales), self.bias, out, groups, groups)
        return out

    def unpacked(self, dtype: torch.dtype) -> torch.Tensor:
        """`[outputs, inputs]`, computed in fp32 and rounded once."""
        out = torch.empty(self.outputs, self.inputs, dtype=dtype, device=self.codes.device)
        groups = self.outputs * self.inputs // GROUP
        scales = (self.scales, self.minimums) if self.bits == 4 else (self.scales,)
        _UNPACK[self.bits][(-(-groups // UNPACKED),)](self.codes, *scales, out, groups, GROUPS=UNPACKED)
        return out


class Fp8Linear:
    """`Linear` over a weight in e4m3. `native`: by products of e4m3; None is what the device can."""

    def __init__(
        self,
        weight: Fp8,
        bias: torch.Tensor | None,
        device: torch.device,
        native: bool | None = None,
        sizes: Multiply | None = None,
    ) -> None:
        self.outputs, self.inputs = weight.codes.shape
        self.codes = weight.codes.contiguous().to(device)
        self.scales = weight.scales.float().contiguous().to(device)
        self.bias = bias.to(device) if bias is not None else None
        self.native = multiplies(device) if native is None else native
        self.native &= self.inputs % MULTIPLE == 0 and self.outputs % MULTIPLE == 0
        self.sizes = sizes or tuning(device).multiply
        self.nbytes = self.codes.nbytes + self.scales.nbytes + (bias.nbytes if bias is not None else 0)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self.native:
            return self._multiplied(x)
        if len(x) <= self.sizes.most_rows:
            return self.multiply(x.contiguous(), x.new_empty(len(x), self.outputs))
        # Any type of 16 bits holds every code.
        made = linear(x, self.codes.to(x.dtype)).float() * self.scales.T
        if self.bias is not None:
            made += self.bias
        return made.to(x.dtype)

    def multiply(self, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """`out`, `[rows, outputs]`, every element of it, from `x`, `[rows, inputs]`; both contiguous."""
        weight = self.codes.view(torch.uint8), self.scales
        _meet(_FP8_KERNELS, self.sizes, x, weight, self.bias, out, -(-self.inputs // GROUP), self.inputs)
        return out

    def _multiplied(self, x: torch.Tensor) -> torch.Tensor:
        codes, scales = round_to_e4m3(x.contiguous())
        made: torch.Tensor = torch._scaled_mm(
            codes, self.codes.T, scale_a=scales, scale_b=self.scales.T, out_dtype=torch.bfloat16
        )  # a scale for each row: bf16 is what all of them make
        if self.bias is not None:
            made = made + self.bias
        return made.to(x.dtype)


def _meet(
    kernels: tuple[Kernel, Kernel], sizes: Multiply, x: torch.Tensor, weight: tuple[torch.Tensor, ...],
    bias: torch.Tensor | None, out: torch.Tensor, groups: int, length: int,
) -> None:  # fmt: skip
    """Few rows with a weight as it is stored: `weight` is codes and scales, `length` of its rows, as the kernels count it."""
    rows, outputs = out.shape
    if rows == 1:
        kernel, launch, tile = kernels[0], sizes.meet, {}
    else:
        kernel, launch, tile = kernels[1], sizes.multiply, {"M": min(padded(rows), 64)}
    splits, of_split = cut(outputs, groups, launch)
    into = out if splits == 1 else x.new_empty(splits, rows, outputs, dtype=torch.float32)
    added = weight[1] if bias is None else bias
    kernel[(-(-outputs // launch.outputs), splits, -(-rows // tile.get("M", 1)))](
        x, *weight, added, into, rows, length, outputs, of_split,
        BIAS=bias is not None and splits == 1, N=launch.outputs, GROUPS=launch.groups,
        num_warps=launch.warps, num_stages=launch.stages, **tile,
    )  # fmt: skip
    if splits > 1:
        quantised.add_up[(-(-outputs // ADDED), rows)](
            into, added, out, rows, outputs, splits, BIAS=bias is not None, N=ADDED
        )


def cut(outputs: int, groups: int, sizes: Product) -> tuple[int, int]:
    """Into how many splits, and of how many groups each: enough programs for the GPU, and as many turns for each as it
    has stages, so that the next codes are on their way."""
    wanted = sizes.programs * sizes.outputs // outputs
    splits = min(max(wanted, 1), max(groups // (sizes.stages * sizes.groups), 1))
    of_split = -(-groups // splits)
    of_split = -(-of_split // sizes.groups) * sizes.groups
    return -(-groups // of_split), of_split
