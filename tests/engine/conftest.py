"""A tiny random Llama on disk, and a whole engine around it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from homebox.engine.build import build
from homebox.engine.core import Engine
from homebox.wire.frames import FromEngine, Progress, Ready, Refused, Start, StepDone, Submit


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """2 layers, 64 wide, 300 tokens of vocabulary, 256 of context."""
    torch.manual_seed(5)
    config = LlamaConfig(
        vocab_size=300,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.3,
    )
    path = tmp_path_factory.mktemp("tiny-model")
    LlamaForCausalLM(config).save_pretrained(path)
    return path


@pytest.fixture(scope="session")
def broken_model(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model, but what token 299 means is not a number."""
    folder = tmp_path_factory.mktemp("broken-model")
    shutil.copytree(tiny_model, folder, dirs_exist_ok=True)
    tensors = load_file(folder / "model.safetensors")
    tensors["model.embed_tokens.weight"][299] = float("nan")
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


class RunningEngine:
    """An engine in this process, and what it said, sorted by request."""

    def __init__(self, start: Start) -> None:
        self.frames: list[FromEngine] = []
        self.engine: Engine
        self.ready: Ready
        self.engine, self.ready = build(start, self.frames.append, lambda *_: None)

    def submit(self, *requests: Submit) -> None:
        for request in requests:
            self.engine.submit(request)

    def run(self) -> None:
        while self.engine.step():
            self.engine.scheduler.check()

    def progress(self, request_id: str) -> list[Progress]:
        steps = [f for f in self.frames if isinstance(f, StepDone)]
        return [p for step in steps for p in step.progress if p.id == request_id]

    def tokens(self, request_id: str) -> list[int]:
        return [t for p in self.progress(request_id) for t in p.tokens]

    def finish(self, request_id: str) -> str | None:
        ends = [p.finish for p in self.progress(request_id) if p.finish]
        assert len(ends) <= 1, "ended twice"
        return ends[0] if ends else None

    def refusals(self) -> dict[str, Refused]:
        return {f.id: f for f in self.frames if isinstance(f, Refused)}


@pytest.fixture
def engine(tiny_model: Path) -> Callable[..., RunningEngine]:
    """Build an engine on the tiny model; keywords are fields of `Start`."""

    def make(**start: object) -> RunningEngine:
        settings: dict[str, object] = {"max_running": 16, "kv_bytes": 64 * 16 * 512} | start
        return RunningEngine(Start(**{"model_dir": str(tiny_model)} | settings))  # type: ignore[arg-type]

    return make
