"""What is done to tokens by themselves: the residual stream, its norm, the gate of an MLP."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn.functional import rms_norm, silu

from homebox.kernels.triton import rows
from homebox.kernels.triton.tuning import padded

BOUNDS = {torch.float32: 2e-6, torch.bfloat16: 8e-3}


@pytest.mark.parametrize("size", [64, 576, 4096])
@pytest.mark.parametrize("dtype", list(BOUNDS))
@pytest.mark.parametrize("add", [False, True])
def test_adding_and_normalising(size: int, dtype: torch.dtype, add: bool) -> None:
    generator = torch.Generator().manual_seed(size)
    x, added = (torch.randn(7, size, generator=generator).to(dtype) * 3 for _ in "xa")
    weight = torch.rand(size, generator=generator).to(dtype) + 0.5
    stream = x.float() + added.float() if add else x.float()
    out = torch.full_like(x, math.nan)
    rows.add_and_norm[(7,)](x, added, weight, out, 1e-5, SIZE=size, PADDED=padded(size), ADD=add)
    torch.testing.assert_close(x.float(), stream, rtol=BOUNDS[dtype], atol=0)
    wanted = rms_norm(x.float(), (size,), weight.float(), 1e-5)  # of what is kept
    torch.testing.assert_close(out.float(), wanted, rtol=BOUNDS[dtype], atol=BOUNDS[dtype])


@pytest.mark.parametrize("size", [100, 1536])
@pytest.mark.parametrize("dtype", list(BOUNDS))
def test_the_gate(size: int, dtype: torch.dtype) -> None:
    gate_up = torch.randn(5, 2 * size, generator=torch.Generator().manual_seed(size)).to(dtype) * 4
    out = torch.full((5, size), math.nan, dtype=dtype)
    rows.silu_and_multiply[(5, -(-size // 256))](gate_up, out, SIZE=size, TURN=256)
    gate, up = gate_up.float().chunk(2, dim=-1)
    torch.testing.assert_close(out.float(), silu(gate) * up, rtol=BOUNDS[dtype], atol=BOUNDS[dtype])
