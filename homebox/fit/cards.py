"""What of a model fits on which card? The shapes that are known without a file, the cards, and the GPU of this machine.

    python -m homebox.fit.cards [CONFIG]

prints the table of docs/measurements for Llama 3.1 8B, or for another model's config.json or folder.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pynvml

from homebox.fit.demand import demand
from homebox.fit.machine import free_bytes
from homebox.fit.model import Model, read, shape
from homebox.fit.plan import Plan, Quantize
from homebox.fit.room import Fit, Memory, room
from homebox.fit.words import share, size, tokens

# Field names and figures of the published config.json.
SHAPES: Mapping[str, dict[str, Any]] = {
    "llama-3.1-8b": {
        "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 14336, "vocab_size": 128256,
        "max_position_embeddings": 131072, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
        "rope_scaling": {
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    },
}  # fmt: skip

CARDS_GB = (12, 16, 24, 32, 80, 141)
# What a card that is sold with so many "GB" reports as its memory: 11.8 GiB of 12, 23.5 of 24, 31.4 of 32.
_REPORTED = 0.98
_PEOPLE = 6
_KEPT: tuple[tuple[Quantize, str], ...] = (("none", "bf16"), ("int4", "int4"))


class Row(NamedTuple):
    """What a card of `gigabytes` holds of a model that is kept as `kept` says."""

    gigabytes: int
    kept: str
    fit: Fit


def known(name: str) -> Model | None:
    config = SHAPES.get(name)
    return shape(name, config, name) if config is not None else None


def idle(gigabytes: int) -> Memory:
    """The memory of such a card that nobody uses."""
    return Memory(int(gigabytes * _REPORTED * 2**30), "gpu")


def rows(model: Model) -> Iterator[Row]:
    for gigabytes in CARDS_GB:
        for quantize, kept in _KEPT:
            plan = Plan("gpu", quantize=quantize)
            most = plan.max_running * model.spec.context
            yield Row(gigabytes, kept, room(demand(model, plan), idle(gigabytes), most_tokens=most))


def table(model: Model) -> list[list[str]]:
    """With its titles; the last column is the verdict."""
    context = model.spec.context
    lines = [["card", "kept as", "free", "weights", "activations", "graphs, context", "KV", "verdict"]]
    for gigabytes, kept, fit in rows(model):
        d = fit.demand
        each = min(fit.tokens // _PEOPLE, context)
        verdict = f"{tokens(fit.tokens)} tokens: {share(_PEOPLE, each)}"
        if fit.short:
            verdict = f"no: {size(fit.short)} too few"
        parts = (d.weights, d.activations, d.graphs + d.context, 0 if fit.short else fit.kv_bytes)
        lines.append([f"{gigabytes} GB", kept, size(fit.memory.free), *map(size, parts), verdict])
    return lines


def here() -> Memory | None:
    """What the first NVIDIA GPU of this machine has free; None without one. One that shares the system's memory has no
    figure of its own."""
    with suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        if pynvml.nvmlDeviceGetCount():
            handle = pynvml.nvmlDeviceGetHandleByIndex(0)
            try:
                return Memory(int(pynvml.nvmlDeviceGetMemoryInfo(handle).free), "gpu")
            except pynvml.NVMLError_NotSupported:
                return Memory(free_bytes(), "unified")
    return None


def main() -> None:
    model = read(Path(sys.argv[1])) if len(sys.argv) > 1 else known("llama-3.1-8b")
    assert model is not None
    lines = table(model)
    print("\n".join(f"| {' | '.join(line)} |" for line in (lines[0], ["---"] * len(lines[0]), *lines[1:])))


if __name__ == "__main__":
    main()
