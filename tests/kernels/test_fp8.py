"""A weight in 8-bit floating point: what it keeps of a weight, and what a product with it is."""

from __future__ import annotations

import pytest
import torch

from homebox.kernels.fp8 import Fp8Linear, multiplies, quantise

CPU = torch.device("cpu")
# Three bits of a fraction: off by up to 1 part in 16, or by half of the smallest step below 2^-6 of the scale.
STEP = 1 / 16


def drawn(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_every_weight_is_off_by_less_than_what_three_bits_cannot_hold() -> None:
    weight = drawn(40, 96) * torch.logspace(-6, 6, 40)[:, None]
    weight[3] = 0
    kept = quantise(weight)
    off = (kept.dequantised() - weight).abs()
    assert (off <= weight.abs() * STEP + kept.scales * 2.0**-10).all()
    assert torch.equal(kept.dequantised()[3], weight[3])
    assert kept.dequantised().isfinite().all()


def test_a_type_of_fewer_bits_holds_every_code() -> None:
    bits = torch.tensor([b for b in range(256) if b & 0x7F != 0x7F], dtype=torch.uint8)
    codes = bits.view(torch.float8_e4m3fn)
    for dtype in (torch.float16, torch.bfloat16):
        assert torch.equal(codes.to(dtype).float(), codes.float())


@pytest.mark.parametrize(
    ("dtype", "bound"), [(torch.float32, 2e-6), (torch.float16, 2e-3), (torch.bfloat16, 1.6e-2)]
)
@pytest.mark.parametrize("bias", [False, True])
def test_widened_it_is_the_product_with_the_kept_weight(dtype: torch.dtype, bound: float, bias: bool) -> None:
    weight, x = quantise(drawn(37, 100)), drawn(5, 100, seed=2).to(dtype)
    added = drawn(37, seed=3).to(dtype) if bias else None
    wanted = x.double() @ weight.dequantised().double().T + (0 if added is None else added.double())
    made = Fp8Linear(weight, added, CPU)(x)
    assert made.dtype == dtype
    assert (made.double() - wanted).abs().max() <= bound * wanted.abs().max()


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


def test_sizes_that_a_product_of_codes_does_not_take_are_widened() -> None:
    assert not Fp8Linear(quantise(drawn(37, 96)), None, CPU, native=True).native
    assert not Fp8Linear(quantise(drawn(48, 90)), None, CPU, native=True).native
    assert not multiplies(CPU)


@pytest.mark.parametrize(
    ("capability", "can"), [((8, 0), False), ((8, 6), False), ((8, 9), True), ((9, 0), True), ((10, 0), True), ((10, 3), False), ((12, 0), True), ((12, 1), False)],
)  # fmt: skip
def test_a_capability_that_is_not_listed_is_not_taken_for_a_listed_one(
    capability: tuple[int, int], can: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.version, "hip", None)
    assert multiplies(torch.device("cuda", 0)) == can
