"""A daemon of its own for one benchmark: started on a socket of its own, with a step log, stopped at the end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from homebox.bench.client import Target, connect
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
        async with connect(Target(socket=socket)) as client:
            health = await client.json("/health")
        if health and health["state"] == "ready":
            return True
        await asyncio.sleep(0.1)
    return False
