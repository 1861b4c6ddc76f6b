"""How much sooner does the second turn of a chat answer, because the first was computed?

    python -m homebox.bench.second_turn --state-dir DIR [--history 2000] [--rounds 5]
    ... --kv-memory 56MiB --kv-host-memory 1GiB    # the pool has room for one of them: it comes back from host memory

A person's prompt of so many tokens is answered; then somebody else's of the same length, which nobody has computed; then the
same tokens as at first and a few more, as the next turn of a chat. Time to first token of the last two at the client,
medians of the rounds, and their ratio.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from homebox.bench.client import Client, Target, connect
from homebox.bench.figures import median
from homebox.bench.server import serving
from homebox.bench.victim import prompt

QUESTION_TOKENS = 30


async def measure(client: Client, history: int, rounds: int) -> tuple[list[float], list[float]]:
    """Seconds to the first token: known, unknown."""
    known, unknown = [], []
    await client.complete(prompt(100), 16, person="mia")
    for i in range(rounds):
        first = prompt(history)
        await client.complete(first, 16, person="mia")
        unknown.append((await client.complete(prompt(history + QUESTION_TOKENS), 4, person="mia")).ttft_s)
        known.append((await client.complete(first + prompt(QUESTION_TOKENS), 4, person="mia")).ttft_s)
        print(f"round {i + 1} of {rounds}: {known[-1]:.3f} s, {unknown[-1]:.3f} s", file=sys.stderr)
    return known, unknown


async def run(socket: Path, args: argparse.Namespace) -> tuple[list[float], list[float]]:
    async with connect(Target(socket=socket)) as client:
        await client.learn(args.model)
        return await measure(client, args.history, args.rounds)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--state-dir", type=Path, required=True, help="where the library of models is")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--history", type=int, default=2000, help="tokens of the first turn")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--kv-memory", default="auto")
    parser.add_argument("--kv-host-memory", default="auto")
    args = parser.parse_args()
    sizes = {"kv_memory": args.kv_memory, "kv_host_memory": args.kv_host_memory}
    with serving(args.state_dir, args.model, **sizes) as server:
        known, unknown = map(median, asyncio.run(run(server.socket, args)))
    print(
        f"{args.model}, {args.history} tokens of history and {QUESTION_TOKENS} new ones, medians of {args.rounds}:"
    )
    print(
        f"known {known * 1e3:.0f} ms, unknown {unknown * 1e3:.0f} ms to the first token: {unknown / known:.1f} times"
    )


if __name__ == "__main__":
    main()
