"""The native matmul: the right sums, and for a row the same bits whoever is beside it."""

from __future__ import annotations

import ctypes

import pytest
import torch

from homebox.kernels.cpu.memory import Arena
from homebox.kernels.cpu.weights import Packed, pack
from homebox.kernels.grouped import GROUP, Grouped, quantise
from tests.kernels.conftest import LEVELS, native

ROWS = (1, 2, 3, 5, 8, 15, 16, 17, 31, 40)
SHAPES = ((16, 32), (40, 96), (100, 64), (192, 576), (33, 1536))
KINDS = ("fp32", "bf16", "int8", "int4", "int8 fine", "int4 fine")


def make(functions: ctypes.CDLL, kind: str, shape: tuple[int, int], bias: bool = False) -> Packed:
    torch.manual_seed(shape[0])
    values = torch.randn(shape) * torch.rand(shape[0], 1)
    weight: torch.Tensor | Grouped = values
    if kind == "bf16":
        weight = values.bfloat16()
    elif kind.startswith("int"):
        weight = quantise(values, 8 if kind.startswith("int8") else 4)
    biases = torch.randn(shape[0]) if bias else None
    return pack(functions, Arena(), weight, biases, fine=kind.endswith("fine"))


def rows(count: int, width: int) -> torch.Tensor:
    """With an outlier here and there, as activations have them."""
    x = torch.randn(count, width, generator=torch.Generator().manual_seed(count))
    return torch.where(torch.rand(count, width, generator=torch.Generator().manual_seed(7)) < 0.01, x * 30, x)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", KINDS)
def test_sums_are_those_of_the_weight_within_the_rounding_of_its_inputs(
    functions: ctypes.CDLL, kind: str, shape: tuple[int, int]
) -> None:
    weight = make(functions, kind, shape, bias=shape[0] == 40)
    plain = weight.rows(torch.arange(shape[0]))
    for count in ROWS:
        x = rows(count, shape[1])
        expected = x.double() @ plain.double().T
        if weight.bias is not None:
            expected += weight.bias[: shape[0]]
        # An input is off by half a step of its group at most; fp32 sums are off by their length in units.
        allowed = 1e-6 * shape[1] ** 0.5 * (x.double().abs() @ plain.double().abs().T) + 1e-6
        if kind.startswith("int"):
            peaks = x.view(count, -1, GROUP).abs().amax(dim=-1, keepdim=True)
            steps = peaks / (2039 if kind.endswith("fine") else 127)
            halves = (steps / 2).expand(-1, -1, GROUP).reshape(count, -1)
            allowed += 1.01 * (halves.double() @ plain.double().abs().T)
        assert ((weight(x).double() - expected).abs() <= allowed).all()


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_has_the_same_bits_alone_and_among_others(functions: ctypes.CDLL, kind: str) -> None:
    weight = make(functions, kind, (100, 576))
    x = rows(40, 576)
    alone = torch.cat([weight(row[None]) for row in x])
    for count in ROWS:
        assert torch.equal(weight(x[:count]), alone[:count])
        assert torch.equal(weight(x[-count:]), alone[-count:])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int8])
def test_torch_may_use_the_matrix_registers_in_between(functions: ctypes.CDLL, dtype: torch.dtype) -> None:
    """On the same thread: its own products shape the registers otherwise, and let go of them."""
    weight = make(functions, "int4 fine", (192, 576))
    x = rows(40, 576)
    before = weight(x)
    other = torch.ones(128, 128).to(dtype)
    if dtype == torch.int8:
        torch._int_mm(other, other)
    else:
        other @ other
    assert torch.equal(weight(x), before)


@pytest.mark.parametrize("kind", KINDS)
def test_bits_do_not_depend_on_the_number_of_threads(functions: ctypes.CDLL, kind: str) -> None:
    weight = make(functions, kind, (192, 576))
    x = rows(17, 576)
    two = weight(x)
    for threads in (1, 3):
        functions.hb_threads(threads, None)
        assert torch.equal(weight(x), two)
    functions.hb_threads(2, None)


def test_packing_changes_no_value(functions: ctypes.CDLL) -> None:
    torch.manual_seed(1)
    values = torch.randn(50, 96)
    order = torch.tensor([49, 0, 17, 17, 3])
    assert torch.equal(pack(functions, Arena(), values).rows(order), values[order])
    assert torch.equal(
        pack(functions, Arena(), values.bfloat16()).rows(order), values.bfloat16().float()[order]
    )
    for bits in (4, 8):
        grouped = quantise(values, bits)
        assert torch.equal(pack(functions, Arena(), grouped).rows(order), grouped.dequantised()[order])


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_number_stays_none(functions: ctypes.CDLL, kind: str) -> None:
    weight = make(functions, kind, (40, 96))
    for bad in (float("nan"), float("inf"), float("-inf")):
        for count in (1, 20):
            x = rows(count, 96)
            x[-1, 70] = bad
            out = weight(x)
            assert not out[-1].isfinite().any()
            assert out[:-1].isfinite().all()


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_almost_nothing_comes_out_as_almost_nothing(functions: ctypes.CDLL, kind: str) -> None:
    weight = make(functions, kind, (40, 96))
    for size in (1e-45, 1e-40, 1e-36, 1e-31):
        assert weight(torch.full((3, 96), size)).abs().max() < 1e-28


@pytest.mark.parametrize(("bits", "share"), [(8, 1 / 254), (4, 1 / 30)])
def test_quantising_is_off_by_half_a_step_at_most(bits: int, share: float) -> None:
    torch.manual_seed(2)
    values = torch.randn(30, 96)
    values[3] = 0.0
    groups = values.view(30, -1, GROUP)
    spread = groups.abs().amax(-1) * 2 if bits == 8 else groups.amax(-1) - groups.amin(-1)
    error = (quantise(values, bits).dequantised() - values).view(30, -1, GROUP).abs().amax(-1)  # type: ignore[arg-type]
    assert (
        error <= spread * share * (0.5 if bits == 8 else 1.0) * 1.1 + 2e-3 * groups.abs().amax(-1) + 1e-6
    ).all()


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_levels_that_fuse_multiply_and_add_give_the_same_bits(kind: str) -> None:
    """AMX, VNNI and AVX2 differ in how they make exact sums; the portable level rounds products by themselves."""
    fused = [level for level in LEVELS if level != "portable"]
    libraries = [native(level) for level in fused]
    if len(libraries) < 2:
        pytest.skip(f"this processor has one such level: {fused}")
    for count in (1, 5, 16, 40):
        x = rows(count, 576)
        results = [make(library, kind, (100, 576), bias=True)(x) for library in libraries]
        assert all(torch.equal(result, results[0]) for result in results), fused
