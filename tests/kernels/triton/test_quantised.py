"""Few rows times a quantised weight, against the product with the weight unpacked."""

from __future__ import annotations

import math

import pytest
import torch

from homebox.kernels.grouped import Bits, quantise
from homebox.kernels.triton.linear import GroupedLinear

BOUNDS = {torch.float32: 3e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("dtype", list(BOUNDS))
@pytest.mark.parametrize(("rows", "outputs", "inputs"), [(1, 64, 128), (3, 70, 96), (17, 33, 288)])
@pytest.mark.parametrize("bias", [False, True])
def test_it_is_the_product_with_the_unpacked_weight(
    bits: Bits, dtype: torch.dtype, rows: int, outputs: int, inputs: int, bias: bool
) -> None:
    generator = torch.Generator().manual_seed(rows)
    weight = quantise(torch.randn(outputs, inputs, generator=generator), bits)
    x = torch.randn(rows, inputs, generator=generator).to(dtype)
    added = torch.randn(outputs, generator=generator).to(dtype) if bias else None
    out = torch.full((rows, outputs), math.nan, dtype=dtype)
    GroupedLinear(weight, added, torch.device("cpu")).multiply(x, out)
    wanted = x.double() @ weight.dequantised().double().T
    if added is not None:
        wanted += added.double()
    scale = wanted.abs().max()
    assert (out.double() - wanted).abs().max() <= BOUNDS[dtype] * scale


@pytest.mark.parametrize("bits", [4, 8])
def test_unpacking_gives_the_weight_back(bits: Bits) -> None:
    weight = quantise(torch.randn(40, 96, generator=torch.Generator().manual_seed(1)), bits)
    linear = GroupedLinear(weight, None, torch.device("cpu"))
    assert torch.equal(linear.unpacked(torch.float32), weight.dequantised())


@pytest.mark.parametrize("bits", [4, 8])
def test_many_rows_give_what_few_give(bits: Bits) -> None:
    generator = torch.Generator().manual_seed(2)
    linear = GroupedLinear(
        quantise(torch.randn(48, 64, generator=generator), bits), None, torch.device("cpu")
    )
    x = torch.randn(200, 64, generator=generator)
    torch.testing.assert_close(linear(x)[:9], linear(x[:9]), rtol=1e-5, atol=1e-5)
