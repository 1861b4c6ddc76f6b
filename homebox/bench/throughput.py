"""How much more does the house get in total, when many ask at once?

    python -m homebox.bench.throughput [--streams 1,4,16] [--rounds 3] [--max-tokens 128]

The same prompts through our engine with all streams at once, and through transformers' `generate` one at a time (bf16,
KV cache, SDPA), in one process on one machine, alternating, medians of the rounds. The slow baseline is sampled: a few
requests, since its speed does not depend on how many wait. Prints a table, and the ratio at each number of streams.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from pathlib import Path

import torch

from homebox.bench.oracle import generate, load_transformers
from homebox.engine.build import build
from homebox.wire.frames import FromEngine, Sampling, Start, StepDone, Submit

PROMPT_TOKENS = 100
SAMPLED_REQUESTS = 3


def prompts(count: int, vocab_size: int, seed: int) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(10, vocab_size) for _ in range(PROMPT_TOKENS)] for _ in range(count)]


class Ours:
    """Our engine in this process."""

    def __init__(self, model_dir: Path) -> None:
        self.frames: list[FromEngine] = []
        self.engine, self.ready = build(Start(str(model_dir)), self.frames.append, lambda *_: None)
        self._runs = 0

    def tokens_per_second(self, streams: int, max_tokens: int) -> float:
        self._runs += 1
        self.frames.clear()
        sampling = Sampling(max_tokens=max_tokens, temperature=0.0)
        started = time.perf_counter()
        # A new seed each time: nothing is in the prefix cache.
        for i, prompt in enumerate(prompts(streams, self.ready.vocab_size, seed=self._runs)):
            self.engine.submit(Submit(f"{self._runs}-{i}", f"person{i}", prompt, sampling))
        while self.engine.step():
            pass
        elapsed = time.perf_counter() - started
        made = sum(len(p.tokens) for f in self.frames if isinstance(f, StepDone) for p in f.progress)
        assert made == streams * max_tokens
        return made / elapsed

    def step_ms(self, streams: int) -> float:
        """The median decode step with all streams in it, of the last run."""
        steps = [f.step_ms for f in self.frames if isinstance(f, StepDone) and f.decode_rows == streams]
        return statistics.median(steps)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model-dir", type=Path, required=True, help="a folder of the library")
    parser.add_argument("--streams", default="1,4,16")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--max-tokens", type=int, default=128)
    args = parser.parse_args()
    counts = [int(n) for n in args.streams.split(",")]

    ours = Ours(args.model_dir)
    theirs = load_transformers(args.model_dir, torch.bfloat16)
    vocab_size = ours.ready.vocab_size
    generate(theirs, prompts(1, vocab_size, seed=0)[0], 8)
    speeds: dict[int, list[float]] = {n: [] for n in counts}
    baseline: list[float] = []
    steps: dict[int, float] = {}
    for i in range(args.rounds):
        for n in counts:
            speeds[n].append(ours.tokens_per_second(n, args.max_tokens))
            steps[n] = ours.step_ms(n)
        started = time.perf_counter()
        for prompt in prompts(SAMPLED_REQUESTS, vocab_size, seed=1000 + i):
            generate(theirs, prompt, args.max_tokens)
        baseline.append(SAMPLED_REQUESTS * args.max_tokens / (time.perf_counter() - started))
        print(f"round {i + 1} of {args.rounds}", file=sys.stderr)

    one = statistics.median(baseline)
    print(
        f"{args.model_dir.name}, {PROMPT_TOKENS} tokens in, {args.max_tokens} out, greedy; torch {torch.__version__},"
    )
    print(
        f"{torch.get_num_threads()} threads; medians of {args.rounds} rounds, alternating; output tokens per second"
    )
    print(f"{'':44}{'total':>8}{'each':>8}{'step ms':>9}{'ratio':>7}")
    print(f"{'transformers generate, one at a time, bf16':44}{one:8.1f}{one:8.1f}{1e3 / one:9.1f}{1.0:7.2f}")
    for n in counts:
        total = statistics.median(speeds[n])
        name = f"homebox, {n} at once, fp32, {ours.ready.attention} attention"
        print(f"{name:44}{total:8.1f}{total / n:8.1f}{steps[n]:9.1f}{total / one:7.2f}")


if __name__ == "__main__":
    main()
