"""A daemon of its own for one benchmark: started on a socket of its own, with a step log, stopped at the end.

And the client that all benchmarks share: token ids in through `/v1/completions`, so that lengths are exact, and the
time of every delivery out.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import msgspec

from homebox.daemon.steplog import StepLine

READY_WITHIN_S = 180.0


@dataclass
class Server:
    socket: Path
    step_log: Path
    log: Path
    process: subprocess.Popen[bytes] = field(init=False)

    def steps(self, since_s: float, until_s: float) -> list[StepLine]:
        """Steps launched in this span of CLOCK_MONOTONIC."""
        lines = [msgspec.json.decode(line, type=StepLine) for line in self.step_log.read_bytes().splitlines()]
        return [line for line in lines if since_s <= line.at_s < until_s]


@contextlib.contextmanager
def serving(state_dir: Path, model: str, **settings: object) -> Iterator[Server]:
    """`homebox serve` with these settings, in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="homebox-bench-") as folder:
        server = start(Path(folder), state_dir, model, **settings)
        try:
            if not asyncio.run(_becomes_ready(server.socket, server.process)):
                raise SystemExit(f"the daemon did not become ready:\n{server.log.read_text()[-2000:]}")
            yield server
        finally:
            server.process.terminate()
            server.process.wait()


def start(folder: Path, state_dir: Path, model: str, **settings: object) -> Server:
    """The process of `homebox serve`, which is on its way. Its socket and what it writes are in `folder`."""
    server = Server(folder / "run" / "api.sock", folder / "steps.jsonl", folder / "log")
    env = os.environ | {f"HOMEBOX_{key.upper()}": str(value) for key, value in settings.items()}
    env |= {
        "HOMEBOX_STATE_DIR": str(state_dir),
        "HOMEBOX_STEP_LOG": str(server.step_log),
        "HOMEBOX_MODEL": model,
    }
    command = [sys.executable, "-c", "from homebox.cli.main import main; main()"]
    with server.log.open("wb") as log:
        server.process = subprocess.Popen(
            [*command, "serve", "--socket", str(server.socket)], env=env, stderr=log
        )
    return server


async def _becomes_ready(socket: Path, process: subprocess.Popen[bytes]) -> bool:
    deadline = time.monotonic() + READY_WITHIN_S
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError, aiohttp.ClientError):
            async with connect(socket) as http, http.get("/health") as answer:
                if (await answer.json())["state"] == "ready":
                    return True
        await asyncio.sleep(0.1)
    return False


@contextlib.asynccontextmanager
async def connect(socket: Path) -> AsyncIterator[aiohttp.ClientSession]:
    connector = aiohttp.UnixConnector(str(socket), limit=0)
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession("http://homebox", connector=connector, timeout=timeout) as http:
        yield http


@dataclass
class Delivered:
    """One request as its client saw it: CLOCK_MONOTONIC seconds."""

    sent_s: float = 0.0
    at_s: list[float] = field(default_factory=list)
    done_s: float = 0.0
    flowing: asyncio.Event = field(default_factory=asyncio.Event)  # set at the fifth delivery

    @property
    def ttft_s(self) -> float:
        return self.at_s[0] - self.sent_s

    def gaps_ms(self, since_s: float, until_s: float) -> list[float]:
        """Gaps between deliveries that end in this span."""
        pairs = zip(self.at_s, self.at_s[1:], strict=False)
        return [(b - a) * 1e3 for a, b in pairs if since_s <= b < until_s]


async def complete(
    http: aiohttp.ClientSession, person: str, model: str, prompt: list[int], max_tokens: int, out: Delivered
) -> Delivered:
    """Greedy, of fixed length; `out` fills while it runs, a delivery a chunk of the stream with text in it."""
    body = {
        "model": model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True,
        "stream": True,
    }  # fmt: skip
    out.sent_s = time.monotonic()
    async with http.post("/v1/completions", json=body, headers={"X-Homebox-As": person}) as answer:
        if answer.status != 200:
            raise SystemExit(f"the daemon refused: {answer.status} {await answer.text()}")
        async for line in answer.content:
            if line.startswith(b"data: {"):
                chunk = json.loads(line[6:])
                if "error" in chunk:
                    raise SystemExit(f"an answer failed: {chunk['error']}")
                if chunk["choices"] and chunk["choices"][0]["text"]:
                    out.at_s.append(time.monotonic())
                    if len(out.at_s) == 5:
                        out.flowing.set()
    out.done_s = time.monotonic()
    return out


def percentile(values: list[float], share: float) -> float:
    """Nearest rank."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def median(values: list[float]) -> float:
    return statistics.median(values)
