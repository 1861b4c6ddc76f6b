"""What does a person at a terminal wait for? A command on a pty of its own, for measurements at the other end of it.

It takes what the command writes, so that the terminal is never full, and says when something was on the screen.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

WITHIN_S = 60.0
_KEPT = 1 << 17  # bytes that a sign may be spread over


class Terminal:
    """`size`: bytes written so far."""

    def __init__(self, process: subprocess.Popen[bytes], master: int) -> None:
        self.process, self._master = process, master
        self._measured = psutil.Process(process.pid)
        self._seen = b""
        self.size = 0

    def write(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def forget(self) -> None:
        """What was written so far is no sign any more."""
        self._seen = b""

    def shows(self, sign: str | bytes, within_s: float = WITHIN_S) -> float:
        """Wait for it, and the moment at which it was written. Raises SystemExit when it does not come."""
        wanted = sign.encode() if isinstance(sign, str) else sign
        deadline = time.monotonic() + within_s
        while wanted not in self._seen:
            if not self.read(deadline - time.monotonic()):
                raise SystemExit(f"{sign!r} did not come: {self._seen[-2000:]!r}")
        self.forget()
        return time.monotonic()

    def has_shown(self, sign: str) -> bool:
        return sign.encode() in self._seen

    def read(self, within_s: float) -> bool:
        """What has come, or comes within this time. False where nothing does, or the command has ended."""
        if not select.select([self._master], [], [], max(0.0, within_s))[0]:
            return False
        try:
            data = os.read(self._master, 1 << 16)
        except OSError:  # how a pty says that nobody has it open any more
            return False
        self.size += len(data)
        self._seen = (self._seen + data)[-_KEPT:]
        return bool(data)

    def wait(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            self.read(left)

    def cpu_s(self) -> float:
        """Processor time of all of its threads."""
        used = self._measured.cpu_times()
        return used.user + used.system

    def resident_mib(self) -> float:
        return float(self._measured.memory_info().rss) / 2**20

    def ends(self) -> None:
        """Take what it writes until it has ended."""
        deadline = time.monotonic() + WITHIN_S
        while self.process.poll() is None:
            if time.monotonic() > deadline:
                raise SystemExit("it did not end")
            self.read(0.05)


@contextlib.contextmanager
def running(
    command: Sequence[str], socket: Path, size: tuple[int, int], env: dict[str, str] | None = None
) -> Iterator[Terminal]:
    """The command on a terminal of so many columns and rows; killed at the end."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
    around = os.environ | {
        "HOMEBOX_SOCKET": str(socket), "TERM": "xterm-256color", "LC_ALL": "C.UTF-8", "COLORTERM": "truecolor",
    }  # fmt: skip
    for name in ("HOMEBOX_URL", "HOMEBOX_PLAIN", "NO_COLOR"):
        around.pop(name, None)
    process = subprocess.Popen(
        command, stdin=slave, stdout=slave, stderr=slave, env=around | (env or {}), start_new_session=True
    )
    os.close(slave)
    try:
        yield Terminal(process, master)
    finally:
        process.kill()
        process.wait()
        os.close(master)
