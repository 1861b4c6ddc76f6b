"""How much memory does a box take besides its weights and its KV?

    python -m homebox.bench.memory --state-dir DIR [--model NAME] [--streams 32]

Each process's share (Pss of proc(5): what several map is divided among them), after the load, and after some streams at
once and a text so large that the process for large texts was started; against weights + KV + an allowance. The KV pool
is small, so that the streams write nearly all of it: what was never written takes nothing and would hide the rest.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import psutil

from homebox.bench.client import Dialect, Target, connect
from homebox.bench.server import Server, serving
from homebox.client.connection import Daemon
from homebox.errors import ContextLengthExceeded

ALLOWED_BYTES = 400 * 2**20
PROMPT_TOKENS, ANSWER_TOKENS = 64, 8
LARGE_TEXT = "All happy families are alike. " * 4000
MIB = 2**20


@dataclass(frozen=True)
class Share:
    """Of one process: bytes that are its own, in files (code, mapped weights) or not."""

    pid: int
    name: str
    total: int
    anonymous: int


def share(process: psutil.Process) -> Share:
    rows = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()[1:]
    found = {name: int(rest.split()[0]) * 1024 for name, _, rest in (row.partition(":") for row in rows)}
    words = " ".join(process.cmdline())
    name = next((kind for kind in ("engine", "text") if f"homebox.{kind}.worker" in words), "daemon")
    return Share(process.pid, name, found["Pss"], found.get("Pss_Anon", 0))


def shares(server: Server) -> list[Share]:
    daemon = psutil.Process(server.process.pid)
    return [share(process) for process in (daemon, *daemon.children(recursive=True))]


def torch_alone() -> Share:
    """A process that has done nothing but import torch."""
    code = "import torch, sys; print(flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=-1, stdout=-1) as process:
        assert process.stdout is not None and process.stdin is not None
        process.stdout.readline()
        found = share(psutil.Process(process.pid))
        process.stdin.close()
    return found


async def load(server: Server, model: str, streams: int) -> None:
    """`streams` answers at once, and one large text for the process that makes tokens of those."""
    async with connect(Target(socket=server.socket)) as client:
        client.dialect = Dialect(model)
        prompts = [[100 + i, *range(200, 200 + PROMPT_TOKENS)] for i in range(streams)]
        await asyncio.gather(
            *(client.complete(prompt, ANSWER_TOKENS, person=f"person{i}") for i, prompt in enumerate(prompts))
        )
        with contextlib.suppress(ContextLengthExceeded):  # too long to be answered, and tokenised
            await client.complete(LARGE_TEXT, 1)


def table(title: str, found: list[Share], owed: int) -> None:
    print(f"\n{title}")
    print(f"{'':24}{'Pss MiB':>10}{'anonymous':>11}")
    for each in found:
        print(f"{each.name:24}{each.total / MIB:10.0f}{each.anonymous / MIB:11.0f}")
    total = sum(each.total for each in found)
    print(
        f"{'all':24}{total / MIB:10.0f}           beyond weights and KV: {(total - owed) / MIB:.0f}"
        f" (allowed {ALLOWED_BYTES / MIB:.0f})"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--state-dir", type=Path, required=True, help="where the library of models is")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--kv-memory", default="128MiB")
    args = parser.parse_args()
    alone = torch_alone()
    print(
        f"a process with torch and nothing else: {alone.total / MIB:.0f} MiB, {alone.anonymous / MIB:.0f} anonymous"
    )
    with serving(args.state_dir, args.model, kv_memory=args.kv_memory) as server:
        now = Daemon(socket_path=server.socket).json("GET", "/homebox/monitor")
        weights, kv = int(now["weight_bytes"]), int(now["kv_bytes"])
        print(f"weights {weights / MIB:.0f} MiB, KV {kv / MIB:.0f} MiB at most")
        table("after the load", shares(server), weights + kv)
        asyncio.run(load(server, args.model, args.streams))
        table(f"after {args.streams} streams and a large text", shares(server), weights + kv)


if __name__ == "__main__":
    main()
