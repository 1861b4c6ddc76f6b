"""Does somebody else's long document freeze my answer?

    python -m homebox.bench.victim --state-dir DIR [--streams 8] [--document 4000] [--rounds 3]

Streams are running; then a long prompt arrives, and half a second after it a short question. Measured from the
engine's own step times and at the client, in the same run: the p95 of the gaps of the running streams alone and while
the document is read, the short question's time to first token meanwhile, and how much longer the document takes than
alone. Medians of the rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from homebox.bench.client import Client, Delivered, Target, connect
from homebox.bench.figures import median, percentile
from homebox.bench.server import Server, serving

STREAM_PROMPT = 100
QUESTION_TOKENS = 20
ALONE_S = 6.0
VOCABULARY = 20_000  # ids below this are ordinary words in every tokeniser that we know
_seeds = itertools.count(1)


@dataclass
class Round:
    alone_client_ms: float
    alone_engine_ms: float
    meanwhile_client_ms: float
    meanwhile_engine_ms: float
    question_s: float
    question_alone_s: float
    document_s: float
    document_alone_s: float


def prompt(length: int) -> list[int]:
    rng = random.Random(next(_seeds))
    return [rng.randrange(100, VOCABULARY) for _ in range(length)]


def engine_p95_ms(server: Server, since_s: float, until_s: float, rows: int) -> float:
    """p95 of the time from the end of one step with these decoders to the end of the next."""
    ends = [s.at_s + s.step_ms / 1e3 for s in server.steps(since_s, until_s) if s.decode_rows >= rows]
    return percentile([(b - a) * 1e3 for a, b in itertools.pairwise(ends)], 0.95)


async def one_round(client: Client, server: Server, args: argparse.Namespace) -> Round:
    question_alone = await client.complete(prompt(QUESTION_TOKENS), 4, Delivered(), person="mia")
    document_alone = await client.complete(prompt(args.document), 4, Delivered(), person="dad")

    streams = [Delivered() for _ in range(args.streams)]
    running = [
        asyncio.create_task(client.complete(prompt(STREAM_PROMPT), args.max_tokens, out, person=f"person{i}"))
        for i, out in enumerate(streams)
    ]
    await asyncio.gather(*(out.flowing.wait() for out in streams))
    calm = time.monotonic()
    await asyncio.sleep(ALONE_S)
    arrival = time.monotonic()
    document_out = Delivered()
    document = asyncio.create_task(client.complete(prompt(args.document), 4, document_out, person="dad"))
    await asyncio.sleep(0.5)
    question = await client.complete(prompt(QUESTION_TOKENS), 4, Delivered(), person="mia")
    await document
    read = document_out.at_s[0]
    if any(out.done_s and out.done_s < read for out in streams):
        raise SystemExit("a stream ended before the document was read: give --max-tokens more")
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    return Round(
        alone_client_ms=percentile([g for out in streams for g in out.gaps_ms(calm, arrival)], 0.95),
        alone_engine_ms=engine_p95_ms(server, calm, arrival, args.streams),
        meanwhile_client_ms=percentile([g for out in streams for g in out.gaps_ms(arrival, read)], 0.95),
        meanwhile_engine_ms=engine_p95_ms(server, arrival, read, args.streams),
        question_s=question.ttft_s,
        question_alone_s=question_alone.ttft_s,
        document_s=document_out.ttft_s,
        document_alone_s=document_alone.ttft_s,
    )


async def measure(server: Server, args: argparse.Namespace) -> list[Round]:
    rounds = []
    async with connect(Target(socket=server.socket)) as client:
        await client.learn(args.model)
        await client.complete(prompt(STREAM_PROMPT), 16, Delivered(), person="warm")
        for i in range(args.rounds):
            rounds.append(await one_round(client, server, args))
            print(f"round {i + 1} of {args.rounds}: {rounds[-1]}", file=sys.stderr)
    return rounds


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--state-dir", type=Path, required=True, help="where the library of models is")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--document", type=int, default=4000, help="tokens of the long prompt")
    parser.add_argument("--max-tokens", type=int, default=3000, help="of the running streams")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    with serving(args.state_dir, args.model) as server:
        rounds = asyncio.run(measure(server, args))

    def med(name: str) -> float:
        return median([getattr(r, name) for r in rounds])

    print(
        f"{args.model}: {args.streams} running streams, a document of {args.document} tokens, a question of"
    )
    print(f"{QUESTION_TOKENS}; medians of {args.rounds} rounds")
    print(f"{'':46}{'alone':>10}{'meanwhile':>11}{'ratio':>7}")
    for label, alone, meanwhile in (
        ("p95 gap of a running stream, engine steps, ms", med("alone_engine_ms"), med("meanwhile_engine_ms")),
        ("p95 gap of a running stream, client, ms", med("alone_client_ms"), med("meanwhile_client_ms")),
        ("time to first token of the question, s", med("question_alone_s"), med("question_s")),
        ("time to first token of the document, s", med("document_alone_s"), med("document_s")),
    ):
        print(f"{label:46}{alone:10.2f}{meanwhile:11.2f}{meanwhile / alone:7.2f}")


if __name__ == "__main__":
    main()
