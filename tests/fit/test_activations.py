"""What a step computes in between takes about what was counted: a wide model, so that little else is seen."""

from __future__ import annotations

import ctypes
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from homebox.fit.demand import activation_bytes, fp8_bytes, loading_bytes, multiplied
from homebox.fit.model import read, shape
from homebox.fit.plan import Plan
from homebox.kernels.attention import BatchShape
from homebox.kernels.cpu.memory import give_back
from homebox.kernels.fp8 import quantise
from homebox.kernels.grouped import quantise as in_groups
from homebox.model.loader import load_native
from tests.fit.test_weights import CONFIG, quiet
from tests.fit.test_weights import functions as functions  # a fixture
from tests.model.test_native import Side, save, save_gguf

CHUNK = 512


def anonymous_bytes() -> int:
    """Of this process, in memory and in no file (proc(5), status)."""
    rows = Path("/proc/self/status").read_text().splitlines()
    return next(int(row.split()[1]) for row in rows if row.startswith("RssAnon:")) * 1024


@pytest.mark.parametrize("mlp", [8192, 16_384])
def test_the_buffers_of_the_native_step(functions: ctypes.CDLL, tmp_path: Path, mlp: int) -> None:
    functions.hb_threads(1, None)
    save(tmp_path, torch.bfloat16, num_hidden_layers=1, hidden_size=128, intermediate_size=mlp)
    native = Side.native(functions, *load_native(tmp_path, functions, "int4", quiet))
    plan = Plan("native", "int4", max_running=1, max_chunk_tokens=CHUNK)
    ids = torch.zeros(CHUNK, dtype=torch.int32)
    native.attention.plan(BatchShape.of([0], [CHUNK], [[range(CHUNK // 16)]]))
    give_back()
    before = anonymous_bytes()
    with torch.inference_mode():
        native.decoder.forward(ids, torch.arange(CHUNK), native.attention)
    grown = anonymous_bytes() - before
    assert grown == pytest.approx(activation_bytes(read(tmp_path), plan), rel=0.1)


def test_larger_steps_take_more_on_every_kind_of_kernel() -> None:
    model = shape("x", CONFIG, "x")
    for plan in (Plan("native"), Plan("reference"), Plan("gpu")):
        asked = activation_bytes(model, plan)
        assert activation_bytes(model, replace(plan, max_chunk_tokens=1024)) > asked, plan
        assert activation_bytes(model, replace(plan, max_running=64)) > asked, plan


def test_a_gpu_is_counted_the_largest_weight_that_a_long_chunk_has_unpacked() -> None:
    model = shape("x", CONFIG | {"intermediate_size": 14336, "hidden_size": 4096}, "x")
    plain, int8, int4, fp8 = (
        activation_bytes(model, Plan("gpu", quantize)) for quantize in ("none", "int8", "int4", "fp8")
    )
    gate_up = 2 * 14336 * 4096
    assert int8 - plain == int4 - plain == fp8 - plain == 2 * gate_up
    multiplied = activation_bytes(model, Plan("gpu", quantize="fp8", fp8_products=True))
    assert multiplied - plain == (14336 + 4) * (512 + 32)  # rows in e4m3


class Height(TorchDispatchMode):
    """The most bytes that tensors which were made meanwhile had at once."""

    def __init__(self) -> None:
        super().__init__()
        self.most = 0
        self._made: list[weakref.ref[torch.Tensor]] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = function(*args, **(kwargs or {}))
        if isinstance(made, torch.Tensor) and not any(
            made.data_ptr() == arg.data_ptr() for arg in args if isinstance(arg, torch.Tensor)
        ):
            self._made.append(weakref.ref(made))
        self.most = max(self.most, self.now)
        return made

    @property
    def now(self) -> int:
        return sum(made.nbytes for made in (each() for each in self._made) if made is not None)


@pytest.fixture
def launches_unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's interpreter copies what a kernel is given."""
    pytest.importorskip("triton", reason="the development extra brings Triton on Linux on x86-64 only")
    from triton.runtime.interpreter import GridExecutor

    launch = GridExecutor.__call__

    def unseen(*args: Any, **kwargs: Any) -> None:
        with _disable_current_modes():
            launch(*args, **kwargs)

    monkeypatch.setattr(GridExecutor, "__call__", unseen)


@pytest.mark.parametrize("quantize", ["int4", "int8"])
@pytest.mark.parametrize("rows", [64, 65])
def test_what_many_rows_make_of_a_weight_in_groups(
    quantize: Literal["int4", "int8"], rows: int, launches_unseen: None
) -> None:
    from homebox.kernels.triton.linear import GroupedLinear

    model = shape("x", CONFIG | {"hidden_size": 256, "intermediate_size": 1024}, "x")
    plain, kept = (Plan("gpu", q, max_running=1, max_chunk_tokens=rows - 1) for q in ("none", quantize))
    counted = activation_bytes(model, kept) - activation_bytes(model, plain)
    linear = GroupedLinear(
        in_groups(torch.randn(2048, 256), 4 if quantize == "int4" else 8), None, torch.device("cpu")
    )
    x = torch.randn(rows, 256).to(torch.bfloat16)
    with Height() as height:
        out = linear(x)
    assert height.most - out.nbytes == pytest.approx(counted, rel=0.01)
    assert counted == (2 * 2048 * 256 if rows > 64 else 0)


@pytest.mark.parametrize("products", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    ("name", "rows"), [("mlp.down_proj", 192), ("gate_up", 192), ("gate_up", 16), ("self_attn.o_proj", 320)]
)
def test_what_many_rows_make_of_a_weight_in_fp8(
    name: str, rows: int, bias: bool, products: bool, launches_unseen: None
) -> None:
    from homebox.kernels.triton.linear import Fp8Linear

    config = CONFIG | {
        "hidden_size": 256,
        "intermediate_size": 1024,
        "mlp_bias": bias,
        "attention_bias": bias,
    }
    plan = Plan("gpu", "fp8", max_running=16, max_chunk_tokens=rows - 16)
    model = shape("x", config, "x")
    weight = next(each for each in multiplied(model, plan) if each.name == name)
    linear = Fp8Linear(
        quantise(torch.randn(weight.outputs, weight.inputs)),
        torch.zeros(weight.outputs, dtype=torch.bfloat16) if bias else None,
        torch.device("cpu"), native=products,
    )  # fmt: skip
    assert weight.kind == "fp8" and weight.bias == bias
    x = torch.randn(rows, weight.inputs).to(torch.bfloat16)
    with Height() as height:
        out = linear(x)
    counted = fp8_bytes(weight.outputs, weight.inputs, rows, bias, products)
    assert height.most - out.nbytes == pytest.approx(counted, rel=0.01)


def test_of_weights_that_lie_side_by_side_each_is_counted_by_itself(tmp_path: Path) -> None:
    save_gguf(tmp_path, ("blk.0.attn_v", "blk.0.ffn_up"))
    found = [(each.name, each.kind, each.outputs) for each in multiplied(read(tmp_path), Plan("gpu", "fp8"))]
    assert found == [
        ("qkv", "int4", 64), ("qkv", "int4", 32), ("qkv", "fp8", 32), ("self_attn.o_proj", "int4", 64),
        ("gate_up", "int4", 96), ("gate_up", "fp8", 96), ("mlp.down_proj", "int4", 64), ("lm_head", "int8", 50),
    ]  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_matrix_on_its_way_to_fp8_takes_what_was_counted(tmp_path: Path, dtype: torch.dtype) -> None:
    model = read(save(tmp_path, dtype, num_hidden_layers=1, intermediate_size=4096))
    file = torch.randn(4096, 64).to(dtype)
    with Height() as height:
        quantise(file)
    assert loading_bytes(model, Plan("gpu", "fp8")) == pytest.approx(file.nbytes + height.most, rel=0.01)
