"""Are greedy texts those of transformers, on this device? Small models with random weights, whole engines, fp32."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch

from homebox.bench.gpu.house import House
from homebox.kernels.triton.checks import Check
from homebox.kernels.triton.sampling import TritonChooser
from homebox.model.loader import load_for_device

FORGIVEN_GAP = 1e-3  # where the oracle's two best logits are closer, either is right


def equality(device: torch.device, small: bool) -> Iterator[Check]:
    from transformers import LlamaConfig, LlamaForCausalLM

    shapes = [(2, 64, 4, 2)] if small else [(4, 256, 8, 2), (3, 512, 4, 1), (2, 256, 4, 4)]
    for layers, hidden, heads, kv_heads in shapes:
        torch.manual_seed(5)
        config = LlamaConfig(
            vocab_size=300, hidden_size=hidden, intermediate_size=96 if small else 2 * hidden, num_hidden_layers=layers,
            num_attention_heads=heads, num_key_value_heads=kv_heads, max_position_embeddings=1024, initializer_range=0.3,
        )  # fmt: skip
        with tempfile.TemporaryDirectory() as folder:
            oracle = LlamaForCausalLM(config).eval()
            oracle.save_pretrained(folder)
            spec, weights = load_for_device(Path(folder), torch.float32, device, "none", lambda *_: None)
        house = House(
            spec, weights, TritonChooser(64, spec.vocab_size, device), kv_tokens=512 if small else 4096,
            dtype=torch.float32, device=device, slots=16, chunk=16 if small else 64,
        )  # fmt: skip
        generator = torch.Generator().manual_seed(11)
        lengths = (1, 20) if small else (1, 2, 15, 16, 17, 64, 100, 255, 400)
        tokens = 3 if small else 24
        prompts = [torch.randint(3, 300, (length,), generator=generator).tolist() for length in lengths]
        answers = [house.ask(prompt, tokens) for prompt in prompts]
        house.run()
        wrong = forgiven = 0
        for prompt, answer in zip(prompts, answers, strict=True):
            with torch.inference_mode():
                logits = oracle(torch.tensor([prompt + answer.tokens])).logits[0, len(prompt) - 1 : -1]
            best = logits.argmax(-1).tolist()
            first = next((n for n in range(tokens) if best[n] != answer.tokens[n]), None)
            if first is not None:
                top, second = torch.topk(logits[first], 2).values.tolist()
                forgiven += top - second < FORGIVEN_GAP
                wrong += top - second >= FORGIVEN_GAP
        name = f"{len(prompts)} greedy texts, {layers} x {hidden}, {heads}/{kv_heads} heads"
        yield Check(name + (f", {forgiven} undecided" if forgiven else ""), float(wrong), 0.0)
