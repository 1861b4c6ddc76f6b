"""How long after `homebox serve` does it answer, is its engine ready, has somebody a first token?

    python -m homebox.bench.ready --state-dir DIR [--model NAME] [--runs 5]

The best of some runs, since others use the machine too, with the processor time of both processes until the engine is
ready, which says what the wall clock would be on a calm machine: the daemon and the engine begin side by side.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from dataclasses import astuple, dataclass
from pathlib import Path

import psutil

from homebox.bench.client import Client, Dialect, Target, connect
from homebox.bench.server import Server, start

ANSWERS_S, TOKEN_S = 2.0, 8.0
LOOK_EVERY_S = 0.005


@dataclass(frozen=True)
class Run:
    """Seconds since the command was started; processor seconds."""

    engine_s: float
    answers_s: float
    ready_s: float
    token_s: float
    daemon_cpu_s: float
    engine_cpu_s: float


async def measure(server: Server, model: str, began_s: float) -> Run:
    """Follow one start to its first token."""
    async with connect(Target(socket=server.socket)) as client:
        client.dialect = Dialect(model)  # known beforehand: to `learn` it would be a first token of its own
        return await _follow(client, server, began_s)


async def _follow(client: Client, server: Server, began_s: float) -> Run:
    daemon = psutil.Process(server.process.pid)
    engine_s = answers_s = ready_s = None
    while ready_s is None:
        if server.process.poll() is not None:
            raise SystemExit(f"the daemon left:\n{server.log.read_text()[-2000:]}")
        if engine_s is None and daemon.children():
            engine_s = time.monotonic() - began_s
        if health := await client.json("/health"):
            answers_s = answers_s or time.monotonic() - began_s
            ready_s = time.monotonic() - began_s if health["state"] == "ready" else None
        await asyncio.sleep(LOOK_EVERY_S)
    cpu_s = [sum(process.cpu_times()[:2]) for process in (daemon, *daemon.children())]
    told = await client.complete([100, 200, 300], 1, person="anna")
    assert engine_s is not None and answers_s is not None
    return Run(engine_s, answers_s, ready_s, told.at_s[0] - began_s, cpu_s[0], sum(cpu_s[1:]))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--state-dir", type=Path, required=True, help="where the library of models is")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--runs", type=int, default=5)
    args = parser.parse_args()
    runs = []
    for _ in range(args.runs):
        with tempfile.TemporaryDirectory(prefix="homebox-bench-") as folder:
            began_s = time.monotonic()
            server = start(Path(folder), args.state_dir, args.model)
            try:
                runs.append(asyncio.run(measure(server, args.model, began_s)))
            finally:
                server.process.terminate()
                server.process.wait()
    best = Run(*(min(values) for values in zip(*map(astuple, runs), strict=True)))
    print(f"best of {args.runs}, {args.model}; seconds after `homebox serve`")
    print(f"{'the engine is a process':32}{best.engine_s:8.2f}")
    print(f"{'the daemon answers':32}{best.answers_s:8.2f}   budget {ANSWERS_S:g}")
    print(f"{'the engine is ready':32}{best.ready_s:8.2f}")
    print(f"{'a first token':32}{best.token_s:8.2f}   budget {TOKEN_S:g}")
    print(f"processor time until ready: daemon {best.daemon_cpu_s:.2f} s, engine {best.engine_cpu_s:.2f} s")


if __name__ == "__main__":
    main()
