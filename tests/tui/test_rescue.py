"""However a screen ends, the terminal is as it was: by itself, by a signal, by SIGKILL, and while it sleeps."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from homebox.client.connection import Daemon

PROGRAM = """
import os
import sys
from pathlib import Path
from homebox.client.connection import Daemon
from homebox.cli.main import guard
from homebox.client.settings import Screens
from homebox.tui import start
daemon = Daemon(socket_path=Path(sys.argv[1]))
Path(sys.argv[2]).write_text(str(os.getpid()))
if os.environ.get("FAULT") == "wish":
    async def broken(self, text):
        raise KeyError(text)
    start.ChatScreen.wishes = property(lambda self: type("Broken", (), {"say": broken})(), lambda self, value: None)
elif os.environ.get("FAULT") == "draw":
    async def broken_draw(self):
        self._dirty = False
        if self.talk.now.items:
            raise KeyError(self.talk.now.items[0].text)
    start.ChatScreen._draw = broken_draw
guard(lambda: start.chat(daemon, Screens()))
"""
DEADLINE_S = 20.0


class Screen:
    """A real chat screen on a pseudo-terminal."""

    def __init__(self, pid: Path, master: int, slave: int) -> None:
        self._pid, self.master, self.slave = pid, master, slave
        self.seen = b""

    def until(self, what: bytes) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while what not in self.seen:
            assert select.select([self.master], [], [], max(0.0, deadline - time.monotonic()))[0], self.seen[
                -500:
            ]
            self.seen += os.read(self.master, 65536)

    @property
    def pid(self) -> int:
        return int(self._pid.read_text())

    def settings(self) -> list[object]:
        return termios.tcgetattr(self.slave)

    def until_settings(self, wanted: list[object]) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while self.settings() != wanted:
            assert time.monotonic() < deadline, "the terminal was not put back"
            if select.select([self.master], [], [], 0.02)[0]:
                self.seen += os.read(self.master, 65536)


@contextmanager
def shown(daemon: Daemon, folder: Path, **environ: str) -> Iterator[tuple[Screen, list[object]]]:
    """Started by a shell, as people do; it stays when the screen has gone."""
    master, slave = pty.openpty()
    before = termios.tcgetattr(slave)
    command = [sys.executable, "-c", PROGRAM, str(daemon.socket_path), str(folder / "pid")]
    shell = subprocess.Popen(
        ["/bin/sh", "-c", '"$@"; echo "ended with $?"; exec cat', "sh", *command],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env={**os.environ, "TERM": "xterm-256color", "PYTHONPATH": str(Path(__file__).parents[2]), **environ},
        start_new_session=True,
        preexec_fn=_take_terminal,
    )
    screen = Screen(folder / "pid", master, slave)
    try:
        screen.until(b"\x1b[?1049h")
        screen.until(b"palette")
        assert screen.settings() != before
        yield screen, before
    finally:
        os.killpg(shell.pid, signal.SIGKILL)
        shell.wait()
        os.close(master)
        os.close(slave)


def _take_terminal() -> None:
    import fcntl

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_the_terminal_is_put_back_when_the_screen_is_killed(
    daemon: Daemon, tmp_path: Path, number: signal.Signals
) -> None:
    with shown(daemon, tmp_path) as (screen, before):
        screen.seen = b""
        os.kill(screen.pid, number)
        screen.until(b"ended with")
        screen.until_settings(before)
        screen.until(b"\x1b[?1049l")
        screen.until(b"\x1b[?25h")
        screen.until(b"\x1b[?2004l")


def test_leaving_puts_the_terminal_back_and_says_what_goes_on(daemon: Daemon, tmp_path: Path) -> None:
    with shown(daemon, tmp_path) as (screen, before):
        os.write(screen.master, b"[[forever]][[pace=20]]\r")
        screen.until(b"writing")
        os.write(screen.master, b"\x11")  # Ctrl-Q
        screen.until(b"the answer goes on; homebox chat -c shows it")
        screen.until(b"ended with 0")
        screen.until_settings(before)
        assert b"Traceback" not in screen.seen


@pytest.mark.parametrize("fault", ["wish", "draw"])
def test_a_fault_of_ours_is_one_line_and_no_traceback(daemon: Daemon, tmp_path: Path, fault: str) -> None:
    with shown(daemon, tmp_path, FAULT=fault) as (screen, before):
        os.write(screen.master, b"[[say=secret]]\r")
        screen.until(b"ended with 1")
        screen.until_settings(before)
        assert b"homebox: internal error: KeyError" in screen.seen
        assert b"Traceback" not in screen.seen
        assert "locals" not in screen.seen.decode(errors="replace").split("internal error")[-1]
