"""Does somebody else's long document freeze my answer?

    python -m homebox.bench.victim --state-dir DIR [--streams 8] [--document 6000] [--rounds 3]
    python -m homebox.bench.victim --url http://localhost:8000     any other server that takes token ids

Two cases. While streams are running, a long prompt arrives, and half a second after it a short question: the p95 of the
gaps of the running streams alone and while the document is read (alone is the mean of just before and just after: their
own answers grow meanwhile, and cost more a token), the question's time to first token, and how much longer
the document takes than alone. Then, with nothing running, a question half a second behind three documents. Measured at
the client, and for a daemon of ours from the engine's own step times as well, in the same run. Medians of the rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean

from homebox.bench.client import Client, Delivered, Target, base, connect
from homebox.bench.figures import median, percentile
from homebox.bench.server import Server, serving

STREAM_PROMPT = 100
QUESTION_TOKENS = 20
ALONE_S = 4.0  # before, and as long after
BEHIND_S = 0.5  # the question comes so long after the documents
VOCABULARY = 20_000  # ids below this are ordinary words in every tokeniser that we know
_seeds = itertools.count(1)


@dataclass
class Round:
    """`meanwhile`: while a document is read beside running streams. `behind`: after three of them, nothing running. What
    only an engine of ours says is None of others."""

    alone_client_ms: float
    alone_engine_ms: float | None
    meanwhile_client_ms: float
    meanwhile_engine_ms: float | None
    question_s: float
    question_alone_s: float
    document_s: float
    document_alone_s: float
    behind_question_s: float
    behind_alone_s: float
    behind_last_s: float


@dataclass
class Asker:
    """One server, and who is asking it."""

    client: Client
    server: Server | None = None  # ours, with its step log

    async def ask(
        self, person: str, length: int, max_tokens: int = 4, out: Delivered | None = None
    ) -> Delivered:
        return await self.client.complete(prompt(length), max_tokens, out, person=person)

    def engine_p95_ms(self, since_s: float, until_s: float, rows: int) -> float | None:
        """p95 of the time from the end of one step with these decoders to the end of the next."""
        if self.server is None:
            return None
        steps = self.server.steps(since_s, until_s)
        ends = [s.at_s + s.step_ms / 1e3 for s in steps if s.decode_rows >= rows]
        return percentile([(b - a) * 1e3 for a, b in itertools.pairwise(ends)], 0.95)


def prompt(length: int) -> list[int]:
    rng = random.Random(next(_seeds))
    return [rng.randrange(100, VOCABULARY) for _ in range(length)]


async def one_round(asker: Asker, args: argparse.Namespace) -> Round:
    question_alone = await asker.ask("mia", QUESTION_TOKENS)
    document_alone = await asker.ask("dad", args.document)

    streams = [Delivered() for _ in range(args.streams)]
    running = [
        asyncio.create_task(asker.ask(f"person{i}", STREAM_PROMPT, args.max_tokens, out))
        for i, out in enumerate(streams)
    ]
    await asyncio.gather(*(out.flowing.wait() for out in streams))
    calm = time.monotonic()
    await asyncio.sleep(ALONE_S)
    arrival = time.monotonic()
    document_out = Delivered()
    document = asyncio.create_task(asker.ask("dad", args.document, out=document_out))
    await asyncio.sleep(BEHIND_S)
    question = await asker.ask("mia", QUESTION_TOKENS)
    await document
    read, done = document_out.at_s[0], time.monotonic()
    await asyncio.sleep(ALONE_S)
    end = time.monotonic()
    if any(out.done_s and out.done_s < end for out in streams):
        raise SystemExit("a stream ended too early: give --max-tokens more")
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    behind_alone, behind, last = await behind_documents(asker, args)
    alone = ((calm, arrival), (done, end))
    return Round(
        alone_client_ms=fmean(client_p95_ms(streams, *span) for span in alone),
        alone_engine_ms=_mean_if_known(asker.engine_p95_ms(*span, args.streams) for span in alone),
        meanwhile_client_ms=percentile(
            [g for out in streams for g in gaps_meanwhile_ms(out, arrival, read)], 0.95
        ),
        meanwhile_engine_ms=asker.engine_p95_ms(arrival, read, args.streams),
        question_s=question.ttft_s,
        question_alone_s=question_alone.ttft_s,
        document_s=document_out.ttft_s,
        document_alone_s=document_alone.ttft_s,
        behind_question_s=behind,
        behind_alone_s=behind_alone,
        behind_last_s=last,
    )


def client_p95_ms(streams: list[Delivered], since_s: float, until_s: float) -> float:
    return percentile([g for out in streams for g in out.gaps_ms(since_s, until_s)], 0.95)


def _mean_if_known(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def gaps_meanwhile_ms(out: Delivered, arrival_s: float, read_s: float) -> list[float]:
    """Gaps that lie in the reading of the document, wholly or in part. One that goes on after it counts, too: a stream
    that stood still all the while has no other."""
    pairs = itertools.pairwise(out.at_s)
    return [(b - a) * 1e3 for a, b in pairs if b >= arrival_s and a < read_s]


async def behind_documents(asker: Asker, args: argparse.Namespace) -> tuple[float, float, float]:
    """The question alone and behind the documents, and when the last of those was read; seconds to the first token."""
    alone = await asker.ask("mia", QUESTION_TOKENS)
    outs = [Delivered() for _ in range(args.documents)]
    documents = [
        asyncio.create_task(asker.ask(f"person{i}", args.behind, out=out)) for i, out in enumerate(outs)
    ]
    await asyncio.sleep(BEHIND_S)
    question = await asker.ask("mia", QUESTION_TOKENS)
    await asyncio.gather(*documents)
    return alone.ttft_s, question.ttft_s, max(out.ttft_s for out in outs)


async def measure(asker: Asker, args: argparse.Namespace) -> list[Round]:
    rounds = []
    await asker.ask("warm", STREAM_PROMPT, 16)
    for i in range(args.rounds):
        rounds.append(await one_round(asker, args))
        print(f"round {i + 1} of {args.rounds}: {rounds[-1]}", file=sys.stderr)
    return rounds


def measured(args: argparse.Namespace) -> list[Round]:
    if args.url:
        return asyncio.run(_measure_elsewhere(args))
    with serving(args.state_dir, args.model) as server:
        return asyncio.run(_measure_ours(server, args))


async def _measure_elsewhere(args: argparse.Namespace) -> list[Round]:
    async with connect(Target(base(args.url))) as client:
        await client.learn()
        return await measure(Asker(client), args)


async def _measure_ours(server: Server, args: argparse.Namespace) -> list[Round]:
    async with connect(Target(socket=server.socket)) as client:
        await client.learn(args.model)
        return await measure(Asker(client, server), args)


def rows(rounds: list[Round]) -> list[tuple[str, float, float]]:
    """What, alone, meanwhile."""

    def med(name: str) -> float:
        return median([getattr(each, name) for each in rounds])

    found = [
        ("p95 gap of a running stream, client, ms", med("alone_client_ms"), med("meanwhile_client_ms")),
        ("time to first token of the question, s", med("question_alone_s"), med("question_s")),
        ("time to first token of the document, s", med("document_alone_s"), med("document_s")),
        ("the question behind three documents, s", med("behind_alone_s"), med("behind_question_s")),
    ]
    if rounds[0].alone_engine_ms is None:
        return found
    steps = (
        "p95 gap of a running stream, engine steps, ms", med("alone_engine_ms"), med("meanwhile_engine_ms")
    )  # fmt: skip
    return [steps, *found]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--state-dir", type=Path, help="a daemon of our own: where the library of models is")
    where.add_argument("--url", help="another server, without /v1")
    parser.add_argument("--model", default="smollm2-135m", help="of our own daemon")
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--document", type=int, default=6000, help="tokens of the long prompt")
    parser.add_argument(
        "--behind", type=int, default=4000, help="tokens of each of the documents in the second case"
    )
    parser.add_argument("--documents", type=int, default=3, help="how many those are")
    parser.add_argument("--max-tokens", type=int, default=3000, help="of the running streams")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rounds there as well")
    args = parser.parse_args()
    rounds = measured(args)
    if args.json:
        args.json.write_text(json.dumps([asdict(each) for each in rounds], indent=1))
    print(
        f"{args.url or args.model}: {args.streams} running streams, a document of {args.document} tokens, a"
    )
    print(
        f"question of {QUESTION_TOKENS}; {args.documents} documents of {args.behind}; medians of {args.rounds} rounds"
    )
    print(f"{'':46}{'alone':>10}{'meanwhile':>11}{'ratio':>7}")
    for label, alone, meanwhile in rows(rounds):
        print(f"{label:46}{alone:10.2f}{meanwhile:11.2f}{meanwhile / alone:7.2f}")


if __name__ == "__main__":
    main()
