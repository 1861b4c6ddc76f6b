"""The small operations of a layer, each in one launch, for tensors on a GPU."""

from __future__ import annotations

import torch

from homebox.kernels.triton import rows
from homebox.kernels.triton.tuning import padded

_TURN = 1024  # values of a program


def add_and_norm(
    x: torch.Tensor, added: torch.Tensor | None, weight: torch.Tensor, eps: float
) -> torch.Tensor:
    """RMSNorm of `x + added`, `[tokens, size]`; the sum stays in `x`. All contiguous."""
    tokens, size = x.shape
    normed = torch.empty_like(x)
    rows.add_and_norm[(tokens,)](
        x, x if added is None else added, weight, normed, eps, SIZE=size, PADDED=padded(size),
        ADD=added is not None,
    )  # fmt: skip
    return normed


def round_to_e4m3(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """`[tokens, size]`, contiguous, as codes of e4m3 and scales, fp32 `[tokens, 1]`."""
    tokens, size = x.shape
    codes = torch.empty(tokens, size, dtype=torch.float8_e4m3fn, device=x.device)
    scales = torch.empty(tokens, 1, dtype=torch.float32, device=x.device)
    rows.round_to_e4m3[(tokens,)](x, codes.view(torch.uint8), scales, SIZE=size, PADDED=padded(size))
    return codes, scales


def silu_and_multiply(gate_up: torch.Tensor) -> torch.Tensor:
    """`silu(gate) * up` of `[tokens, 2 * size]`, contiguous: gates in the first half of a row."""
    tokens, size = gate_up.shape[0], gate_up.shape[1] // 2
    out = gate_up.new_empty(tokens, size)
    rows.silu_and_multiply[(tokens, -(-size // _TURN))](gate_up, out, SIZE=size, TURN=_TURN)
    return out
