"""How does a model get from disk into memory?

`load(folder)` finds what the folder holds (a GGUF file, or `config.json` with safetensors) and fills a `Decoder`, one
tensor at a time: peak memory is the model plus its largest tensor. Both kinds of file are a `Source` of named fp32
tensors in the layout of Hugging Face checkpoints; packing queries, keys and values into one matrix happens once, here.
`load_native` fills what the CPU's own kernels compute with, and there weights stay as the file has them.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import torch

from homebox.errors import BadFile
from homebox.formats.gguf import GGUF, TensorType, open_gguf
from homebox.formats.safetensors import Folder, open_folder
from homebox.kernels.cpu.memory import Arena
from homebox.kernels.cpu.weights import Packed, pack
from homebox.kernels.fp8 import Fp8
from homebox.kernels.fp8 import quantise as quantise_fp8
from homebox.kernels.grouped import Grouped, quantise
from homebox.kernels.linear import Linear, PlainLinear, SideBySide, linear
from homebox.model.decoder import Decoder, LayerWeights, Weights
from homebox.model.dequantise import dequantise, grouped, is_plain, plain
from homebox.model.native import NativeLayer, NativeWeights, runs_natively
from homebox.model.spec import DecoderSpec, from_gguf, from_hf, gguf_name

Report = Callable[[str, int, int], None]  # stage, done, total

# With 4 bits, and in fp8, these move the logits most, for what they weigh: they are kept in groups of 8 (docs/decisions/032).
_KEPT_AT_8 = ("embed_tokens", "lm_head")

# What meets these is rounded to 15 bits, not 8: there the rounding shows most in the next token (docs/decisions/024).
_FINE = (*_KEPT_AT_8, "q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")


class DeviceWeights(NamedTuple):
    spec: DecoderSpec
    weights: Weights


class NativeModel(NamedTuple):
    spec: DecoderSpec
    weights: NativeWeights


# A matrix on its way to a GPU: floats of any type, or how it is kept there.
Stored = torch.Tensor | Grouped | Fp8

_TORCH_DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


class Source(Protocol):
    spec: DecoderSpec

    def get(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """The tensor with this Hugging Face name. Raises BadFile where it is missing or of another shape."""

    def weight(self, name: str, shape: tuple[int, int]) -> torch.Tensor | Grouped:
        """The same as the file has it: its own float type, or its groups."""

    def close(self) -> None: ...


def load(folder: Path, dtype: torch.dtype, device: torch.device, report: Report) -> Decoder:
    """Raises BadFile where the folder holds no model that we can run."""
    source = _open(folder)
    try:
        return _build(source, dtype, device, report)
    finally:
        source.close()


def load_native(
    folder: Path, functions: ctypes.CDLL, quantize: str, report: Report, nodes: Sequence[int] = ()
) -> NativeModel:
    """For the native kernels. `quantize`: "auto" keeps what the file has, "none" makes fp32 of it, "int8" and "int4" turn
    float matrices into groups. `nodes`: over which memory nodes they are spread. Raises BadFile where the folder holds no model that these kernels can run."""
    source = _open(folder)
    try:
        return NativeModel(source.spec, _build_native(source, functions, Arena(nodes), quantize, report))
    finally:
        source.close()


def load_for_device(
    folder: Path, dtype: torch.dtype, device: torch.device, quantize: str, report: Report
) -> DeviceWeights:
    """For a GPU, one tensor after the other. `quantize` as for the native kernels, but that "none" makes `dtype` of it, and
    "fp8" makes it of float matrices.
    Raises BadFile where the folder holds no model that we can run."""
    source = _open(folder)
    try:
        return DeviceWeights(source.spec, _build_for_device(source, dtype, device, quantize, report))
    finally:
        source.close()


def weight_bytes(decoder: Decoder) -> int:
    """Bytes of all weights as they lie in memory."""
    w = decoder.weights
    parts = [w.embedding, w.norm, w.head, *(part for layer in w.layers for part in vars(layer).values())]
    return sum(part.nbytes for part in parts)


def _open(folder: Path) -> Source:
    if (folder / "config.json").exists():
        return SafetensorsSource(folder)
    files = sorted(folder.glob("*.gguf"))
    if len(files) == 1:
        return GgufSource(files[0])
    raise BadFile(
        f"{folder}: {len(files)} GGUF files and no config.json; a model is one GGUF file or a safetensors folder"
    )


def _build(source: Source, dtype: torch.dtype, device: torch.device, report: Report) -> Decoder:
    spec = source.spec
    q, kv = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim

    def get(name: str, *shape: int) -> torch.Tensor:
        return source.get(name, shape).to(device=device, dtype=dtype)

    def together(names: list[str], rows: list[int], *rest: int) -> torch.Tensor:
        """Several matrices as one, filled part by part."""
        out = torch.empty(sum(rows), *rest, dtype=dtype, device=device)
        for part, name, count in zip(out.split(rows), names, rows, strict=True):
            part.copy_(source.get(name, (count, *rest)))
        return out

    def packed(names: list[str], rows: list[int], columns: int, bias: bool) -> Linear:
        weight = together([f"{name}.weight" for name in names], rows, columns)
        return linear(weight, together([f"{name}.bias" for name in names], rows) if bias else None)

    layers = []
    for i in range(spec.layers):
        report("weights", i, spec.layers)
        p = f"model.layers.{i}."
        qkv = [f"{p}self_attn.{x}_proj" for x in "qkv"]
        gate_up = [f"{p}mlp.{x}_proj" for x in ("gate", "up")]
        layers.append(
            LayerWeights(
                attention_norm=get(f"{p}input_layernorm.weight", spec.hidden),
                qkv=packed(qkv, [q, kv, kv], spec.hidden, spec.attention_bias),
                output=packed([f"{p}self_attn.o_proj"], [spec.hidden], q, spec.attention_bias),
                mlp_norm=get(f"{p}post_attention_layernorm.weight", spec.hidden),
                gate_up=packed(gate_up, [spec.mlp] * 2, spec.hidden, spec.mlp_bias),
                down=packed([f"{p}mlp.down_proj"], [spec.hidden], spec.mlp, spec.mlp_bias),
            )
        )
    embedding = get("model.embed_tokens.weight", spec.vocab_size, spec.hidden)
    head = linear(embedding if spec.tied_head else get("lm_head.weight", spec.vocab_size, spec.hidden))
    norm = get("model.norm.weight", spec.hidden)
    report("weights", spec.layers, spec.layers)
    return Decoder(spec, Weights(embedding, layers, norm, head))


def _build_for_device(
    source: Source, dtype: torch.dtype, device: torch.device, quantize: str, report: Report
) -> Weights:
    from homebox.kernels.triton.linear import (  # a machine without a GPU need not have Triton
        Fp8Linear,
        GroupedLinear,
    )

    spec = source.spec
    q, kv = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim

    def norm(name: str) -> torch.Tensor:
        return source.get(f"{name}.weight", (spec.hidden,)).to(device=device, dtype=dtype)

    def stored(name: str, out: int, inner: int) -> Stored:
        weight = source.weight(f"{name}.weight", (out, inner))
        if quantize == "none":
            return weight.dequantised() if isinstance(weight, Grouped) else weight
        if quantize == "auto" or isinstance(weight, Grouped):
            return weight
        if quantize == "fp8" and not name.endswith(_KEPT_AT_8):
            return quantise_fp8(weight)
        return quantise(weight, 4 if quantize == "int4" and not name.endswith(_KEPT_AT_8) else 8)

    def made(parts: list[Stored], bias: torch.Tensor | None) -> Linear:
        """Of parts that are stored alike."""
        if groups := [part for part in parts if isinstance(part, Grouped)]:
            return GroupedLinear(Grouped.stacked(groups), bias, device)
        if codes := [part for part in parts if isinstance(part, Fp8)]:
            return Fp8Linear(Fp8.stacked(codes), bias, device)
        plain = [part for part in parts if isinstance(part, torch.Tensor)]
        out = torch.empty(sum(map(len, plain)), plain[0].shape[1], dtype=dtype, device=device)
        for place, part in zip(out.split([len(part) for part in plain]), plain, strict=True):
            place.copy_(part)
        return PlainLinear(out, bias)

    def multiply(names: list[str], rows: list[int], inner: int, bias: bool = False) -> Linear:
        """Several matrices as one where they are stored alike."""
        parts = [stored(name, out, inner) for name, out in zip(names, rows, strict=True)]
        each: Sequence[torch.Tensor | None] = [None] * len(parts)
        if bias:
            biases = [source.get(f"{name}.bias", (out,)) for name, out in zip(names, rows, strict=True)]
            each = [its.to(device=device, dtype=dtype) for its in biases]
        if len({part.bits if isinstance(part, Grouped) else type(part) for part in parts}) == 1:
            return made(parts, torch.cat([its for its in each if its is not None]) if bias else None)
        return SideBySide([made([part], its) for part, its in zip(parts, each, strict=True)])

    layers = []
    for i in range(spec.layers):
        report("weights", i, spec.layers)
        p = f"model.layers.{i}."
        layers.append(
            LayerWeights(
                attention_norm=norm(f"{p}input_layernorm"),
                qkv=multiply(
                    [f"{p}self_attn.{x}_proj" for x in "qkv"], [q, kv, kv], spec.hidden, spec.attention_bias
                ),
                output=multiply([f"{p}self_attn.o_proj"], [spec.hidden], q, spec.attention_bias),
                mlp_norm=norm(f"{p}post_attention_layernorm"),
                gate_up=multiply(
                    [f"{p}mlp.{x}_proj" for x in ("gate", "up")], [spec.mlp] * 2, spec.hidden, spec.mlp_bias
                ),
                down=multiply([f"{p}mlp.down_proj"], [spec.hidden], spec.mlp, spec.mlp_bias),
            )
        )
    # Rows are looked up in the embedding, so it stays plain; the head of a tied model is quantised as the file has it.
    whole = source.weight("model.embed_tokens.weight", (spec.vocab_size, spec.hidden))
    embedding = (whole.dequantised() if isinstance(whole, Grouped) else whole).to(device=device, dtype=dtype)
    head: Linear
    if not spec.tied_head:
        head = multiply(["lm_head"], [spec.vocab_size], spec.hidden)
    else:
        own = stored("model.embed_tokens", spec.vocab_size, spec.hidden)
        head = made([own], None) if isinstance(own, Grouped) else PlainLinear(embedding)
    report("weights", spec.layers, spec.layers)
    return Weights(embedding, layers, norm("model.norm"), head)


def _build_native(
    source: Source, functions: ctypes.CDLL, arena: Arena, quantize: str, report: Report
) -> NativeWeights:
    spec = source.spec
    if not runs_natively(spec):
        raise BadFile(
            "the native kernels compute heads of a multiple of 16 dimensions, 512 at most, and layers of a multiple of "
            f"32; this model has {spec.head_dim}, {spec.hidden} and {spec.mlp}",
            hint='Set kernels = "reference".',
        )
    q, kv = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim

    def packed(name: str, out: int, inner: int, bias: bool = False) -> Packed:
        weight = source.weight(f"{name}.weight", (out, inner))
        if quantize == "none":
            weight = weight.dequantised() if isinstance(weight, Grouped) else weight.float()
        elif quantize != "auto" and not isinstance(weight, Grouped):
            weight = quantise(weight, 4 if quantize == "int4" and not name.endswith(_KEPT_AT_8) else 8)
        biases = source.get(f"{name}.bias", (out,)) if bias else None
        return pack(functions, arena, weight, biases, fine=name.endswith(_FINE))

    def norm(name: str) -> torch.Tensor:
        return source.get(f"{name}.weight", (spec.hidden,))

    layers = []
    for i in range(spec.layers):
        report("weights", i, spec.layers)
        p = f"model.layers.{i}."
        layers.append(
            NativeLayer(
                attention_norm=norm(f"{p}input_layernorm"),
                q=packed(f"{p}self_attn.q_proj", q, spec.hidden, spec.attention_bias),
                k=packed(f"{p}self_attn.k_proj", kv, spec.hidden, spec.attention_bias),
                v=packed(f"{p}self_attn.v_proj", kv, spec.hidden, spec.attention_bias),
                output=packed(f"{p}self_attn.o_proj", spec.hidden, q, spec.attention_bias),
                mlp_norm=norm(f"{p}post_attention_layernorm"),
                gate=packed(f"{p}mlp.gate_proj", spec.mlp, spec.hidden, spec.mlp_bias),
                up=packed(f"{p}mlp.up_proj", spec.mlp, spec.hidden, spec.mlp_bias),
                down=packed(f"{p}mlp.down_proj", spec.hidden, spec.mlp, spec.mlp_bias),
            )
        )
    embedding = packed("model.embed_tokens", spec.vocab_size, spec.hidden)
    head = embedding if spec.tied_head else packed("lm_head", spec.vocab_size, spec.hidden)
    weights = NativeWeights(embedding, layers, norm("model.norm"), head)
    report("weights", spec.layers, spec.layers)
    return weights


class SafetensorsSource:
    def __init__(self, folder: Path) -> None:
        self._where = str(folder)
        try:
            config = json.loads((folder / "config.json").read_text())
        except (ValueError, OSError) as error:
            raise BadFile(f"{folder}/config.json: {error}") from None
        if not isinstance(config, dict):
            raise BadFile(f"{folder}/config.json is not an object")
        self.spec = from_hf(config, f"{folder}/config.json")
        self._folder: Folder = open_folder(folder)

    def get(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        return self._read(name, shape).float()

    def weight(self, name: str, shape: tuple[int, int]) -> torch.Tensor:
        return self._read(name, shape)

    def _read(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        info = self._folder.tensors.get(name)
        if info is None:
            raise BadFile(f"{self._where}: tensor {name} is missing")
        if tuple(info.shape) != shape:
            raise BadFile(f"{self._where}: {name} is {list(info.shape)}, the config says {list(shape)}")
        if info.dtype not in _TORCH_DTYPES:
            raise BadFile(
                f"{self._where}: {name} has dtype {info.dtype}; supported: {', '.join(_TORCH_DTYPES)}"
            )
        raw = torch.frombuffer(bytearray(self._folder.data(name)), dtype=_TORCH_DTYPES[info.dtype])
        return raw.view(shape)

    def close(self) -> None:
        self._folder.close()


class GgufSource:
    """GGUF names differ, and llama.cpp stores queries and keys with each head's rotary pairs interleaved
    (convert_hf_to_gguf.py, LlamaModel.permute); here they go back to halves."""

    def __init__(self, file: Path) -> None:
        self._where = str(file)
        self._gguf: GGUF = open_gguf(file)
        shapes = {name: info.shape for name, info in self._gguf.tensors.items()}
        self.spec = from_gguf(dict(self._gguf.metadata), shapes, self._where)

    def get(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        data, kind = self._find(name, shape)
        tensor = dequantise(data, kind, shape)
        order = self._order(name, shape[0])
        return tensor if order is None else tensor[order]

    def weight(self, name: str, shape: tuple[int, int]) -> torch.Tensor | Grouped:
        data, kind = self._find(name, shape)
        order = self._order(name, shape[0])
        if is_plain(kind):
            tensor = plain(data, kind, shape)
            return tensor if order is None else tensor[order]
        groups = grouped(data, kind, shape)
        return groups if order is None else groups.take(order)

    def _find(self, name: str, shape: tuple[int, ...]) -> tuple[memoryview, TensorType]:
        stored = gguf_name(name)
        info = self._gguf.tensors.get(stored)
        if info is None:
            raise BadFile(f"{self._where}: tensor {stored} is missing")
        if info.shape != shape:
            raise BadFile(f"{self._where}: {stored} is {list(info.shape)}, the metadata says {list(shape)}")
        return self._gguf.data(stored), info.type

    def _order(self, name: str, rows: int) -> torch.Tensor | None:
        """Which stored row belongs where, for queries and keys and their biases."""
        stem = name.rsplit(".", 1)[0]
        if not stem.endswith(("self_attn.q_proj", "self_attn.k_proj")):
            return None
        heads = self.spec.heads if stem.endswith("q_proj") else self.spec.kv_heads
        return torch.arange(rows).view(heads, rows // heads // 2, 2).transpose(1, 2).reshape(-1)

    def close(self) -> None:
        self._gguf.close()
