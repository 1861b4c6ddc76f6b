"""How are a step's rows multiplied with a weight?

One interface, `Linear`; the decoder does not know which is behind it. On a CPU with oneDNN the weight is packed once
into oneDNN's blocked layout: faster from a few rows on, and its sums run in the same order whatever the number of
rows, so that a row's result does not depend, to the bit, on who else is in the batch. The plain library call has
neither property (docs/decisions/003).
"""

from __future__ import annotations

from typing import Protocol

import torch

_ROWS_HINT = 16  # oneDNN chooses the packed layout for about so many rows


class Linear(Protocol):
    nbytes: int

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """`[rows, in]` to `[rows, out]`."""


class PlainLinear:
    """`torch.nn.functional.linear`; the oracle for the others."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self._weight, self._bias = weight, bias
        self.nbytes = weight.nbytes + (bias.nbytes if bias is not None else 0)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(x, self._weight, self._bias)


class SideBySide:
    """Several weights of the same inputs, stored each in its own way."""

    def __init__(self, parts: list[Linear]) -> None:
        self._parts = parts
        self.nbytes = sum(part.nbytes for part in parts)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([part(x) for part in self._parts], dim=-1)


class PackedLinear:
    """fp32 on a CPU through oneDNN, by the operators that torch's own compiler emits for frozen weights."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _ROWS_HINT)
        self._bias = bias
        self.nbytes = weight.nbytes + (bias.nbytes if bias is not None else 0)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if len(x) == 1:
            # A single row takes another path in oneDNN, which splits long sums; beside itself it does not.
            return self._multiply(x.expand(2, -1))[:1]
        return self._multiply(x)

    def _multiply(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, self._packed, self._bias, "none", [], "")
        return out


def linear(weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
    """The best there is for this weight on its device. The weight itself is not kept where it is packed."""
    packable = (
        weight.device.type == "cpu" and weight.dtype == torch.float32 and torch.backends.mkldnn.is_available()
    )
    if packable and hasattr(torch.ops.mkldnn, "_reorder_linear_weight"):
        return PackedLinear(weight, bias)
    return PlainLinear(weight, bias)
