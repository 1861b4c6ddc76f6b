"""What is there to be loaded: the model's numbers, and of each matrix the type that it is stored in?

From `config.json` and the headers of tensors alone. A config without weights will do, too: then all matrices are taken
to be of the type that the config names. What the loader would refuse is refused here with the same words, so that
nobody plans with a model that cannot be run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from homebox.errors import BadFile
from homebox.formats.gguf import SUPPORTED, open_gguf
from homebox.formats.safetensors import open_folder
from homebox.model.spec import DecoderSpec, from_gguf, from_hf, gguf_name

Stored = Literal["fp64", "fp32", "fp16", "bf16", "int8", "int4"]

EMBEDDING, HEAD = "model.embed_tokens", "lm_head"
_SAFETENSORS: Mapping[str, Stored] = {"F64": "fp64", "F32": "fp32", "F16": "fp16", "BF16": "bf16"}
_GGUF: Mapping[str, Stored] = {"F32": "fp32", "F16": "fp16", "BF16": "bf16", "Q8_0": "int8", "Q4_1": "int4"}
_CONFIG: Mapping[str, Stored] = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
_LIKELY: Stored = "bf16"  # nearly every published checkpoint


class _Shape(NamedTuple):
    name: str
    outputs: int
    inputs: int
    bias: bool


class _Header(NamedTuple):
    shape: tuple[int, ...]
    kind: str


@dataclass(frozen=True)
class Matrix:
    """`[outputs, inputs]`. `layer` None: of none, or, where `count` says so, of all of them."""

    name: str
    outputs: int
    inputs: int
    bias: bool
    stored: Stored
    layer: int | None = None
    count: int = 1

    @property
    def tensor(self) -> str:
        """Its name in a checkpoint, without `.weight` or `.bias`."""
        return self.name if self.layer is None else f"model.layers.{self.layer}.{self.name}"

    @property
    def elements(self) -> int:
        return self.outputs * self.inputs


@dataclass(frozen=True)
class Model:
    """`matrices`: of all layers, the embedding, and the head where it is not the embedding."""

    name: str
    spec: DecoderSpec
    matrices: tuple[Matrix, ...]

    @property
    def norm_elements(self) -> int:
        return (2 * self.spec.layers + 1) * self.spec.hidden


def read(path: Path) -> Model:
    """Of a model's folder, a GGUF file, or a config.json. Raises BadFile for what the engine would not load."""
    if path.suffix == ".gguf" and path.is_file():
        return _read_gguf(path)
    if path.suffix == ".json" and path.is_file():
        return shape(path.stem if path.name != "config.json" else path.parent.name, _json(path), str(path))
    if not path.is_dir():
        raise BadFile(
            f"{path} is not there: no config.json, no GGUF file",
            hint="Name an installed model, a folder with a config.json, a GGUF file, or a config.json.",
        )
    if (path / "config.json").exists():
        return _read_folder(path)
    files = sorted(path.glob("*.gguf"))
    if len(files) != 1:
        raise BadFile(
            f"{path}: {len(files)} GGUF files and no config.json; a model is one GGUF file or a safetensors folder",
            hint="A config.json alone is enough to see what would fit.",
        )
    return _read_gguf(files[0])


def shape(name: str, config: dict[str, Any], where: str) -> Model:
    """A model that is known by its config alone. Raises BadFile."""
    stored = _CONFIG.get(str(config.get("dtype") or config.get("torch_dtype")), _LIKELY)
    spec = from_hf(config, where)
    layer = [Matrix(*each, stored, count=spec.layers) for each in _of_a_layer(spec)]
    return Model(name, spec, (*layer, *(Matrix(*each, stored) for each in _of_the_ends(spec))))


def _read_folder(path: Path) -> Model:
    config = _json(path / "config.json")
    if not any(path.glob("*.safetensors")):
        return shape(path.name, config, f"{path}/config.json")
    spec = from_hf(config, f"{path}/config.json")
    with open_folder(path) as folder:
        found = {name: _Header(info.shape, info.dtype) for name, info in folder.tensors.items()}
    return Model(path.name, spec, tuple(_stored(spec, found.get, _SAFETENSORS, str(path))))


def _read_gguf(path: Path) -> Model:
    with open_gguf(path) as file:
        spec = from_gguf(
            dict(file.metadata), {name: info.shape for name, info in file.tensors.items()}, str(path)
        )
        for name, info in file.tensors.items():
            if info.type not in SUPPORTED:
                file.data(name)  # says what is supported
        found = {name: _Header(info.shape, info.type.name) for name, info in file.tensors.items()}
    stored = _stored(spec, lambda tensor: found.get(gguf_name(tensor)), _GGUF, str(path))
    return Model(path.parent.name, spec, tuple(stored))


def _stored(
    spec: DecoderSpec, find: Callable[[str], _Header | None], types: Mapping[str, Stored], where: str
) -> Iterator[Matrix]:
    """The matrices that the config promises, as the headers have them."""
    layers = ((layer, each) for layer in range(spec.layers) for each in _of_a_layer(spec))
    for layer, each in (*layers, *((None, each) for each in _of_the_ends(spec))):
        matrix = Matrix(*each, _LIKELY, layer)
        kind = _check(f"{matrix.tensor}.weight", (each.outputs, each.inputs), find, types, where)
        if each.bias:
            _check(f"{matrix.tensor}.bias", (each.outputs,), find, types, where)
        yield replace(matrix, stored=kind)


def _check(
    tensor: str,
    shape: tuple[int, ...],
    find: Callable[[str], _Header | None],
    types: Mapping[str, Stored],
    where: str,
) -> Stored:
    header = find(tensor)
    if header is None:
        raise BadFile(f"{where}: tensor {tensor} is missing", hint="Fetch the model again.")
    if header.shape != shape:
        raise BadFile(f"{where}: {tensor} is {list(header.shape)}, the config says {list(shape)}")
    if header.kind not in types:
        raise BadFile(f"{where}: {tensor} has dtype {header.kind}; supported: {', '.join(types)}")
    return types[header.kind]


def _of_a_layer(spec: DecoderSpec) -> list[_Shape]:
    q, kv = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
    return [
        _Shape("self_attn.q_proj", q, spec.hidden, spec.attention_bias),
        _Shape("self_attn.k_proj", kv, spec.hidden, spec.attention_bias),
        _Shape("self_attn.v_proj", kv, spec.hidden, spec.attention_bias),
        _Shape("self_attn.o_proj", spec.hidden, q, spec.attention_bias),
        _Shape("mlp.gate_proj", spec.mlp, spec.hidden, spec.mlp_bias),
        _Shape("mlp.up_proj", spec.mlp, spec.hidden, spec.mlp_bias),
        _Shape("mlp.down_proj", spec.hidden, spec.mlp, spec.mlp_bias),
    ]


def _of_the_ends(spec: DecoderSpec) -> list[_Shape]:
    names = (EMBEDDING,) if spec.tied_head else (EMBEDDING, HEAD)
    return [_Shape(name, spec.vocab_size, spec.hidden, False) for name in names]


def _json(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OSError) as error:
        raise BadFile(f"{path}: {error}", hint="It is no config.json of a model.") from None
    return found
