"""One server at a time: started, waited for, and gone without leaving a process behind.

Raises `Unavailable` with what the server said last, for a peer that does not start.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import httpx
import psutil

from homebox.bench.peers.install import Unavailable, last_error

ASK_EVERY_S = 0.2
END_S = 10.0


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextlib.contextmanager
def serving(
    words: Sequence[str], env: Mapping[str, str], log: Path, port: int, within_s: float
) -> Iterator[str]:
    """The URL of the server, once it lists its model."""
    url = f"http://127.0.0.1:{port}"
    with log.open("wb") as out:
        try:
            process = subprocess.Popen(
                words,
                env=env,
                cwd=log.parent,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        except OSError as error:
            raise Unavailable(f"{words[0]}: {error.strerror}") from None
    try:
        _wait(process, url, log, within_s)
        yield url
    finally:
        end(process)


def _wait(process: subprocess.Popen[bytes], url: str, log: Path, within_s: float) -> None:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise Unavailable(f"it ended while starting: {last_error(log)}")
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(f"{url}/v1/models", timeout=5.0, trust_env=False).status_code == 200:
                return
        time.sleep(ASK_EVERY_S)
    raise Unavailable(f"it did not answer within {within_s:.0f} s: {last_error(log)}")


def end(process: subprocess.Popen[bytes]) -> None:
    """It and all that it started: asked first, then killed. Some peers put their workers into groups of their own."""
    family: list[psutil.Process] = []
    with contextlib.suppress(psutil.NoSuchProcess):
        first = psutil.Process(process.pid)
        family = [first, *first.children(recursive=True)]
    for sign, within_s in ((signal.SIGTERM, END_S), (signal.SIGKILL, END_S)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, sign)
        for each in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.send_signal(sign)
        _, family = psutil.wait_procs(family, timeout=within_s)
    process.wait()
