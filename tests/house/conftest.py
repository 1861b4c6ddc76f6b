"""The whole house: a daemon on a real socket, the real engine in its process, the real default model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from homebox.daemon.engine_process import WORKER
from homebox.daemon.supervisor import Patience
from tests.daemon.box import Box, running


def house(model: Path, folder: Path, command: Sequence[str]) -> AbstractContextManager[Box]:
    """KV memory for one whole context and more: taking what a machine has is a second of each start."""
    return running(model, folder, command=command, patience=Patience(), kv_memory="512MiB")


@pytest.fixture(scope="module")
def box(default_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    with house(default_model, tmp_path_factory.mktemp("house"), WORKER) as box:
        yield box
