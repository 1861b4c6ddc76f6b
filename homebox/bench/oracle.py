"""The same model in transformers: what our engine is compared with, in tokens and in time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch


def load_transformers(model_dir: Path, dtype: torch.dtype) -> Any:
    """A transformers model from a folder of the library, read by transformers' own code (GGUF or safetensors), with
    SDPA attention. Needs the development extra."""
    from transformers import AutoModelForCausalLM, GgufConfig

    more: dict[str, Any] = {}
    if not (model_dir / "config.json").exists():
        # Unpacked at load: its own kernels for packed weights are slower on this path than a dense model.
        more["gguf_file"] = next(model_dir.glob("*.gguf")).name
        more["quantization_config"] = GgufConfig(dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=dtype, attn_implementation="sdpa", **more)
    return model.eval()


def generate(model: Any, prompt: list[int], max_tokens: int) -> list[int]:
    """Greedy `generate` with its KV cache; end tokens are ignored, so that lengths are fixed."""
    with torch.inference_mode():
        whole = model.generate(
            torch.tensor([prompt]),
            max_new_tokens=max_tokens,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
    return list(map(int, whole[0, len(prompt) :]))
