"""Does a daemon take the socket that systemd made, by its name, and leave it where it is?"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from .box import state_with, until
from .test_serve import SERVE


def socket_at(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen(8)
    return listener


@contextmanager
def activated(
    model: Path, folder: Path, sockets: list[tuple[str, socket.socket]], pid: str = "$$"
) -> Iterator[subprocess.Popen[str]]:
    """A daemon that gets these sockets from number 3 on, as systemd hands them over."""
    state = state_with(model, folder)
    own = folder / "own.sock"
    names = ":".join(name for name, _ in sockets)
    moves = " ".join(f"{3 + i}<&{30 + i} {30 + i}<&-" for i in range(len(sockets)))
    script = (
        f"LISTEN_PID={pid} LISTEN_FDS={len(sockets)} LISTEN_FDNAMES={names} "
        f"exec {sys.executable} {SERVE} {state} {own} 1 {moves}"
    )
    kept = []
    for place, (_, each) in enumerate(sockets):
        os.dup2(each.fileno(), 30 + place, inheritable=True)
        kept.append(30 + place)
    try:
        process = subprocess.Popen(
            ["bash", "-c", script], pass_fds=kept, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
    finally:
        for number in kept:
            os.close(number)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_the_one_called_api_is_served_and_stays_when_we_go(model: Path, tmp_path: Path) -> None:
    other, api = socket_at(tmp_path / "lan.sock"), socket_at(tmp_path / "api.sock")
    with activated(model, tmp_path, [("lan", other), ("api", api)]) as process, other, api:
        assert process.stdout and process.stdout.readline() == "ready\n"
        with httpx.Client(
            transport=httpx.HTTPTransport(uds=str(tmp_path / "api.sock"), verify=False)
        ) as client:
            until(lambda: client.get("http://box/health").json()["state"] == "ready")
        assert not (tmp_path / "own.sock").exists()
        process.terminate()
        _, err = process.communicate(timeout=10)
        assert process.returncode == 0 and "a socket named 'lan' came" in err
    assert (tmp_path / "api.sock").is_socket()


@pytest.mark.parametrize("names", [["lan"], ["connection", "lan"]])
def test_without_one_of_that_name_it_says_what_to_write(
    model: Path, tmp_path: Path, names: list[str]
) -> None:
    given = [(name, socket_at(tmp_path / f"{name}.sock")) for name in names]
    with activated(model, tmp_path, given) as process:
        _, err = process.communicate(timeout=10)
    assert process.returncode and f"sockets named {', '.join(names)}" in err
    assert "FileDescriptorName=api" in err


def test_what_was_meant_for_another_process_is_not_taken(model: Path, tmp_path: Path) -> None:
    with activated(model, tmp_path, [("api", socket_at(tmp_path / "api.sock"))], pid="1") as process:
        assert process.stdout and process.stdout.readline() == "ready\n"
        assert (tmp_path / "own.sock").is_socket()
