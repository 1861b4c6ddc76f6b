"""What a model becomes on its way to a GPU: each matrix in the form that is asked for, those that meet the same rows as one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from homebox.kernels.fp8 import quantise
from homebox.kernels.grouped import quantise as in_groups
from homebox.kernels.linear import Linear, PlainLinear, SideBySide, linear
from homebox.model.decoder import Weights
from homebox.model.loader import load_for_device
from tests.model.test_native import quiet, save, save_gguf

pytest.importorskip("triton", reason="the development extra brings Triton on Linux on x86-64 only")

from homebox.kernels.triton.linear import Fp8Linear, GroupedLinear

CPU = torch.device("cpu")


def loaded(folder: Path, quantize: str, dtype: torch.dtype = torch.float32) -> Weights:
    return load_for_device(folder, dtype, CPU, quantize, quiet).weights


def product(linear: Linear, inputs: int) -> torch.Tensor:
    """With more rows than our own kernels take, so that nothing is interpreted."""
    return linear(torch.eye(inputs).repeat(100 // inputs + 1, 1))[:inputs]


@pytest.mark.parametrize("tied", [False, True])
def test_in_fp8_queries_keys_and_values_are_one_matrix_with_a_scale_for_each_output(
    tmp_path: Path, tied: bool
) -> None:
    save(tmp_path, num_key_value_heads=2, attention_bias=True, tie_word_embeddings=tied)
    plain, ours = loaded(tmp_path, "none"), loaded(tmp_path, "fp8")
    for before, after in zip(plain.layers, ours.layers, strict=True):
        for name in ("qkv", "output", "gate_up", "down"):
            made, right = getattr(after, name), getattr(before, name)
            assert isinstance(made, Fp8Linear) and isinstance(right, PlainLinear)
            wanted = linear(quantise(right._weight).dequantised(), right._bias)
            inputs = right._weight.shape[1]
            torch.testing.assert_close(product(made, inputs), product(wanted, inputs))
    # The embedding is looked up, and the head moves the likeliest token most.
    assert torch.equal(ours.embedding, plain.embedding)
    assert isinstance(ours.head, GroupedLinear) and ours.head.bits == 8
    assert isinstance(plain.head, PlainLinear)
    assert torch.equal(ours.head.unpacked(torch.float32), in_groups(plain.head._weight, 8).dequantised())


def test_what_a_file_has_quantised_stays_so_and_lies_beside_what_it_has_not(tmp_path: Path) -> None:
    save_gguf(tmp_path, ("blk.0.attn_v", "blk.0.ffn_gate", "blk.0.ffn_up"))
    kept, ours, plain = (loaded(tmp_path, quantize).layers[0] for quantize in ("auto", "fp8", "none"))
    assert isinstance(ours.qkv, SideBySide)
    assert [type(part) for part in ours.qkv._parts] == [GroupedLinear, GroupedLinear, Fp8Linear]
    assert isinstance(ours.gate_up, Fp8Linear) and isinstance(kept.gate_up, PlainLinear)
    assert isinstance(ours.down, GroupedLinear) and ours.down.bits == 4
    assert torch.equal(product(ours.down, 96), product(kept.down, 96))
    made, right = product(ours.qkv, 64), product(plain.qkv, 64)
    torch.testing.assert_close(made[:, :96], right[:, :96])
    off = (made[:, 96:] - right[:, 96:]).abs()
    assert off.max() > 0 and (off <= right[:, 96:].abs() / 16 + right.abs().max() * 2.0**-17).all()
