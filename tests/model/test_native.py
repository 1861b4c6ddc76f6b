"""The native decoder says what the decoder in torch says, and its weights are the file's."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from homebox.engine.compute import choose
from homebox.errors import BadFile, KernelsMissing
from homebox.kernels.attention import Attention, BatchShape, PagedCache
from homebox.kernels.cpu import abi
from homebox.kernels.cpu.attention import BlockCache, NativeAttention
from homebox.kernels.cpu.library import Absent, library
from homebox.kernels.cpu.weights import Packed
from homebox.kernels.grouped import GROUP, Bits, quantise
from homebox.kernels.linear import Linear
from homebox.kernels.reference import ReferenceAttention
from homebox.model.decoder import Decoder
from homebox.model.loader import load, load_native
from homebox.model.native import NativeDecoder, NativeWeights
from homebox.model.spec import DecoderSpec
from homebox.wire.frames import Start
from tests.kernels.cpu_builds import REAL, needs_compiler

VOCABULARY, BLOCKS = 320, 60
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}  # fmt: skip
FAMILIES: dict[str, dict[str, Any]] = {
    "heads of 16 that share": {"num_key_value_heads": 2},
    "one key head, tied": {"num_key_value_heads": 1, "head_dim": 32, "tie_word_embeddings": True},
    "biases everywhere": {"num_key_value_heads": 4, "attention_bias": True, "mlp_bias": True},
    "llama3 rope, heads of 80": {"num_key_value_heads": 2, "head_dim": 80, "rope_parameters": LLAMA3},
    "linear rope, eight share a key": {
        "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 16,
        "rope_parameters": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 2.0},
    },
}  # fmt: skip

# Each step: of sequence i the tokens from .. to. Chunks, single tokens and both at once, over all borders of blocks,
# tiles of 64 and splits of 512.
STEPS: list[dict[int, tuple[int, int]]] = [
    {0: (0, 5), 1: (0, 40), 2: (0, 1)},
    {0: (5, 6), 1: (40, 73), 2: (1, 65)},
    {2: (65, 66), 0: (6, 7)},
    {1: (73, 511), 0: (7, 8)},
    *({1: (511 + i, 512 + i), 0: (8 + i, 9 + i), 2: (66 + i, 67 + i)} for i in range(3)),
]
TABLES = [
    torch.randperm(BLOCKS, generator=torch.Generator().manual_seed(4))[start:end].tolist()
    for start, end in pairwise((0, 1, 34, 40))
]
IDS = torch.randint(0, VOCABULARY, (3, 520), generator=torch.Generator().manual_seed(5), dtype=torch.int32)


@pytest.fixture(scope="module")
def functions() -> ctypes.CDLL:
    found = library()
    if isinstance(found, Absent):
        if REAL:
            pytest.fail(found.why)
        pytest.skip(found.why)
    functions = abi.declare(found.functions)
    functions.hb_threads(2, None)
    return functions


pytestmark = pytest.mark.usefixtures("one_thread_of_torch")


def save(folder: Path, dtype: torch.dtype = torch.float32, **config: Any) -> Path:
    """A tiny random model; norms and biases are random too."""
    torch.manual_seed(3)
    sizes = {
        "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_hidden_layers": 3,
        "vocab_size": VOCABULARY,
    }  # fmt: skip
    model = LlamaForCausalLM(LlamaConfig(max_position_embeddings=1024, **sizes | config))
    for name, parameter in model.named_parameters():
        torch.nn.init.normal_(
            parameter, 1.0 if "norm" in name else 0.0, 0.3 if parameter.dim() == 1 else 0.15
        )
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    model.save_pretrained(folder)
    return folder


def quiet(*_: object) -> None:
    """Nobody is told how far loading is."""


def in_torch(folder: Path) -> Decoder:
    return load(folder, torch.float32, torch.device("cpu"), quiet)


@dataclass
class Side:
    """A decoder with blocks of its own."""

    decoder: Decoder | NativeDecoder
    attention: Attention

    @staticmethod
    def reference(decoder: Decoder, windows: Sequence[int | None] = ()) -> Side:
        spec, groups, owners = _windowed(decoder.spec, windows)
        cache = PagedCache(
            layer_groups=owners, blocks=(BLOCKS,) * len(groups), block_size=16, kv_heads=spec.kv_heads,
            head_dim=spec.head_dim, dtype=torch.float32, device=torch.device("cpu"),
        )  # fmt: skip
        return Side(Decoder(spec, decoder.weights), ReferenceAttention(cache, groups, spec.heads))

    @staticmethod
    def native(
        functions: ctypes.CDLL, spec: DecoderSpec, weights: NativeWeights, windows: Sequence[int | None] = ()
    ) -> Side:
        spec, groups, owners = _windowed(spec, windows)
        cache = BlockCache(
            layer_groups=owners, blocks=(BLOCKS,) * len(groups), kv_heads=spec.kv_heads, head_dim=spec.head_dim,
            dtype=torch.float32,
        )  # fmt: skip
        attention = NativeAttention(functions, cache, groups, spec.heads)
        return Side(NativeDecoder(spec, weights, attention), attention)

    def run(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Hidden states of all tokens of STEPS, and the logits of them."""
        hidden = []
        with torch.inference_mode():
            for step in STEPS:
                starts, counts = [start for start, _ in step.values()], [b - a for a, b in step.values()]
                tables = [TABLES[i] for i in step]
                self.attention.plan(BatchShape.of(starts, counts, [tables] * len(self.attention.windows)))
                ids = torch.cat([IDS[i, a:b] for i, (a, b) in step.items()])
                positions = torch.cat([torch.arange(a, b, dtype=torch.int32) for a, b in step.values()])
                hidden.append(self.decoder.forward(ids, positions, self.attention))
            together = torch.cat(hidden)
            return together, self.decoder.logits(together)


