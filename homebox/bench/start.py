"""How long does somebody wait before a command has done anything?

    python -m homebox.bench.start [--runs 15]

Starts the command again and again and takes the best run, since others use the machine too: the wall clock, and the CPU
time of the process, which says what the wall clock would be on a calm machine. `ask` is timed from the start of its process
to the arrival of its whole request at a socket that answers with a refusal.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

HELP_MS, ASK_MS, TAB_MS = 200, 250, 350
COMMAND = [sys.executable, "-c", "from homebox.cli.main import main; main()"]
_REFUSAL = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"
HEAVY = ("textual", "rich", "torch", "httpx", "aiohttp", "pydantic")


@dataclass
class Door:
    """A socket at which requests arrive; `at_s` is when the last one was whole."""

    path: Path
    at_s: float = 0.0

    def __post_init__(self) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(self.path))
        self._socket.listen()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            connection, _ = self._socket.accept()
            with connection:
                head, body = b"", b""
                while b"\r\n\r\n" not in head:
                    head += connection.recv(65536)
                head, _, body = head.partition(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0] or 0)
                while len(body) < length:
                    body += connection.recv(65536)
                self.at_s = time.monotonic()
                with contextlib.suppress(OSError):  # who asked for ids does not wait for long
                    connection.sendall(_REFUSAL)


@dataclass(frozen=True)
class Run:
    wall_ms: float
    cpu_ms: float


def run(args: list[str], env: dict[str, str], end: Callable[[], float]) -> Run:
    """One start. `end` gives the moment at which what is timed was reached."""
    began = time.monotonic()
    process = subprocess.Popen(
        [*COMMAND, *args],
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _, _, used = os.wait4(process.pid, 0)
    process.returncode = 0  # it was waited for here
    return Run((end() - began) * 1e3, (used.ru_utime + used.ru_stime) * 1e3)


def heavy(args: list[str], env: dict[str, str]) -> list[str]:
    """What it imports that it should do without."""
    code = f"import sys\n{COMMAND[2].replace('; ', chr(10))}"
    code = code.replace("main()", "try:\n main()\nfinally:\n print(*sys.modules, file=sys.stderr)")
    done = subprocess.run(
        [sys.executable, "-c", code, *args],
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    loaded = {name.partition(".")[0] for name in done.stderr.splitlines()[-1].split()}
    return sorted(loaded & set(HEAVY))


def measures(door: Door) -> list[tuple[str, list[str], int, Callable[[], float]]]:
    """What it is called, the arguments, the budget in ms, and the moment at which it is over."""
    return [
        ("homebox --help, to its end", ["--help"], HELP_MS, time.monotonic),
        ("homebox ask --help, to its end", ["ask", "--help"], HELP_MS, time.monotonic),
        ("homebox ask Why?, to its request", ["ask", "Why?"], ASK_MS, lambda: door.at_s),
        ("a Tab for ids, to its end", ["completion", "words", "chats"], TAB_MS, time.monotonic),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=15)
    runs = parser.parse_args().runs
    with tempfile.TemporaryDirectory() as folder:
        door = Door(Path(folder) / "s")
        env = os.environ | {"HOMEBOX_SOCKET": str(door.path)}
        print(f"{f'best of {runs}':44}{'budget ms':>10}{'wall ms':>9}{'CPU ms':>8}  heavy imports")
        for label, args, budget, end in measures(door):
            done = [run(args, env, end) for _ in range(runs)]
            wall, cpu = min(each.wall_ms for each in done), min(each.cpu_ms for each in done)
            found = ", ".join(heavy(args, env)) or "none"
            print(f"{label:44}{budget:10}{wall:9.0f}{cpu:8.0f}  {found}")


if __name__ == "__main__":
    main()
