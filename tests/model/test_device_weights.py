"""What a model becomes on its way to a GPU: each matrix in the form that is asked for, those that meet the same rows as one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from homebox.bench.quality import Tally, Teacher, Windows, compare, windows
from homebox.kernels.attention import PagedCache
from homebox.kernels.fp8 import quantise
from homebox.kernels.grouped import quantise as in_groups
from homebox.kernels.linear import Linear, PlainLinear, SideBySide, linear
from homebox.kernels.reference import ReferenceAttention
from homebox.model.decoder import Decoder, LayerWeights, Weights
from homebox.model.loader import GgufSource, load, load_for_device
from homebox.model.spec import DecoderSpec
from tests.model.test_native import quiet, save, save_gguf

pytest.importorskip("triton", reason="the development extra brings Triton on Linux on x86-64 only")

from homebox.kernels.triton.linear import Fp8Linear, GroupedLinear

CPU = torch.device("cpu")


pytestmark = pytest.mark.usefixtures("one_thread_of_torch")


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


def plainly(weights: Weights) -> Weights:
    """The same numbers, multiplied without the interpreter."""

    def plain(part: Linear | torch.Tensor) -> Linear | torch.Tensor:
        if not isinstance(part, GroupedLinear):
            return part
        return linear(part.unpacked(torch.float32), part.bias)

    layers = [LayerWeights(**{k: plain(part) for k, part in vars(layer).items()}) for layer in weights.layers]
    return Weights(weights.embedding, layers, weights.norm, plain(weights.head))


def compared(folder: Path, spec: DecoderSpec, weights: Weights, texts: Windows) -> dict[str, float]:
    """With the model of this folder in fp32."""

    def side(decoder: Decoder) -> Teacher:
        each = -(-len(texts[0]) // 16)
        cache = PagedCache(
            layer_groups=(0,) * spec.layers, blocks=(each * len(texts),), block_size=16, kv_heads=spec.kv_heads,
            head_dim=spec.head_dim, dtype=torch.float32, device=CPU,
        )  # fmt: skip
        return Teacher(decoder, ReferenceAttention(cache, (None,), spec.heads), len(texts[0]))

    exact, ours = side(load(folder, torch.float32, CPU, quiet)), side(Decoder(spec, weights))
    tally = Tally()
    compare(tally, exact.at_once(texts), ours.at_once(texts), texts)
    return tally.found()


def test_weights_in_fp8_are_further_off_than_int8_and_near_all_the_same(tmp_path: Path) -> None:
    save(tmp_path, num_key_value_heads=2)
    texts = [[(7 * place + 3 * i * i) % 300 for i in range(100)] for place in range(6)]
    found = {}
    for quantize in ("int8", "fp8"):
        spec, weights = load_for_device(tmp_path, torch.float32, CPU, quantize, quiet)
        found[quantize] = compared(tmp_path, spec, plainly(weights), texts)
    assert found["fp8"]["agreement"] >= 0.7 and found["fp8"]["kl_mean"] <= 0.03, found
    assert found["int8"]["kl_mean"] < found["fp8"]["kl_mean"] / 4, found


@pytest.mark.long
@pytest.mark.model
def test_how_far_off_the_default_model_is_with_weights_in_fp8(
    default_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Too far for a default (97%, 0.01), and no further than three bits of a fraction put it (docs/decisions/032)."""
    # What a file has quantised stays so: as if this one had not.
    monkeypatch.setattr(GgufSource, "weight", GgufSource.get)
    spec, weights = load_for_device(default_model, torch.float32, CPU, "fp8", quiet)
    found = compared(default_model, spec, plainly(weights), windows(default_model, 24)[::4])
    assert found["positions"] > 1200
    assert found["agreement"] >= 0.9 and found["kl_mean"] <= 0.03, found
