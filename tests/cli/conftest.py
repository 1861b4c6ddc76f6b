"""A daemon that says what the test wants, and the real command line run as a real process against it."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import forks
from tests.client.fake_daemon import FakeDaemon
from tests.daemon.box import Box, running
from tests.daemon.tiny_model import build
from tests.forks import COMMAND, Fork

DEADLINE_S = 20.0


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str


class Terminal:
    """A process on a pseudo-terminal: `type` to it, `until` something is on the screen."""

    def __init__(self, args: list[str], env: dict[str, str], stdout: int | None = None) -> None:
        self._master, slave = pty.openpty()
        self.process = Fork(
            [*COMMAND, *args],
            terminal=True,
            stdin=slave,
            stdout=slave if stdout is None else stdout,
            stderr=slave,
            env=env,
        )
        os.close(slave)
        self.screen = ""

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def until(self, pattern: str) -> str:
        """Wait for a pattern in what has been shown since the last call; returns all up to and with it."""
        deadline = time.monotonic() + DEADLINE_S
        while not (found := re.search(pattern, self.screen)):
            if not self._read(deadline):
                raise AssertionError(f"{pattern!r} did not come; the screen has {self.screen!r}")
        seen, self.screen = self.screen[: found.end()], self.screen[found.end() :]
        return seen

    def press_until(self, key: str, pattern: str) -> None:
        """Press a key, again after half a second in vain, until the pattern is there: the line editor overlooks a
        signal that comes just before it waits."""
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            self.type(key)
            again = time.monotonic() + 0.5
            while time.monotonic() < again:
                if re.search(pattern, self.screen):
                    self.until(pattern)
                    return
                self._read(again)
        raise AssertionError(f"{pattern!r} did not come; the screen has {self.screen!r}")

    def end(self) -> tuple[int, str]:
        """Wait for the process to end; its exit code and the rest of the screen."""
        deadline = time.monotonic() + DEADLINE_S
        while self._read(deadline):
            pass
        return self.process.wait(DEADLINE_S), self.screen

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._master)

    def _read(self, deadline: float) -> bool:
        if not select.select([self._master], [], [], max(0.0, deadline - time.monotonic()))[0]:
            return False
        try:
            data = os.read(self._master, 65536)
        except OSError:  # the other side is closed
            return False
        self.screen += data.decode(errors="replace").replace("\r\n", "\n")
        return bool(data)


class Shell:
    """Runs `homebox` with the environment of this test."""

    def __init__(self, env: dict[str, str]) -> None:
        self.env = env
        self._started: list[subprocess.Popen[str]] = []
        self._terminals: list[Terminal] = []

    def __call__(self, *args: str, stdin: str | bytes | None = "", **env: str) -> Ran:
        done = forks.run(
            [*COMMAND, *args],
            input=stdin.encode() if isinstance(stdin, str) else stdin,
            env=self.env | env,
            timeout=DEADLINE_S,
        )
        return Ran(done.returncode, done.stdout.decode(), done.stderr.decode())

    def modules(self, *args: str) -> list[str]:
        """The modules that are loaded when this command line has run."""
        code = (
            "import sys\nfrom homebox.cli.main import main\ntry:\n    main()\n"
            "finally:\n    print(' '.join(sys.modules), file=sys.stderr)"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, *args],
            env=self.env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        return done.stderr.splitlines()[-1].split()

    def start(self, *args: str, **env: str) -> subprocess.Popen[str]:
        process = Fork(
            [*COMMAND, *args],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.env | env,
        )
        self._started.append(process)
        return process

    def terminal(self, *args: str, stdout: int | None = None, **env: str) -> Terminal:
        found = Terminal(list(args), self.env | {"TERM": "xterm"} | env, stdout)
        self._terminals.append(found)
        return found

    def close(self) -> None:
        for process in self._started:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.communicate()
        for terminal in self._terminals:
            terminal.close()


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeDaemon]:
    with FakeDaemon(tmp_path / "api.sock") as running:
        yield running


@pytest.fixture
def homebox(tmp_path: Path) -> Iterator[Shell]:
    """The command, pointed at the fake daemon's socket, with a home of its own."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("HOMEBOX_", "XDG_"))}
    shell = Shell(
        env
        | {
            "HOMEBOX_SOCKET": str(tmp_path / "api.sock"),
            "HOMEBOX_STATE_DIR": str(tmp_path / "state"),
            "HOME": str(tmp_path),
            "PYTHONPATH": str(Path(__file__).parents[2]),
        }
    )
    yield shell
    shell.close()


@pytest.fixture
def wait_for() -> Callable[[Callable[[], object]], None]:
    """Wait until a condition holds, with a deadline."""

    def wait(condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < deadline, "the condition did not come true"
            time.sleep(0.01)

    return wait


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model, for a real daemon with the scripted engine."""
    return build(tmp_path_factory.mktemp("models"))


@pytest.fixture
def box(model: Path, tmp_path: Path) -> Iterator[Box]:
    with running(model, tmp_path) as running_box:
        yield running_box
