"""Does the service manager hear what it needs, and only that?"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from homebox.daemon.notify import Notifier
from tests.forks import SERVER, Fork

from .box import state_with
from .test_serve import SERVE

WATCHDOG_S = 0.6


class Manager:
    """The other end of NOTIFY_SOCKET."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.heard: list[str] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))

    def next(self, within_s: float = 20.0) -> str:
        self._socket.settimeout(within_s)
        self.heard.append(self._socket.recv(4096).decode())
        return self.heard[-1]

    def until(self, part: str) -> str:
        while part not in (message := self.next()):
            pass
        return message

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    found = Manager(tmp_path / "notify.sock")
    yield found
    found.close()


@contextmanager
def daemon(
    model: Path, folder: Path, manager: Manager, *, quick: bool = False, **env: str
) -> Iterator[subprocess.Popen[bytes]]:
    told = {
        "NOTIFY_SOCKET": str(manager.path),
        "WATCHDOG_USEC": str(int(WATCHDOG_S * 1e6)),
    }
    state, path = state_with(model, folder), folder / "api.sock"
    command = [sys.executable, SERVE, str(state), str(path), "5", *(["quick"] if quick else [])]
    process = Fork(
        command,
        imports=SERVER,
        env=os.environ | told | env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_it_says_ready_then_how_it_stands_feeds_the_watchdog_and_says_when_it_goes(
    model: Path, tmp_path: Path, manager: Manager
) -> None:
    with daemon(model, tmp_path, manager) as process:
        first = manager.next()
        assert first.startswith("READY=1\nSTATUS=tiny st")  # it starts; the model is not there yet
        manager.until("STATUS=tiny ready, 0 running, 0 waiting")
        for _ in range(3):
            manager.until("WATCHDOG=1")
        process.send_signal(signal.SIGTERM)
        stopping = manager.until("STOPPING=1")
        # Longer than the five seconds of its drain: systemd waits for us, not the other way round.
        assert int(stopping.partition("EXTEND_TIMEOUT_USEC=")[2]) > 5_000_000
        assert process.wait(10) == 0


def test_what_has_not_changed_is_not_said_again(model: Path, tmp_path: Path, manager: Manager) -> None:
    with daemon(model, tmp_path, manager):
        manager.until("STATUS=tiny ready")
        said = len(manager.heard)
        for _ in range(8):
            manager.until("WATCHDOG=1")
        assert not [message for message in manager.heard[said:] if "STATUS" in message]


def test_a_box_whose_engine_never_starts_goes_hungry(model: Path, tmp_path: Path, manager: Manager) -> None:
    with daemon(model, tmp_path, manager, quick=True, HOMEBOX_SCRIPT_LOAD="fail"):
        manager.until("STATUS=tiny failed")
        deadline = time.monotonic() + 20 * WATCHDOG_S
        with pytest.raises(TimeoutError):  # a period without a word; one that was under way may still arrive
            while time.monotonic() < deadline:
                manager.next(within_s=3 * WATCHDOG_S)


def test_without_a_service_manager_nothing_is_said_and_nothing_fails() -> None:
    quiet = Notifier.from_environment({})
    quiet.ready("well")
    quiet.alive()
    assert quiet.watchdog_s is None
    gone = Notifier("/nowhere/notify.sock")
    gone.ready("well")


def test_what_systemd_told_us_is_not_for_our_children() -> None:
    told = {
        "NOTIFY_SOCKET": "@abstract",
        "WATCHDOG_USEC": "3000000",
        "WATCHDOG_PID": str(os.getpid()),
        "HOME": "/",
    }
    assert Notifier.from_environment(told).watchdog_s == 3.0
    assert told == {"HOME": "/"}
    other = {"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "1"}
    assert Notifier.from_environment(other).watchdog_s is None


def test_a_status_is_one_line(manager: Manager) -> None:
    Notifier(str(manager.path)).status("two\nREADY=1\nlines" + "x" * 5000)
    message = manager.next()
    assert message.startswith("STATUS=two READY=1 lines") and "\n" not in message and len(message) < 400
