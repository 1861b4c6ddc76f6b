"""What a step computes in between takes about what was counted: a wide model, so that little else is seen."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from homebox.fit.demand import activation_bytes
from homebox.fit.model import read, shape
from homebox.fit.plan import Plan
from homebox.kernels.attention import BatchShape
from homebox.kernels.cpu.memory import give_back
from homebox.model.loader import load_native
from tests.fit.test_weights import CONFIG, quiet
from tests.fit.test_weights import functions as functions  # a fixture
from tests.model.test_native import Side, save

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
    plain, int8, int4 = (
        activation_bytes(model, Plan("gpu", quantize)) for quantize in ("none", "int8", "int4")
    )
    gate_up = 2 * 14336 * 4096
    assert (int8 - plain, int4 - plain) == (6 * gate_up, 9 * gate_up)
