"""A weight in 8-bit floating point, with a scale for each output. `kernels/triton/linear.py` multiplies with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch

LARGEST = 448.0  # of e4m3
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
    """Whether products of e4m3 are made there, as far as we know: what a number of a capability promises, another of the same
    generation may not hold. On a CPU torch has them, for the tests' sake."""
    if device.type != "cuda" or torch.version.hip:
        return False
    return torch.cuda.get_device_capability(device) in _MULTIPLIES and _has_product(device)


@cache
def _has_product(device: torch.device) -> bool:
    """Not every build of torch was made with it."""
    codes = torch.zeros(16, 16, dtype=torch.float8_e4m3fn, device=device)
    scales = torch.ones(16, 1, dtype=torch.float32, device=device)
    try:
        torch._scaled_mm(codes, codes.T, scale_a=scales, scale_b=scales.T, out_dtype=torch.bfloat16)
    except torch.OutOfMemoryError:
        raise  # that says nothing of the product
    except RuntimeError:
        return False
    return True
