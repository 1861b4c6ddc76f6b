"""What does it cost to watch the box?

    python -m homebox.bench.monitor [--seconds 20] [--interval 2] [--rows 16,64] [--size 80x24]

A real `homebox top` on a pseudo-terminal, fed by a small server on a Unix socket that says a new snapshot every interval,
with so many streams whose every figure changes. Measured on the process itself once its past is drawn: its share of one
core, its resident memory, the bytes it writes for a picture, and the time from its start to its first one.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import math
import os
import pty
import select
import socketserver
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import msgspec
import psutil

from homebox.wire.events import Blocks, Device, PersonBlocks, Snapshot, StreamRow

CORE_BUDGET = {16: 5.0, 64: 8.0}  # percent of one core
MEMORY_BUDGET_MIB = 120
COMMAND = [sys.executable, "-c", "from homebox.cli.main import main; main()", "top"]
PEOPLE = ("anna", "dad", "leo", "mia")
PAST_S = 300
_FIRST_WITHIN_S = 60.0


def snapshot(at: float, count: int) -> Snapshot:
    """A busy moment: every figure of every row is another one than before."""
    wave = 0.5 + 0.5 * math.sin(at / 9)
    rows = tuple(
        StreamRow(
            id=f"t-{i:08x}",
            person=PEOPLE[i % 4],
            state="decode" if i < 16 else "waiting",
            model="qwen3-8b",
            klass="normal",
            tokens_in=1000 + 37 * i,
            tokens_out=int(at * 60) % 4000 + i,
            position=None if i < 16 else i - 15,
            tok_s=60 + 9 * wave + i / 10 if i < 16 else None,
            ttft_ms=300.0 + i if i < 16 else None,
            blocks=40 + int(at) % 100 + i if i < 16 else 0,
            age_s=at % 500 + i,
            mine=i % 4 == 0,
        )
        for i in range(count)
    )
    return Snapshot(
        at=at,
        version="0.1.0",
        uptime_s=at % 1e6,
        engine="ready",
        model="qwen3-8b",
        max_running=16,
        devices=(
            Device(
                kind="gpu",
                name="RTX 4090",
                util_percent=90 * wave,
                memory_used_bytes=18 << 30,
                memory_total_bytes=24 << 30,
                power_w=200 + 200 * wave,
                temperature_c=50 + 20 * wave,
            ),
        ),
        blocks=Blocks(
            total=1536,
            used=900 + int(400 * wave),
            cached=100,
            free=536 - int(400 * wave),
            block_size=16,
            people=tuple(PersonBlocks(person=name, blocks=200 + int(80 * wave)) for name in PEOPLE),
        ),
        prefix_hit_rate=0.6,
        running=min(16, count),
        waiting=max(0, count - 16),
        tok_s_out=900 * wave,
        tok_s_in=2000 * wave,
        step_ms=14 + wave,
        ttft_p50_ms=400.0,
        ttft_p95_ms=1900.0,
        gap_p50_ms=14.0,
        gap_p95_ms=22.0,
        streams=rows,
    )


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    block_on_close = False
    rows = 16

    def handle_error(self, request: object, client_address: object) -> None:
        return  # the client leaves in the middle of a picture


class _Requests(BaseHTTPRequestHandler):
    """The daemon's side: who we are, a snapshot, or one every interval with the past before the first."""

    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        return

    def address_string(self) -> str:
        return "unix"

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        if url.path == "/homebox/me":
            self._whole({"name": "anna", "role": "adult", "entered": True, "rules": {}, "own": {}})
        elif "interval" not in url.query:
            self._whole(snapshot(time.time(), self._rows))
        else:
            self._follow(float(parse_qs(url.query)["interval"][0]))

    @property
    def _rows(self) -> int:
        assert isinstance(self.server, _Server)
        return self.server.rows

    def _whole(self, value: object) -> None:
        body = msgspec.json.encode(value)
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _follow(self, interval_s: float) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        now = time.time()
        for before in range(PAST_S, 0, -2):
            self._line(msgspec.structs.replace(snapshot(now - before, 0), past=True))
        while True:
            self._line(snapshot(time.time(), self._rows))
            time.sleep(interval_s)

    def _line(self, now: Snapshot) -> None:
        line = msgspec.json.encode(now) + b"\n"
        self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
        self.wfile.flush()


