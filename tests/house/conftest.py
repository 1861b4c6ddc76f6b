"""The whole house: a daemon on a real socket, the real engine in its process, the real default model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from homebox.daemon.supervisor import WORKER, Patience
from tests.daemon.box import Box, running


@pytest.fixture(scope="module")
def box(default_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    with running(default_model, tmp_path_factory.mktemp("house"), command=WORKER, patience=Patience()) as box:
        yield box
