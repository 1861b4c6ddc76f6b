"""A real daemon with the scripted engine for the screens, shared by the tests of a module."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from homebox.client.connection import Daemon
from tests.client.fake_daemon import FakeDaemon
from tests.daemon.box import Box, running
from tests.daemon.tiny_model import build

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def box(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    with running(model, tmp_path_factory.mktemp("box")) as found:
        yield found


@pytest.fixture
def daemon(box: Box) -> Daemon:
    return Daemon(socket_path=Path(box.socket))


@pytest.fixture
def chat() -> str:
    """The id of a conversation that no other test has."""
    return f"{next(_numbers):016x}"


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeDaemon]:
    """A daemon that says what the test wants, on a socket of its own."""
    with FakeDaemon(tmp_path / "api.sock") as found:
        yield found