@contextlib.contextmanager
def serving(rows: int) -> Iterator[Path]:
    """The socket of such a daemon."""
    with tempfile.TemporaryDirectory(prefix="homebox-bench-") as folder:
        path = Path(folder) / "api.sock"
        server = _Server(str(path), _Requests)
        server.rows = rows
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield path
        finally:
            server.shutdown()
            server.server_close()


@dataclass(frozen=True)
class Watched:
    """`core_percent` of one core, `picture_bytes` written for each new picture."""

    rows: int
    first_s: float
    core_percent: float
    resident_mib: float
    picture_bytes: float


class Reader:
    """Takes what the screen writes, so that its terminal is never full."""

    def __init__(self, master: int) -> None:
        self._master = master
        self.size = 0

    def read(self, for_s: float, until: bytes = b"") -> bool:
        """For so long, or until something is on the screen."""
        deadline, seen = time.monotonic() + for_s, b""
        while (left := deadline - time.monotonic()) > 0:
            if select.select([self._master], [], [], left)[0]:
                data = os.read(self._master, 1 << 16)
                self.size += len(data)
                seen = (seen + data)[-(1 << 17) :]
                if until and until in seen:
                    return True
        return False


def watch(rows: int, seconds: float, interval_s: float, size: tuple[int, int]) -> Watched:
    """One `homebox top`, from its start."""
    with serving(rows) as socket:
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
        env = os.environ | {
            "HOMEBOX_SOCKET": str(socket), "TERM": "xterm-256color", "LC_ALL": "C.UTF-8", "COLORTERM": "truecolor",
        }  # fmt: skip
        env.pop("HOMEBOX_URL", None)
        began = time.monotonic()
        command = [*COMMAND, "--interval", f"{interval_s:g}"]
        process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, env=env, start_new_session=True
        )
        os.close(slave)
        try:
            reader = Reader(master)
            if not reader.read(_FIRST_WITHIN_S, until=b"00000"):
                raise SystemExit("homebox top showed no picture")
            first_s = time.monotonic() - began
            reader.read(2 * interval_s)  # the past is drawn, and what is imported late
            measured = psutil.Process(process.pid)
            before, before_s, size_before = measured.cpu_times(), time.monotonic(), reader.size
            reader.read(seconds)
            after, took_s = measured.cpu_times(), time.monotonic() - before_s
            used_s = after.user + after.system - before.user - before.system
            return Watched(
                rows,
                first_s,
                100 * used_s / took_s,
                measured.memory_info().rss / 2**20,
                (reader.size - size_before) / (took_s / interval_s),
            )
        finally:
            process.kill()
            process.wait()
            os.close(master)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--interval", type=float, default=2.0)
    parser.add_argument("--rows", default="16,64", help="how many streams, one measurement each")
    parser.add_argument("--size", default="80x24", help="of the terminal, like 140x40")
    args = parser.parse_args()
    columns, _, lines = args.size.partition("x")
    print(f"homebox top at {args.size}, a picture every {args.interval:g} s, {args.seconds:g} s each")
    print("| streams | of one core | budget | resident MiB | budget | bytes a picture | first picture s |")
    print("|---|---|---|---|---|---|---|")
    for rows in map(int, args.rows.split(",")):
        found = watch(rows, args.seconds, args.interval, (int(columns), int(lines)))
        budget = CORE_BUDGET.get(rows)
        print(
            f"| {rows} | {found.core_percent:.1f}% | {'' if budget is None else f'{budget:g}%'} | "
            f"{found.resident_mib:.0f} | {MEMORY_BUDGET_MIB} | {found.picture_bytes:,.0f} | {found.first_s:.1f} |"
        )


if __name__ == "__main__":
    main()
