"""A weight in 8-bit floating point, with a scale for each output.

Where the GPU multiplies such numbers (an allow-list: what a number of a capability promises, another of the same generation may not
hold), a step's rows are rounded to e4m3 as well, each with a scale of its own, so that nobody's outlier coarsens
somebody else's row. Elsewhere the codes, which any 16-bit type holds exactly, are widened and multiplied, and the scales meet the
sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn.functional import linear

LARGEST = 448.0  # of e4m3
MULTIPLE = 16  # what a product of such numbers wants inputs and outputs to be a multiple of
_MULTIPLIES = {(8, 9), (9, 0), (10, 0), (12, 0)}


@dataclass(frozen=True)
class Fp8:
    """`[out, in]` weights, `scales * codes`: e4m3, and fp32 `[out, 1]`."""

    codes: torch.Tensor
    scales: torch.Tensor

    @staticmethod
    def stacked(parts: Sequence[Fp8]) -> Fp8:
        """Their rows as those of one."""
        if len(parts) == 1:
            return parts[0]
        return Fp8(torch.cat([part.codes for part in parts]), torch.cat([part.scales for part in parts]))

    def dequantised(self) -> torch.Tensor:
        """fp32, exact."""
        return self.codes.float() * self.scales


def quantise(x: torch.Tensor) -> Fp8:
    """The nearest codes of each row of `[rows, columns]`, with a scale from its extreme."""
    x = x.float()
    peaks = x.abs().amax(dim=-1, keepdim=True)
    # Rounded up in the last bit, it would be no number.
    codes = (x * torch.where(peaks > 0, LARGEST / peaks, 0.0)).clamp(-LARGEST, LARGEST)
    return Fp8(codes.to(torch.float8_e4m3fn), peaks / LARGEST)


def multiplies(device: torch.device) -> bool:
    """Whether products of e4m3 are made there, as far as we know. On a CPU torch has them, for the tests' sake."""
    if device.type != "cuda" or torch.version.hip:
        return False
    return torch.cuda.get_device_capability(device) in _MULTIPLIES


class Fp8Linear:
    """`Linear` over such a weight. `native`: by products of e4m3; None is what the device can."""

    def __init__(
        self, weight: Fp8, bias: torch.Tensor | None, device: torch.device, native: bool | None = None
    ) -> None:
        outputs, inputs = weight.codes.shape
        self.codes = weight.codes.contiguous().to(device)
        self.scales = weight.scales.float().contiguous().to(device)
        self.bias = bias.to(device) if bias is not None else None
        self.native = multiplies(device) if native is None else native
        self.native &= inputs % MULTIPLE == 0 and outputs % MULTIPLE == 0
        self.nbytes = self.codes.nbytes + self.scales.nbytes + (bias.nbytes if bias is not None else 0)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self.native:
            return self._multiplied(x)
        made = linear(x, self.codes.to(x.dtype)).float() * self.scales.T
        if self.bias is not None:
            made += self.bias
        return made.to(x.dtype)

    def _multiplied(self, x: torch.Tensor) -> torch.Tensor:
        rows = quantise(x)
        made: torch.Tensor = torch._scaled_mm(
            rows.codes, self.codes.T, scale_a=rows.scales, scale_b=self.scales.T, out_dtype=torch.bfloat16
        )  # a scale for each row: bf16 is what all of them make
        if self.bias is not None:
            made = made + self.bias
        return made.to(x.dtype)
