"""A weight in 8-bit floating point: what it keeps of a weight, and where such numbers are multiplied."""

from __future__ import annotations

import pytest
import torch

from homebox.kernels import fp8
from homebox.kernels.fp8 import multiplies, quantise

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
    ("capability", "can"), [((8, 0), False), ((8, 6), False), ((8, 9), True), ((9, 0), True), ((10, 0), True), ((10, 3), False), ((12, 0), True), ((12, 1), False)],
)  # fmt: skip
def test_a_capability_that_is_not_listed_is_not_taken_for_a_listed_one(
    capability: tuple[int, int], can: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not multiplies(torch.device("cpu"))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(fp8, "_has_product", lambda device: True)
    monkeypatch.setattr(torch.version, "hip", None)
    assert multiplies(torch.device("cuda", 0)) == can
