"""The prompt on a real terminal: what a paste and an editor do to a program that reads keys from a pty."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from fcntl import ioctl
from pathlib import Path

import pytest

DEADLINE_S = 30.0


class OnPty:
    """The prompt as a process on a terminal of 80x24 that shows what a person would see go by."""

    def __init__(self, env: dict[str, str]) -> None:
        self.master, slave = pty.openpty()
        ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.before = termios.tcgetattr(slave)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.tui.prompt_app"],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=os.environ | {"TERM": "xterm-256color"} | env,
            start_new_session=True,
            preexec_fn=lambda: ioctl(0, termios.TIOCSCTTY, 0),
        )
        self.slave = slave
        self.seen = ""

    def write(self, text: str) -> None:
        """All of it, while what the program writes is taken away: a full pty would stop both."""
        data = text.encode()
        while data:
            readable, writable, _ = select.select([self.master], [self.master], [], DEADLINE_S)
            if readable:
                self._read()
            if writable:
                data = data[os.write(self.master, data[:4096]) :]

    def until(self, pattern: str) -> str:
        deadline = time.monotonic() + DEADLINE_S
        while not (found := re.search(pattern, self.seen, re.DOTALL)):
            assert time.monotonic() < deadline, f"{pattern!r} did not come: {self.seen[-2000:]!r}"
            if select.select([self.master], [], [], 0.1)[0]:
                self._read()
        self.seen = self.seen[found.end() :]
        return found[0]

    def _read(self) -> None:
        self.seen += os.read(self.master, 65536).decode(errors="replace")

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.master)
        os.close(self.slave)


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[OnPty]:
    script = tmp_path / "editor"
    script.write_text(
        '#!/bin/sh\necho "the editor has it" > /dev/tty; printf "%s, edited" "$(cat "$1")" > "$1"\n'
    )
    script.chmod(0o755)
    running = OnPty({"EDITOR": str(script), "PYTHONPATH": str(Path(__file__).parents[2])})
    yield running
    running.close()


def test_pastes_and_an_editor_on_a_real_terminal(terminal: OnPty) -> None:
    big = ("a line of it\r" * 90_000)[: 1 << 20]
    terminal.until("sk something")
    terminal.write("\x1b[200~never \x1b[31mred\x1b[0m\r\rsent\r\x1b[201~")
    terminal.until("control characters were left out")
    terminal.write("\x07")
    terminal.until("the editor has it")
    terminal.until("edited")
    terminal.write(" \x1b[200~" + big + "\x1b[201~")
    terminal.until("80,660 lines")
    terminal.write("!\r")
    terminal.until("sk something")
    terminal.write("\x04")
    sent = json.loads(terminal.until(r'\{"sent".*\}'))["sent"]
    text = big.replace("\r", "\n")
    assert sent == [f"never red\n\nsent, edited {text}!"]
    assert terminal.process.wait(DEADLINE_S) == 0
    assert termios.tcgetattr(terminal.slave) == terminal.before
