"""A daemon for each test that asks for one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .box import Box, running
from .tiny_model import build


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("models"))


@pytest.fixture
def box(model: Path, tmp_path: Path) -> Iterator[Box]:
    with running(model, tmp_path) as box:
        yield box
