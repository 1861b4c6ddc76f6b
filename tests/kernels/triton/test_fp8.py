"""Products with a weight in 8-bit floating point, whichever way they are made."""

from __future__ import annotations

import math

import pytest
import torch

from homebox.kernels.fp8 import quantise
from homebox.kernels.triton.fused import round_to_e4m3
from homebox.kernels.triton.linear import Fp8Linear
from homebox.kernels.triton.tuning import OTHERS, Multiply
from tests.kernels.test_fp8 import STEP, drawn
from tests.kernels.triton.test_quantised import SPLIT

CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_rows_are_rounded_as_a_weight_is(dtype: torch.dtype) -> None:
    x = (drawn(9, 100) * torch.logspace(-3, 3, 9)[:, None]).to(dtype)
    x[2] = 0
    codes, scales = round_to_e4m3(x)
    right = quantise(x)
    assert torch.equal(codes.view(torch.uint8), right.codes.view(torch.uint8))
    assert torch.equal(scales, right.scales)
    x[4, 50] = math.nan
    assert round_to_e4m3(x)[1].isnan()[:, 0].tolist() == [i == 4 for i in range(9)]


@pytest.mark.parametrize(
    ("dtype", "bound"), [(torch.float32, 3e-6), (torch.float16, 2e-3), (torch.bfloat16, 1.6e-2)]
)
@pytest.mark.parametrize(
    ("rows", "outputs", "inputs"), [(1, 70, 352), (1, 33, 100), (3, 40, 100), (17, 33, 352), (70, 37, 100)]
)
@pytest.mark.parametrize("sizes", [OTHERS.multiply, SPLIT], ids=["whole", "split"])
@pytest.mark.parametrize("bias", [False, True])
def test_it_is_the_product_with_the_kept_weight(
    dtype: torch.dtype, bound: float, rows: int, outputs: int, inputs: int, sizes: Multiply, bias: bool
) -> None:
    """One row, few, and more than the kernels are for."""
    weight, x = (
        quantise(drawn(outputs, inputs) * torch.logspace(-3, 1, outputs)[:, None]),
        drawn(rows, inputs, seed=2).to(dtype),
    )
    added = drawn(outputs, seed=3).to(dtype) if bias else None
    wanted = x.double() @ weight.dequantised().double().T
    scale = x.double().norm(dim=1)[:, None] * weight.dequantised().double().norm(
        dim=1
    )  # of each output by itself
    linear = Fp8Linear(weight, added, CPU, sizes=sizes)
    if rows <= sizes.most_rows:
        made = linear.multiply(x, torch.full((rows, outputs), math.nan, dtype=dtype))
        assert torch.equal(made, linear(x))
    else:
        made = linear(x)
    assert made.dtype == dtype
    if added is not None:
        wanted, scale = wanted + added.double(), scale + added.double().abs()
    assert ((made.double() - wanted).abs() <= bound * scale).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", [False, True])
def test_products_of_codes_are_those_of_the_rounded_rows(dtype: torch.dtype, bias: bool) -> None:
    weight, x = quantise(drawn(48, 96)), drawn(5, 96, seed=2).to(dtype)
    added = drawn(48, seed=3).to(dtype) if bias else None
    wanted = quantise(x).dequantised().double() @ weight.dequantised().double().T
    wanted = wanted + (0 if added is None else added.double())
    made = Fp8Linear(weight, added, CPU, native=True)(x)
    assert made.dtype == dtype
    assert (made.double() - wanted).abs().max() <= 1.6e-2 * wanted.abs().max()
    exact = x.double() @ weight.dequantised().double().T + (0 if added is None else added.double())
    assert (made.double() - exact).norm() <= STEP * exact.norm()


def test_somebodys_outlier_coarsens_nobody_elses_row() -> None:
    linear, x = Fp8Linear(quantise(drawn(48, 96)), None, CPU, native=True), drawn(5, 96, seed=2)
    beside = x.clone()
    beside[3] *= 1e5
    assert torch.equal(linear(x)[[0, 1, 2, 4]], linear(beside)[[0, 1, 2, 4]])


def test_sizes_that_a_product_of_codes_does_not_take_go_another_way() -> None:
    assert not Fp8Linear(quantise(drawn(37, 96)), None, CPU, native=True).native
    assert not Fp8Linear(quantise(drawn(48, 90)), None, CPU, native=True).native
