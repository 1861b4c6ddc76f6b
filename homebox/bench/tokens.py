"""What does a token cost outside the engine?

    python -m homebox.bench.tokens [--streams 32] [--rate 30] [--seconds 5] [--rounds 3] [--kinds completions,chat,...]

On a machine without a GPU the daemon computes on the cores that the engine needs, so each microsecond that it spends on
a token is one that no answer gets. A whole daemon with the tests' scripted engine, which gives every stream a token a step,
`rate` steps a second, each stream with a reader of its own: processor time of the daemon's process over the tokens
that arrived meanwhile, and how often its event loop was woken for one step. By the dialect in which they were asked for.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import secrets
import tempfile
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import psutil

from homebox.bench import scripted
from homebox.bench.figures import median

BUDGET_US = 50.0
WARM_S = 1.0
KINDS = ("completions", "chat", "ask", "chats")


@dataclass
class Reader:
    """One client's stream; what it gets is counted and thrown away."""

    deliveries: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class Cost:
    """Of one span."""

    us: float  # of processor time, a token
    wakeups_a_step: float
    tokens_s: float
    bytes_a_token: float


@dataclass
class Load:
    """The streams of one span, all of the same kind."""

    http: aiohttp.ClientSession
    kind: str
    rate: int
    turns: list[str] = field(default_factory=list)
    readers: list[Reader] = field(default_factory=list)

    async def run(self, person: str) -> None:
        """One stream, until it is given up."""
        reader = Reader()
        self.readers.append(reader)
        async with self._opened(person) as answer:
            if answer.status != 200:
                raise SystemExit(f"the daemon refused: {answer.status} {await answer.text()}")
            async for data in answer.content.iter_any():
                reader.deliveries += 1
                reader.bytes += len(data)

    @contextlib.asynccontextmanager
    async def _opened(self, person: str) -> AsyncIterator[aiohttp.ClientResponse]:
        said = f"[[forever]][[rate={self.rate}]]"
        path, body = _BODIES[self.kind](said)
        if self.kind != "chats":
            async with self.http.post(path, json=body, headers={"X-Homebox-As": person}) as answer:
                yield answer
            return
        async with self.http.post(path, json=body) as created:  # nobody writes in the chats of others
            if created.status != 200:
                raise SystemExit(f"the daemon refused: {created.status} {await created.text()}")
            turn = (await created.json())["turn"]
        self.turns.append(turn)
        async with self.http.get(f"/homebox/turns/{turn}/events") as answer:
            yield answer


def _messages(said: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": said}]


_MAX = {"max_tokens": scripted.CONTEXT // 2}
_BODIES: dict[str, Callable[[str], tuple[str, dict[str, Any]]]] = {
    "completions": lambda said: (
        "/v1/completions",
        {"model": scripted.MODEL, "prompt": said, "stream": True} | _MAX,
    ),
    "chat": lambda said: (
        "/v1/chat/completions",
        {"model": scripted.MODEL, "messages": _messages(said), "stream": True} | _MAX,
    ),
    "ask": lambda said: ("/homebox/ask", {"messages": _messages(said), "options": _MAX}),
    "chats": lambda said: (
        f"/homebox/chats/{secrets.token_hex(8)}/turns",
        {"key": secrets.token_hex(8), "text": said, "options": _MAX},
    ),
}


async def span(socket: Path, pid: int, kind: str, streams: int, rate: int, seconds: float) -> Cost:
    """Measure for so long, once all streams flow."""
    daemon = psutil.Process(pid)
    connector, forever = aiohttp.UnixConnector(str(socket), limit=0), aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession("http://homebox", connector=connector, timeout=forever) as http:
        load = Load(http, kind, rate)
        tasks = [asyncio.create_task(load.run(f"person{i}")) for i in range(streams)]
        while sum(reader.deliveries > 2 for reader in load.readers) < streams:
            if broken := next((task for task in tasks if task.done()), None):
                broken.result()
            await asyncio.sleep(0.01)
        await asyncio.sleep(WARM_S)
        tokens, sent = await _tokens(http), sum(reader.bytes for reader in load.readers)
        before, woken = _cpu_s(pid), daemon.num_ctx_switches().voluntary
        await asyncio.sleep(seconds)
        after, woken = _cpu_s(pid), daemon.num_ctx_switches().voluntary - woken
        tokens = await _tokens(http) - tokens
        sent = sum(reader.bytes for reader in load.readers) - sent
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for turn in load.turns:
            await http.delete(f"/homebox/turns/{turn}")
        await _until_idle(http)
    return Cost((after - before) * 1e6 / tokens, woken / (tokens / streams), tokens / seconds, sent / tokens)


async def _until_idle(http: aiohttp.ClientSession) -> None:
    """What has no reader any more is ended by the daemon itself."""
    while await _tokens(http):  # noqa: ASYNC110  # it is another process that is waited for
        await asyncio.sleep(0.01)


async def _tokens(http: aiohttp.ClientSession) -> int:
    """What all live answers have so far."""
    async with http.get("/homebox/streams") as answer:
        return sum(row["tokens_out"] for row in (await answer.json())["streams"])


def _cpu_s(pid: int) -> float:
    """All threads of a process, to the nanosecond (proc(5), schedstat): `times` counts in hundredths of a second."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--rate", type=int, default=30, help="steps a second")
    parser.add_argument("--seconds", type=float, default=5.0, help="of one span")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kinds", default=",".join(KINDS))
    args = parser.parse_args()
    found: dict[str, list[Cost]] = {kind: [] for kind in args.kinds.split(",")}
    with tempfile.TemporaryDirectory(prefix="homebox-bench-") as name:
        folder = Path(name)
        scripted.prepare(folder)
        with scripted.serving(folder) as (_, process):
            socket = folder / "run" / "api.sock"
            for _ in range(args.rounds):
                for kind, costs in found.items():
                    costs.append(
                        asyncio.run(span(socket, process.pid, kind, args.streams, args.rate, args.seconds))
                    )
    print(
        f"{args.streams} streams, {args.rate} steps a second, {args.rounds} spans of {args.seconds:g} s each"
    )
    print(f"{'':14}{'us a token':>12}{'median':>8}{'budget':>8}{'wakeups':>9}{'tok/s':>8}{'bytes':>7}")
    for kind, costs in found.items():
        woken, rate = median([c.wakeups_a_step for c in costs]), median([c.tokens_s for c in costs])
        size = median([c.bytes_a_token for c in costs])
        print(
            f"{kind:14}{min(c.us for c in costs):12.1f}{median([c.us for c in costs]):8.1f}{BUDGET_US:8.0f}"
            f"{woken:9.1f}{rate:8.0f}{size:7.0f}"
        )


if __name__ == "__main__":
    main()
