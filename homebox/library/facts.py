"""What model is this, and can our engine run it?

Reads the headers of weights, never their data, and refuses with the reason what this version does not run: other
architectures, other tensor types, code that would have to come with the model, pickles.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from homebox.errors import BadFile
from homebox.formats.gguf import GGUF, SUPPORTED
from homebox.formats.safetensors import Folder

# What the engine's decoder computes: `general.architecture` in GGUF, `model_type` in a config.json.
ARCHITECTURES: Mapping[str, frozenset[str]] = {
    "gguf": frozenset({"llama"}),
    "safetensors": frozenset({"llama"}),
}
CLASSES = frozenset({"LlamaForCausalLM"})
DTYPES = frozenset({"F32", "F16", "BF16"})
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


@dataclass(frozen=True)
class Facts:
    """What the manifest says about the weights. `context` is in tokens."""

    format: str
    architecture: str
    quantisation: str
    context: int
    vocab_size: int
    parameters: int
    licence: str = ""


def of_gguf(file: GGUF) -> Facts:
    """Raises BadFile for a model this version does not run."""
    architecture = _text(file.metadata, "general.architecture", file.path)
    _known(architecture, "gguf", file.path)
    parts = file.metadata.get("split.count", 1)
    if parts not in (0, 1):
        raise BadFile(
            f"{file.path} is one of {parts} parts of a model",
            hint="Join them first: llama-gguf-split --merge",
        )
    elements: Counter[str] = Counter()
    for info in file.tensors.values():
        if info.type not in SUPPORTED:
            file.data(info.name)  # says what is supported
        elements[info.type.name] += _product(info.shape)
    if not elements:
        raise BadFile(f"{file.path} holds no tensors", hint="It is a vocabulary, not a model.")
    tokens = file.metadata.get("tokenizer.ggml.tokens")
    licence = file.metadata.get("general.license", "")
    return Facts(
        format="gguf",
        architecture=architecture,
        quantisation=elements.most_common(1)[0][0],
        context=_count(file.metadata, f"{architecture}.context_length", file.path),
        vocab_size=len(tokens) if isinstance(tokens, list) else 0,
        parameters=elements.total(),
        licence=licence if isinstance(licence, str) else "",
    )


def of_folder(folder: Folder, config: Mapping[str, Any]) -> Facts:
    """Raises BadFile for a model this version does not run. `config` is the folder's config.json."""
    path = folder.path / "config.json"
    refuse_code(path, config)
    architecture = _text(config, "model_type", path)
    _known(architecture, "safetensors", path)
    classes = config.get("architectures") or []
    if other := [one for one in classes if one not in CLASSES]:
        raise BadFile(
            f"{path}: {other[0]} is not supported", hint=f"Supported: {', '.join(sorted(CLASSES))}."
        )
    if config.get("quantization_config"):
        raise BadFile(
            f"{path}: quantised safetensors are not supported", hint="Take the plain weights, or a GGUF file."
        )
    elements: Counter[str] = Counter()
    for info in folder.tensors.values():
        if info.dtype not in DTYPES:
            raise BadFile(
                f"{folder.path}: tensor {info.name!r} is {info.dtype}, which is not supported",
                hint=f"Take weights in {', '.join(sorted(DTYPES))}.",
            )
        elements[info.dtype] += _product(info.shape)
    if not elements:
        raise BadFile(f"{folder.path}: the safetensors files hold no tensors", hint="Fetch the model again.")
    return Facts(
        format="safetensors",
        architecture=architecture,
        quantisation=elements.most_common(1)[0][0],
        context=_count(config, "max_position_embeddings", path),
        vocab_size=_count(config, "vocab_size", path),
        parameters=elements.total(),
    )


def refuse_code(path: Path, config: Mapping[str, Any]) -> None:
    """Raises BadFile for a configuration that names Python files of its own."""
    if config.get("auto_map"):
        raise BadFile(
            f"{path} wants code that comes with the model (auto_map); such code is never run",
            hint="Take a model of a supported architecture without auto_map.",
        )


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file. Raises BadFile."""
    try:
        found: dict[str, Any] = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except FileNotFoundError:
        raise BadFile(f"{path} is missing", hint="Adopt a whole model folder, or a GGUF file.") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OSError) as error:
        raise BadFile(f"{path}: {error}") from None
    return found


def _known(architecture: str, form: str, path: Path) -> None:
    if architecture not in ARCHITECTURES[form]:
        known = ", ".join(sorted(ARCHITECTURES[form]))
        raise BadFile(
            f"{path}: the architecture {architecture!r} is not supported", hint=f"This version runs: {known}."
        )


def _text(data: Mapping[str, Any], key: str, path: Path) -> str:
    value = data.get(key)
    if not isinstance(value, str) or not value:
        raise BadFile(f"{path} does not say its {key}", hint="It is not a whole language model.")
    return value


def _count(data: Mapping[str, Any], key: str, path: Path) -> int:
    value = data.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 2**31:
        raise BadFile(f"{path}: {key} is {value!r}, not a number of tokens")
    return value


def _product(shape: tuple[int, ...]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total
