"""A quantised weight on a GPU: few rows meet it as it is stored, many rows meet it unpacked."""

from __future__ import annotations

import torch

from homebox.kernels.grouped import GROUP, Grouped
from homebox.kernels.triton import quantised
from homebox.kernels.triton.tuning import Multiply, padded, tuning


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
            return torch.nn.functional.linear(x, self.unpacked(x.dtype), self.bias)
        return self.multiply(x.contiguous(), x.new_empty(len(x), self.outputs))

    def multiply(self, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """`out`, `[rows, outputs]`, every element of it, from `x`, `[rows, inputs]`; both contiguous."""
        sizes = self.sizes
        m = min(max(sizes.rows, padded(len(x))), 64)
        grid = (-(-self.outputs // sizes.outputs), -(-len(x) // m))
        bias = self.bias if self.bias is not None else self.scales
        common = {
            "BIAS": self.bias is not None, "M": m, "N": sizes.outputs, "GROUPS": sizes.groups,
            "num_warps": sizes.warps, "num_stages": sizes.stages,
        }  # fmt: skip
        numbers = (bias, out, len(x), self.inputs, self.outputs)
        if self.bits == 4:
            quantised.multiply_int4[grid](x, self.codes, self.scales, self.minimums, *numbers, **common)
        else:
            quantised.multiply_int8[grid](x, self.codes, self.scales, *numbers, **common)
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
