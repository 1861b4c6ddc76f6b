"""Does an engine take as much memory as was said before it was loaded?

    python -m homebox.bench.resident --model DIR [--kv-memory 64MiB] [--kernels native] [--quantize int4] [--json]

A fresh process: what it has resident once torch is there, and again when a model is loaded, all its blocks have been
written, the largest chunk has been computed and as many answers as may run have run at once. What it grew by is compared
with weights + activations + KV as `homebox/fit` has them from the headers.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path

import torch

from homebox.config import size_bytes
from homebox.engine.build import build
from homebox.engine.compute import choose
from homebox.engine.core import Engine
from homebox.fit.demand import demand
from homebox.wire.frames import Sampling, Start, Submit

MIB = 2**20
ANSWER_TOKENS = 2


@dataclass(frozen=True)
class Growth:
    """Bytes: counted from headers, the loaded weights themselves, and what the process grew by."""

    weights: int
    loaded: int
    activations: int
    process: int
    kv: int
    grown: int

    @property
    def predicted(self) -> int:
        return self.weights + self.activations + self.process + self.kv

    @property
    def off(self) -> float:
        return self.predicted / self.grown - 1


def measure(start: Start) -> Growth:
    torch.ones(64, 64) @ torch.ones(64, 64)  # its threads and its libraries are there
    before = resident()
    choice = choose(start, _quiet)
    asked = demand(choice.model, choice.plan, started=True)
    engine, ready = build(start, lambda _: None, _quiet)
    fill(engine, ready.total_blocks * ready.block_size, start.max_running, ready.max_context)
    return Growth(
        weights=asked.weights,
        loaded=ready.weight_bytes,
        activations=asked.activations,
        process=asked.process,
        kv=ready.kv_bytes,
        grown=resident() - before,
    )


def fill(engine: Engine, capacity: int, people: int, context: int) -> None:
    """Write all blocks by a few long prompts, then answer so many at once."""
    some = Sampling(max_tokens=ANSWER_TOKENS, temperature=0.7, logprobs=1, ignore_eos=True)
    each = min(context, capacity // 2) - ANSWER_TOKENS - 1
    for i in range(-(-capacity // each)):
        engine.submit(Submit(f"long{i}", f"p{i}", [100 + i, *range(200, 199 + each)], some))
    while engine.step():
        pass
    for i in range(people):
        engine.submit(Submit(f"short{i}", f"p{i}", [100 + i] * 4, some))
    while engine.step():
        pass


def resident() -> int:
    """Of this process (proc(5), smaps_rollup): pages in memory."""
    rows = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(row.split()[1]) for row in rows if row.startswith("Rss:")) * 1024


def _quiet(*_: object) -> None:
    """Nobody waits for it to be loaded."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True, help="a directory of the library")
    parser.add_argument("--kv-memory", default="64MiB")
    parser.add_argument("--kernels", default="auto")
    parser.add_argument("--quantize", default="auto")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    start = Start(
        str(args.model), kv_bytes=size_bytes(args.kv_memory), kernels=args.kernels, quantize=args.quantize
    )
    found = measure(start)
    if args.json:
        print(json.dumps(vars(found)))
        return
    for name in ("weights", "loaded", "activations", "process", "kv", "predicted", "grown"):
        print(f"{name:12}{getattr(found, name) / MIB:8.1f} MiB")
    print(f"predicted / grown - 1: {found.off:+.1%}")


if __name__ == "__main__":
    main()
