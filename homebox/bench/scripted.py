"""A daemon whose engine says what it is told, at the pace that it is told: for figures that are the daemon's alone.

A whole daemon process with the tests' scripted engine, which needs no model; so it runs from a checkout. What a prompt
can order is written in `tests/daemon/scripted_engine.py`.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import psutil

import homebox
from homebox.client import chats, stream
from homebox.client.connection import Daemon
from homebox.errors import DaemonUnreachable
from homebox.wire.requests import Options, TurnCreated, TurnRequest

T = TypeVar("T")
MODEL = "tiny"
CONTEXT = 65_536
CHECKOUT = Path(homebox.__file__).parents[1]
_SERVE = CHECKOUT / "tests" / "daemon" / "serve_scripted.py"
_BUILD = "import sys, pathlib; from tests.daemon.tiny_model import build; build(pathlib.Path(sys.argv[1]), {!r}, {})"
WITHIN_S = 60.0


def until(condition: Callable[[], T], within_s: float = WITHIN_S) -> T:
    """The first true value of `condition`. Raises SystemExit when there is none in time."""
    deadline = time.monotonic() + within_s
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise SystemExit("what was waited for did not come about")
        time.sleep(0.005)
    return value


def prepare(folder: Path) -> None:
    """A state directory with the tests' model in it."""
    if not _SERVE.exists():
        raise SystemExit("the scripted engine is part of the tests: run this from a checkout")
    command = [sys.executable, "-c", _BUILD.format(MODEL, CONTEXT), str(folder / "models")]
    subprocess.run(command, cwd=CHECKOUT, check=True)


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[tuple[Daemon, subprocess.Popen[bytes]]]:
    """A daemon on `folder`; killed at the end."""
    socket = folder / "run" / "api.sock"
    command = [sys.executable, str(_SERVE), str(folder), str(socket), "1"]
    env = os.environ | {"PYTHONPATH": str(CHECKOUT)}
    with (
        (folder / "log").open("ab") as log,
        subprocess.Popen(command, env=env, stdout=log, stderr=log) as process,
    ):
        daemon = Daemon(socket_path=socket)
        try:
            until(lambda: ready(daemon))
            yield daemon, process
        finally:
            kill(process)


def ready(daemon: Daemon) -> bool:
    """Whether it is there, and its engine, too."""
    try:
        return bool(daemon.json("GET", "/health", accept=(503,))["state"] == "ready")
    except DaemonUnreachable:
        return False


def kill(process: subprocess.Popen[bytes]) -> None:
    """As `kill -9` does: the daemon at once, and its engine where it does not leave by itself."""
    with contextlib.suppress(psutil.NoSuchProcess):
        children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGKILL)
        process.wait()
        _, left = psutil.wait_procs(children, timeout=2.0)
        for child in left:
            child.kill()


def say(daemon: Daemon, chat: str, text: str, max_tokens: int = CONTEXT) -> TurnCreated:
    """Begin an answer in a chat."""
    request = TurnRequest(
        key=secrets.token_hex(8), text=text, options=Options(max_tokens=max_tokens, ignore_eos=True)
    )
    return stream.begin(daemon, chats.path(chat, "turns"), request, on_retry=lambda lost: None)
