"""Weights arrive as the file has them: every quantisation against the `gguf` package, every error in words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from homebox.errors import BadFile
from homebox.fit.model import read
from homebox.formats.gguf import open_gguf
from homebox.model.dequantise import dequantise
from homebox.model.loader import load
from homebox.model.spec import from_hf

CONFIG: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1,
    "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 64, "max_position_embeddings": 128,
    "tie_word_embeddings": True,
}  # fmt: skip


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q4_1"])
def test_every_stored_type_becomes_the_numbers_that_ggml_defines(tmp_path: Path, kind: str) -> None:
    values = np.random.default_rng(0).normal(size=(6, 64)).astype(np.float32)
    stored = gguf.quants.quantize(values, gguf.GGMLQuantizationType[kind])
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "llama")
    writer.add_tensor("t", stored, raw_dtype=gguf.GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    right = gguf.quants.dequantize(stored, gguf.GGMLQuantizationType[kind])
    with open_gguf(tmp_path / "x.gguf") as file:
        info = file.tensors["t"]
        ours = dequantise(file.data("t"), info.type, info.shape)
    assert ours.dtype == torch.float32 and ours.shape == (6, 64)
    np.testing.assert_array_equal(ours.numpy(), right)


def folder(path: Path, config: dict[str, Any], **tensors: torch.Tensor) -> Path:
    (path / "config.json").write_text(json.dumps(config))
    save_file(tensors or {"model.norm.weight": torch.ones(32)}, path / "model.safetensors")
    return path


@pytest.mark.parametrize(
    "change, complaint",
    [
        ({"model_type": "mamba"}, "family 'mamba' is not supported"),
        ({"auto_map": {"AutoModel": "evil.py"}}, "its own code"),
        ({"hidden_act": "gelu"}, "activation 'gelu'"),
        ({"num_key_value_heads": 3, "num_attention_heads": 4}, "cannot share"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope type 'yarn'"),
        ({"num_hidden_layers": 0}, "layers = 0"),
        ({"num_hidden_layers": "many"}, "many"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantised safetensors"),
    ],
)
def test_a_model_that_cannot_run_is_refused_with_its_reason(change: dict[str, Any], complaint: str) -> None:
    with pytest.raises(BadFile, match=complaint):
        from_hf(CONFIG | change, "config.json")


def test_a_missing_field_or_tensor_or_a_wrong_shape_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match="hidden_size is missing"):
        from_hf({k: v for k, v in CONFIG.items() if k != "hidden_size"}, "config.json")
    report = lambda *_: None  # noqa: E731
    with pytest.raises(BadFile, match=r"input_layernorm\.weight is missing"):
        load(folder(tmp_path, CONFIG), torch.float32, torch.device("cpu"), report)
    bad = {"model.layers.0.input_layernorm.weight": torch.ones(31)}
    with pytest.raises(BadFile, match=r"is \[31\], the config says \[32\]"):
        load(folder(tmp_path, CONFIG, **bad), torch.float32, torch.device("cpu"), report)


def test_a_folder_without_a_model_says_what_one_looks_like(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match="one GGUF file or a safetensors folder"):
        read(tmp_path)
    (tmp_path / "config.json").write_text("{nonsense")
    with pytest.raises(BadFile, match=r"config\.json"):
        read(tmp_path)
