"""What is a quantised weight, wherever it came from?

The canonical layout between files and kernels: groups of 32 inputs that share a scale, and with 4 bits a minimum too.
File formats are read into it without changing a value, kernels pack it into what they like to read, and
`quantise` makes one out of floats.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

GROUP = 32
Bits = Literal[4, 8]


@dataclass(frozen=True)
class Grouped:
    """`[out, in]` weights: `scales * codes`, with 4 bits `scales * codes + minimums`. `codes`: one a byte, uint8 from 0 to
    15 or int8, `[out, in]`; `scales`, `minimums`: fp16, `[out, in / 32]`."""

    bits: Bits
    codes: torch.Tensor
    scales: torch.Tensor
    minimums: torch.Tensor | None = None

    def __post_init__(self) -> None:
        assert (self.minimums is not None) == (self.bits == 4)

    @property
    def shape(self) -> tuple[int, int]:
        return self.codes.shape[0], self.codes.shape[1]

    def take(self, rows: torch.Tensor) -> Grouped:
        """These rows, in this order."""
        minimums = self.minimums[rows] if self.minimums is not None else None
        return Grouped(self.bits, self.codes[rows], self.scales[rows], minimums)

    @staticmethod
    def stacked(parts: Sequence[Grouped]) -> Grouped:
        """Their rows as those of one; all have as many bits."""
        if len(parts) == 1:
            return parts[0]
        minimums = [part.minimums for part in parts if part.minimums is not None]
        return Grouped(
            parts[0].bits,
            torch.cat([part.codes for part in parts]),
            torch.cat([part.scales for part in parts]),
            torch.cat(minimums) if minimums else None,
        )

    def dequantised(self) -> torch.Tensor:
        """fp32, exact."""
        grouped = self.codes.float().view(self.shape[0], -1, GROUP) * self.scales.float()[..., None]
        if self.minimums is not None:
            grouped = grouped + self.minimums.float()[..., None]
        return grouped.view(self.shape)


def quantise(weight: torch.Tensor, bits: Bits) -> Grouped:
    """The nearest codes, with scales from the extremes of each group of 32, rounded to fp16 first. `weight` is `[out, in]`
    and in is a multiple of 32."""
    groups = weight.float().view(weight.shape[0], -1, GROUP)
    if bits == 8:
        scales = (groups.abs().amax(dim=-1) / 127).half()
        codes = (groups / _never_zero(scales)).round().clamp(-127, 127).to(torch.int8)
        return Grouped(8, codes.view(weight.shape), scales)
    low, high = groups.amin(dim=-1), groups.amax(dim=-1)
    scales, minimums = ((high - low) / 15).half(), low.half()
    codes = (
        ((groups - minimums.float()[..., None]) / _never_zero(scales)).round().clamp(0, 15).to(torch.uint8)
    )
    return Grouped(4, codes.view(weight.shape), scales, minimums)


def _never_zero(scales: torch.Tensor) -> torch.Tensor:
    return torch.where(scales == 0, 1.0, scales.float())[..., None]