def _windowed(
    spec: DecoderSpec, windows: Sequence[int | None]
) -> tuple[DecoderSpec, tuple[int | None, ...], tuple[int, ...]]:
    """With these windows; the groups of layers that see equally far, and which group a layer is in."""
    spec = replace(spec, windows=tuple(windows) or spec.windows)
    groups = tuple(dict.fromkeys(spec.windows))
    return spec, groups, tuple(groups.index(window) for window in spec.windows)


@pytest.mark.parametrize("family", FAMILIES)
def test_hidden_states_and_logits_are_those_of_torch(
    functions: ctypes.CDLL, tmp_path: Path, family: str
) -> None:
    save(tmp_path, **FAMILIES[family])
    native = Side.native(functions, *load_native(tmp_path, functions, "none", quiet))
    for ours, theirs in zip(native.run(), Side.reference(in_torch(tmp_path)).run(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_layers_may_see_differently_far(functions: ctypes.CDLL, tmp_path: Path) -> None:
    save(tmp_path, num_key_value_heads=2)
    windows = (30, None, 100)
    native = Side.native(functions, *load_native(tmp_path, functions, "none", quiet), windows)
    ours, theirs = native.run()[0], Side.reference(in_torch(tmp_path), windows).run()[0]
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    everything = Side.reference(in_torch(tmp_path)).run()[0]
    assert (everything - theirs).abs().max() > 0.1, "windows were meant to matter"


@dataclass
class Rounding:
    """A matmul whose rows are rounded by groups of 32 before, as integer weights meet them (linear.h)."""

    inner: Linear
    most: int
    nbytes: int = 0

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        groups = x.view(len(x), -1, GROUP)
        steps = groups.abs().amax(-1, keepdim=True) / self.most
        return self.inner(((groups / steps).round() * steps).view(x.shape))


def steps_of(weight: Packed) -> int:
    return 2039 if weight.struct.fine else 127


@pytest.mark.parametrize("bits", [8, 4])
def test_quantised_it_is_torch_on_the_quantised_weights_with_rounded_activations(
    functions: ctypes.CDLL, tmp_path: Path, bits: Bits
) -> None:
    spec, weights = load_native(save(tmp_path, num_key_value_heads=2), functions, f"int{bits}", quiet)
    assert weights.kinds() == {8: "int8", 4: "int4 and int8"}[bits]
    file = tmp_path / "model.safetensors"
    stored = load_file(file)
    for name, tensor in stored.items():
        if tensor.dim() == 2:
            kept = name.startswith(("model.embed_tokens", "lm_head"))
            stored[name] = quantise(tensor, 8 if kept else bits).dequantised()
    save_file(stored, file, {"format": "pt"})
    decoder = in_torch(tmp_path)
    exact = Side.reference(decoder).run()
    for layer, packed in zip(decoder.weights.layers, weights.layers, strict=True):
        layer.qkv = Rounding(layer.qkv, steps_of(packed.q))
        layer.output = Rounding(layer.output, steps_of(packed.output))
        layer.gate_up = Rounding(layer.gate_up, steps_of(packed.gate))
        layer.down = Rounding(layer.down, steps_of(packed.down))
    decoder.weights.head = Rounding(decoder.weights.head, steps_of(weights.head))
    rounded, ours = Side.reference(decoder).run(), Side.native(functions, spec, weights).run()
    for i in range(2):  # hidden states, logits
        # A value between two steps may fall to either side, and is then off by one for all who see it. Of the rows that
        # no such value meets the arithmetic is the same, but for the finest steps (two bytes).
        assert off(ours[i], rounded[i]).quantile(0.05) < 1e-4
        assert off(ours[i], rounded[i]).mean() < 0.5 * off(exact[i], rounded[i]).mean() < 0.05


def off(some: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Of each row: how long the difference is, in lengths of the row."""
    return (some - right).norm(dim=-1) / right.norm(dim=-1)


def whole(weight: Packed) -> torch.Tensor:
    return weight.rows(torch.arange(weight.shape[0]))


def matrices(weights: NativeWeights) -> dict[str, Packed]:
    """Under the names that checkpoints have."""
    found = {"model.embed_tokens": weights.embedding, "lm_head": weights.head}
    for i, layer in enumerate(weights.layers):
        attention = {"q": layer.q, "k": layer.k, "v": layer.v, "o": layer.output}
        mlp = {"gate": layer.gate, "up": layer.up, "down": layer.down}
        found |= {f"model.layers.{i}.self_attn.{name}_proj": weight for name, weight in attention.items()}
        found |= {f"model.layers.{i}.mlp.{name}_proj": weight for name, weight in mlp.items()}
    return found


def test_bf16_stays_bf16_and_is_exact(functions: ctypes.CDLL, tmp_path: Path) -> None:
    save(tmp_path, torch.bfloat16, num_key_value_heads=2)
    stored = load_file(tmp_path / "model.safetensors")
    spec, weights = load_native(tmp_path, functions, "auto", quiet)
    assert weights.kinds() == "bf16"
    for name, weight in matrices(weights).items():
        assert torch.equal(whole(weight), stored[f"{name}.weight"].float()), name
    ours = Side.native(functions, spec, weights).run()[0]
    torch.testing.assert_close(ours, Side.reference(in_torch(tmp_path)).run()[0], rtol=1e-4, atol=1e-4)


def save_gguf(folder: Path, floats: Sequence[str] = ()) -> dict[str, torch.Tensor]:
    """One layer, Q4_1 and Q8_0, and `floats` in F16. Returns what the `gguf` package reads from it, by GGUF name."""
    random = torch.Generator().manual_seed(8)
    shapes = {
        "token_embd": (50, 64), "blk.0.attn_q": (64, 64), "blk.0.attn_k": (32, 64), "blk.0.attn_v": (32, 64),
        "blk.0.attn_output": (64, 64), "blk.0.ffn_gate": (96, 64), "blk.0.ffn_up": (96, 64),
        "blk.0.ffn_down": (64, 96),
    }  # fmt: skip
    folder.mkdir(exist_ok=True)
    writer = gguf.GGUFWriter(folder / "model.gguf", "llama")
    writer.add_block_count(1)
    writer.add_context_length(1024)
    writer.add_embedding_length(64)
    writer.add_feed_forward_length(96)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
        writer.add_tensor(f"{name}.weight", torch.rand(64, generator=random).numpy())
    read = {}
    for name, shape in shapes.items():
        kind = gguf.GGMLQuantizationType.Q8_0 if name == "token_embd" else gguf.GGMLQuantizationType.Q4_1
        kind = gguf.GGMLQuantizationType.F16 if name in floats else kind
        stored = gguf.quants.quantize(torch.randn(shape, generator=random).numpy(), kind)
        read[name] = torch.from_numpy(gguf.quants.dequantize(stored, kind))
        writer.add_tensor(f"{name}.weight", stored, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return read


def test_groups_of_a_gguf_keep_their_bits(functions: ctypes.CDLL, tmp_path: Path) -> None:
    read = save_gguf(tmp_path)
    _, weights = load_native(tmp_path, functions, "auto", quiet)
    assert weights.kinds() == "int4 and int8" and weights.head is weights.embedding
    for name in ("attn_q", "attn_k"):  # rotary pairs lie side by side in a GGUF, in halves here
        pairs = read[f"blk.0.{name}"]
        read[f"blk.0.{name}"] = pairs.view(-1, 8, 2, 64).transpose(1, 2).reshape(pairs.shape)
    layer = weights.layers[0]
    loaded = {
        "token_embd": weights.embedding, "blk.0.attn_q": layer.q, "blk.0.attn_k": layer.k, "blk.0.attn_v": layer.v,
        "blk.0.attn_output": layer.output, "blk.0.ffn_gate": layer.gate, "blk.0.ffn_up": layer.up,
        "blk.0.ffn_down": layer.down,
    }  # fmt: skip
    assert loaded.keys() == read.keys()
    for name, weight in loaded.items():
        assert torch.equal(whole(weight), read[name]), name


MISFITS: dict[str, dict[str, Any]] = {
    "24, 64 and 96": {"head_dim": 24},
    "16, 48 and 96": {"hidden_size": 48, "head_dim": 16},
    "16, 64 and 80": {"intermediate_size": 80},
    "528, 64 and 96": {"head_dim": 528},
}


@pytest.mark.parametrize("numbers", MISFITS)
def test_a_model_that_does_not_fit_is_refused_with_its_numbers(
    functions: ctypes.CDLL, tmp_path: Path, numbers: str
) -> None:
    save(tmp_path, num_hidden_layers=1, **MISFITS[numbers])
    with pytest.raises(BadFile, match=numbers) as caught:
        load_native(tmp_path, functions, "auto", quiet)
    assert "reference" in (caught.value.hint or "")


@needs_compiler
def test_a_model_that_does_not_fit_runs_on_the_reference_unless_native_kernels_are_insisted_on(
    tmp_path: Path,
) -> None:
    save(tmp_path, num_hidden_layers=1, head_dim=24)
    compute = choose(Start(str(tmp_path)), quiet).load()
    assert compute.name == "reference" and compute.weights == "fp32"
    assert len(compute.notes) == 1 and "heads of 24 and layers of 64 and 96" in compute.notes[0]
    with pytest.raises(KernelsMissing, match="heads of 24") as caught:
        choose(Start(str(tmp_path), kernels="native"), quiet)
    assert 'kernels = "auto"' in (caught.value.hint or "")
