"""What is counted from headers is what lies in memory, for every kind of kernel and every shape."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from homebox.errors import BadFile
from homebox.fit.demand import demand
from homebox.fit.model import read, shape
from homebox.fit.plan import Kernels, Plan, Quantize, fits_native, weight_bytes
from homebox.kernels.attention import PagedCache
from homebox.kernels.cpu import abi
from homebox.kernels.cpu.attention import BlockCache, kv_dtype
from homebox.kernels.cpu.library import Absent, library
from homebox.kernels.grouped import Bits, Grouped, quantise
from homebox.kernels.linear import SideBySide
from homebox.model.loader import load, load_for_device, load_native
from homebox.model.native import NativeWeights, runs_natively
from tests.kernels.cpu_builds import REAL
from tests.model.test_native import MISFITS, save, save_gguf

SHAPES: dict[str, dict[str, Any]] = {
    "shared keys, untied": {"num_key_value_heads": 2},
    "one key head, tied": {"num_key_value_heads": 1, "head_dim": 32, "tie_word_embeddings": True},
    "biases everywhere": {"num_key_value_heads": 4, "attention_bias": True, "mlp_bias": True},
    "outputs that fill no tile": {"num_key_value_heads": 2, "vocab_size": 333, "num_hidden_layers": 1},
    "an odd number of groups": {"hidden_size": 96, "head_dim": 32, "intermediate_size": 160},
}
QUANTIZE: tuple[Quantize, ...] = ("auto", "none", "int8", "int4")
ON_A_GPU: Quantize = "fp8"


@pytest.fixture(scope="module")
def functions() -> ctypes.CDLL:
    found = library()
    if isinstance(found, Absent):
        if REAL:
            pytest.fail(found.why)
        pytest.skip(found.why)
    return abi.declare(found.functions)


def quiet(*_: object) -> None:
    """Nobody is told how far loading is."""


def live(weights: NativeWeights) -> int:
    """Bytes of the tensors themselves."""
    layers = [part for layer in weights.layers for part in vars(layer).values()]
    parts = {id(part): part for part in (weights.embedding, weights.head, weights.norm, *layers)}
    return sum(
        part.nbytes
        if isinstance(part, torch.Tensor)
        else part.data.nbytes + (part.bias.nbytes if part.bias is not None else 0)
        for part in parts.values()
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("shape", SHAPES)
def test_native_weights_and_blocks_take_what_was_counted(
    functions: ctypes.CDLL, tmp_path: Path, shape: str, dtype: torch.dtype
) -> None:
    model = read(save(tmp_path, dtype, **SHAPES[shape]))
    for quantize in QUANTIZE:
        spec, weights = load_native(tmp_path, functions, quantize, quiet)
        asked = demand(model, Plan("native", quantize))
        assert (asked.weights, asked.kinds) == (live(weights), weights.kinds()), quantize
        cache = BlockCache(
            layer_groups=(0,) * spec.layers, blocks=(5,), kv_heads=spec.kv_heads, head_dim=spec.head_dim,
            dtype=kv_dtype(exact=weights.kinds() == "fp32"),
        )  # fmt: skip
        assert 5 * asked.kv_block == sum(part.nbytes for part in (*cache.k, *cache.v)), quantize


def test_what_a_gguf_file_has_quantised_stays_so_and_is_counted_so(
    functions: ctypes.CDLL, tmp_path: Path
) -> None:
    save_gguf(tmp_path)
    for quantize in QUANTIZE:
        _, weights = load_native(tmp_path, functions, quantize, quiet)
        asked = demand(read(tmp_path), Plan("native", quantize))
        assert (asked.weights, asked.kinds) == (live(weights), weights.kinds()), quantize


@pytest.mark.parametrize("shape", SHAPES)
def test_reference_weights_and_blocks_take_what_was_counted(tmp_path: Path, shape: str) -> None:
    model = read(save(tmp_path, **SHAPES[shape]))
    decoder = load(tmp_path, torch.float32, torch.device("cpu"), quiet)
    layers = [part for layer in decoder.weights.layers for part in vars(layer).values()]
    held = [decoder.weights.embedding, decoder.weights.norm, decoder.weights.head, *layers]
    asked = demand(model, Plan("reference", "int4"))
    assert asked.weights == sum(part.nbytes for part in held)
    spec = decoder.spec
    cache = PagedCache(
        layer_groups=(0,) * spec.layers, blocks=(5,), block_size=16, kv_heads=spec.kv_heads,
        head_dim=spec.head_dim, dtype=torch.float32, device=torch.device("cpu"),
    )  # fmt: skip
    assert 5 * asked.kv_block == sum(part.nbytes for part in (*cache.k, *cache.v))


@pytest.mark.parametrize("shape", SHAPES)
def test_on_a_gpu_weights_take_what_their_groups_do(tmp_path: Path, shape: str) -> None:
    model = read(save(tmp_path, torch.bfloat16, **SHAPES[shape]))
    tensors = load_file(tmp_path / "model.safetensors")
    assert weight_bytes(model, Plan("gpu")) == sum(tensor.nbytes for tensor in tensors.values())
    kept: dict[Quantize, Bits] = {"int8": 8, "int4": 4}
    for quantize, bits in kept.items():
        total = 0
        for name, tensor in tensors.items():
            if "embed_tokens" in name:  # stays plain; where there is no other, the head is made of it
                total += tensor.nbytes
                total += grouped_bytes(quantise(tensor, 8)) if model.spec.tied_head else 0
            elif tensor.dim() == 2:
                total += grouped_bytes(quantise(tensor, 8 if "lm_head" in name else bits))
            else:
                total += tensor.nbytes
        assert weight_bytes(model, Plan("gpu", quantize)) == total, quantize


FLOATS = ("blk.0.attn_v", "blk.0.ffn_gate", "blk.0.ffn_up", "token_embd")


@pytest.mark.parametrize("shape", [*SHAPES, "all of it quantised", "some of it quantised"])
def test_what_is_loaded_for_a_gpu_takes_what_was_counted(tmp_path: Path, shape: str) -> None:
    pytest.importorskip("triton", reason="the development extra brings Triton on Linux on x86-64 only")
    if shape in SHAPES:
        save(tmp_path, torch.float16, **SHAPES[shape])
    else:
        save_gguf(tmp_path, FLOATS if shape.startswith("some") else ())
    model = read(tmp_path)
    for quantize in (*QUANTIZE, ON_A_GPU):
        _, weights = load_for_device(tmp_path, torch.bfloat16, torch.device("cpu"), quantize, quiet)
        layers = [part for layer in weights.layers for part in vars(layer).values()]
        held = set(tensors([weights.embedding, weights.head, weights.norm, *layers]))
        asked = weight_bytes(model, Plan("gpu", quantize))
        assert asked == sum(size for _, size in held), quantize


def tensors(parts: Iterable[object]) -> Iterator[tuple[int, int]]:
    """Where in memory those of these weights lie, and their bytes: the same tensor may be in several."""
    for part in parts:
        if isinstance(part, torch.Tensor):
            yield part.data_ptr(), part.nbytes
        elif isinstance(part, SideBySide):
            yield from tensors(part._parts)
        else:
            yield from tensors(each for each in vars(part).values() if isinstance(each, torch.Tensor))


def grouped_bytes(weight: Grouped) -> int:
    """Two 4-bit codes share a byte."""
    codes = weight.codes.nbytes // (2 if weight.bits == 4 else 1)
    return codes + weight.scales.nbytes + (weight.minimums.nbytes if weight.minimums is not None else 0)


def test_a_config_alone_is_counted_like_the_model_that_it_describes(tmp_path: Path) -> None:
    whole = read(save(tmp_path, torch.bfloat16, num_key_value_heads=2, attention_bias=True))
    (tmp_path / "model.safetensors").unlink()
    alone = read(tmp_path)
    kernels: tuple[Kernels, ...] = ("native", "reference", "gpu")
    for plan in (Plan(each, quantize) for each in kernels for quantize in QUANTIZE):
        assert demand(alone, plan) == demand(whole, plan), plan
    assert read(tmp_path / "config.json").spec == whole.spec


def test_which_shapes_the_native_kernels_compute_is_known_without_them(tmp_path: Path) -> None:
    for config in (*SHAPES.values(), *MISFITS.values()):
        spec = read(save(tmp_path, **config | {"num_hidden_layers": 1})).spec
        assert fits_native(spec) == runs_natively(spec), config


CONFIG: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 96, "vocab_size": 300,
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model_type": "mamba"}, "family 'mamba' is not supported yet"),
        ({"num_hidden_layers": 10**12}, "layers = 1000000000000"),
        ({"vocab_size": -5}, "vocab_size = -5"),
        ({"hidden_size": None}, "NoneType"),
        ({"auto_map": {"AutoModel": "x.py"}}, "its own code"),
    ],
)
def test_a_config_that_cannot_be_run_is_refused_with_its_reason(change: dict[str, Any], said: str) -> None:
    with pytest.raises(BadFile, match=said):
        shape("x", CONFIG | change, "x/config.json")


def test_a_folder_is_refused_for_what_its_headers_lack(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match=r"no config\.json"):
        read(tmp_path)
    with pytest.raises(BadFile, match=r"is not there: no config\.json"):
        read(tmp_path / "nothing")
    save(tmp_path, num_key_value_heads=2)
    config = (tmp_path / "config.json").read_text()
    (tmp_path / "config.json").write_text(config.replace('"num_hidden_layers": 3', '"num_hidden_layers": 4'))
    with pytest.raises(BadFile, match=r"model\.layers\.3\.self_attn\.q_proj\.weight is missing"):
        read(tmp_path)
    (tmp_path / "config.json").write_text(config.replace('"vocab_size": 320', '"vocab_size": 321'))
    with pytest.raises(BadFile, match=r"embed_tokens.weight is \[320, 64\], the config says \[321, 64\]"):
        read(tmp_path)
