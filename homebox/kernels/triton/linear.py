"""A quantised weight on a GPU: few rows meet it as it is stored, many rows meet it unpacked."""

from __future__ import annotations

import torch

from homebox.kernels.grouped import GROUP, Grouped
from homebox.kernels.triton import quantised
from homebox.kernels.triton.tuning import Multiply, Product, padded, tuning

ADDED = 512  # outputs of a program that adds the splits
_KERNELS = {
    4: (quantised.meet_int4, quantised.multiply_int4),
    8: (quantised.meet_int8, quantised.multiply_int8),
}


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
        self._meet, self._multiply = _KERNELS[self.bits]
        self.sizes = sizes or tuning(device).multiply
        parts = [self.codes, self.scales, *([self.minimums] if self.bits == 4 else [])]
        self.nbytes = sum(part.nbytes for part in parts) + (self.bias.nbytes if self.bias is not None else 0)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if len(x) > self.sizes.most_rows:
            return torch.nn.functional.linear(x, self.unpacked(x.dtype), self.bias)
        return self.multiply(x.contiguous(), x.new_empty(len(x), self.outputs))

    def multiply(self, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """`out`, `[rows, outputs]`, every element of it, from `x`, `[rows, inputs]`; both contiguous."""
        sizes, rows = self.sizes, len(x)
        if rows == 1:
            kernel, launch, tile = self._meet, sizes.meet, {}
        else:
            kernel, launch, tile = self._multiply, sizes.multiply, {"M": min(padded(rows), 64)}
        groups = self.inputs // GROUP
        splits, of_split = cut(self.outputs, groups, launch)
        bias = self.bias if self.bias is not None else self.scales
        into = out if splits == 1 else x.new_empty(splits, rows, self.outputs, dtype=torch.float32)
        scales = (self.scales, self.minimums) if self.bits == 4 else (self.scales,)
        kernel[(-(-self.outputs // launch.outputs), splits, -(-rows // tile.get("M", 1)))](
            x, self.codes, *scales, bias, into, rows, groups, self.outputs, of_split,
            BIAS=self.bias is not None and splits == 1, N=launch.outputs, GROUPS=launch.groups,
            num_warps=launch.warps, num_stages=launch.stages, **tile,
        )  # fmt: skip
        if splits > 1:
            quantised.add_up[(-(-self.outputs // ADDED), rows)](
                into, bias, out, rows, self.outputs, splits, BIAS=self.bias is not None, N=ADDED
            )
        return out

    def unpacked(self, dtype: torch.dtype) -> torch.Tensor:
        """`[outputs, inputs]`, computed in fp32 and rounded once."""
        codes = self.codes
        if self.bits == 4:
            grouped = codes.view(self.outputs, -1, 1, GROUP // 2)
            codes = torch.cat((grouped & 0xF, grouped >> 4), dim=2)
        values = codes.view(self.outputs, -1, GROUP) * self.scales.float()[..., None]
        if self.bits == 4:
            values = values + self.minimums.float()[..., None]
        return values.view(self.outputs, self.inputs).to(dtype)


def cut(outputs: int, groups: int, sizes: Product) -> tuple[int, int]:
    """Into how many splits, and of how many groups each: enough programs for the GPU, and as many turns for each as it
    has stages, so that the next codes are on their way."""
    wanted = sizes.programs * sizes.outputs // outputs
    splits = min(max(wanted, 1), max(groups // (sizes.stages * sizes.groups), 1))
    of_split = -(-groups // splits)
    of_split = -(-of_split // sizes.groups) * sizes.groups
    return -(-groups // of_split), of_split
