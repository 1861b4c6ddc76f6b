"""What does choosing the tokens cost a step?

    python -m homebox.bench.sampling LIBRARY [--rounds 15] [--vocab 49152]

The torch reference and the native kernel (a compiled kernel library) on the same logits, alternating; the least of the
rounds in milliseconds a step, and the ratio. Logits are as a language model's are: a few tokens stand out, differently
sharp in each row.
"""

from __future__ import annotations

import argparse
import ctypes
import time
from collections.abc import Mapping
from pathlib import Path

import torch

from homebox.engine.plan import Admission
from homebox.engine.sampler import SlotState, choose
from homebox.kernels.cpu.sampling import NativeSampling
from homebox.kernels.sampling import REFERENCE, SamplingKernel
from homebox.wire.frames import Sampling

CASES: Mapping[str, tuple[int, Mapping[str, object]]] = {
    "1 row, greedy": (1, {"temperature": 0.0}),
    "32 rows, greedy": (32, {"temperature": 0.0}),
    "32 rows, temperature 0.7": (32, {"temperature": 0.7}),
    "32 rows, temperature 0.7, top-p 0.9": (32, {"temperature": 0.7, "top_p": 0.9}),
    "32 rows, temperature 0.7, top-k 40": (32, {"temperature": 0.7, "top_k": 40}),
    "32 rows, temperature 0.7, min-p 0.05": (32, {"temperature": 0.7, "min_p": 0.05}),
    "32 rows, greedy, repetition penalty": (32, {"temperature": 0.0, "repetition_penalty": 1.1}),
    "32 rows, greedy, 5 logprobs": (32, {"temperature": 0.0, "logprobs": 5}),
}


def logits_like_a_models(rows: int, vocab: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(rows, vocab, generator=generator) * 2.5
    sharp = torch.linspace(2.0, 12.0, rows)[:, None]
    return logits + sharp * torch.rand(rows, vocab, generator=generator) ** 200


def elapsed_ms(logits: torch.Tensor, states: list[SlotState], kernel: SamplingKernel) -> float:
    used_up = logits.clone()
    started = time.perf_counter()
    choose(used_up, states, range(len(states)), kernel)
    return (time.perf_counter() - started) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("library", type=Path)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--vocab", type=int, default=49152)
    args = parser.parse_args()
    kernels: list[SamplingKernel] = [REFERENCE, NativeSampling(ctypes.CDLL(str(args.library.resolve())))]
    print(f"{'':40}{'torch ms':>10}{'native ms':>11}{'ratio':>7}")
    for name, (rows, wish) in CASES.items():
        logits = logits_like_a_models(rows, args.vocab)
        sampling = Sampling(max_tokens=1, seed=7, **wish)  # type: ignore[arg-type]
        states = [SlotState(Admission(row, sampling, tuple(range(500)), ())) for row in range(rows)]
        least = [float("inf")] * 2
        for _ in range(args.rounds):
            for i, kernel in enumerate(kernels):
                least[i] = min(least[i], elapsed_ms(logits, states, kernel))
        print(f"{name:40}{least[0]:10.2f}{least[1]:11.3f}{least[0] / least[1]:7.1f}")


if __name__ == "__main__":
    main()
