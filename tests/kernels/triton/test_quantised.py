"""Few rows times a quantised weight, against the product with the weight unpacked."""

from __future__ import annotations

import math

import pytest
import torch

from homebox.kernels.grouped import Bits, quantise
from homebox.kernels.triton.linear import GroupedLinear, cut
from homebox.kernels.triton.tuning import OTHERS, Multiply, Product, of

CPU = torch.device("cpu")
# Two turns a split, three splits and an end that is shorter.
SPLIT = Multiply(Product(16, 2, 4, 1, 9), Product(16, 2, 4, 2, 9), 64)
BOUNDS = {torch.float32: 3e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("dtype", list(BOUNDS))
@pytest.mark.parametrize(("rows", "outputs", "inputs"), [(1, 70, 352), (3, 40, 96), (17, 33, 352)])
@pytest.mark.parametrize("sizes", [OTHERS.multiply, SPLIT], ids=["whole", "split"])
@pytest.mark.parametrize("bias", [False, True])
def test_it_is_the_product_with_the_unpacked_weight(
    bits: Bits, dtype: torch.dtype, rows: int, outputs: int, inputs: int, bias: bool, sizes: Multiply
) -> None:
    generator = torch.Generator().manual_seed(rows)
    weight = quantise(torch.randn(outputs, inputs, generator=generator), bits)
    x = torch.randn(rows, inputs, generator=generator).to(dtype)
    added = torch.randn(outputs, generator=generator).to(dtype) if bias else None
    out = torch.full((rows, outputs), math.nan, dtype=dtype)
    GroupedLinear(weight, added, CPU, sizes).multiply(x, out)
    wanted = x.double() @ weight.dequantised().double().T
    if added is not None:
        wanted += added.double()
    scale = wanted.abs().max()
    assert (out.double() - wanted).abs().max() <= BOUNDS[dtype] * scale


@pytest.mark.parametrize("bits", [4, 8])
def test_unpacking_gives_the_weight_back(bits: Bits) -> None:
    weight = quantise(torch.randn(40, 96, generator=torch.Generator().manual_seed(1)), bits)
    linear = GroupedLinear(weight, None, CPU)
    assert torch.equal(linear.unpacked(torch.float32), weight.dequantised())


@pytest.mark.parametrize("bits", [4, 8])
def test_many_rows_give_what_few_give(bits: Bits) -> None:
    generator = torch.Generator().manual_seed(2)
    linear = GroupedLinear(quantise(torch.randn(48, 64, generator=generator), bits), None, CPU)
    x = torch.randn(200, 64, generator=generator)
    torch.testing.assert_close(linear(x)[:9], linear(x[:9]), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("bits", [4, 8])
def test_a_row_has_the_same_bits_whatever_rows_are_beside_it(bits: Bits) -> None:
    """On tensor cores; a row alone is multiplied in fp32."""
    generator = torch.Generator().manual_seed(3)
    linear = GroupedLinear(quantise(torch.randn(48, 352, generator=generator), bits), None, CPU, SPLIT)
    x = torch.randn(20, 352, generator=generator).to(torch.bfloat16)
    assert torch.equal(linear(x)[:2], linear(x[:2]))


@pytest.mark.parametrize("outputs", [1024, 4096, 6144, 28672, 128256])
@pytest.mark.parametrize("inputs", [4096, 14336])
def test_a_weight_of_an_8b_model_keeps_all_of_a_gpu_busy(outputs: int, inputs: int) -> None:
    for sizes in of((9, 0)).multiply[:2]:
        groups = inputs // 32
        splits, of_split = cut(outputs, groups, sizes)
        assert splits * of_split >= groups > (splits - 1) * of_split  # every group once, none of them empty
        assert of_split % sizes.groups == 0
        assert splits * -(-outputs // sizes.outputs) >= 2 * 132 or of_split == sizes.stages * sizes.groups
