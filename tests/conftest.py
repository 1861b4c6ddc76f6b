"""What all tests share: the real default model, fetched once through our own library code and kept between runs."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import platformdirs
import pytest

if TYPE_CHECKING:
    from homebox.library.store import Library


def pytest_configure() -> None:
    """A shell that runs the tests in the background has them ignore Ctrl-C, and so would every process they start."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def model_library() -> Library:
    """The library that keeps the default model between test runs: HOMEBOX_TEST_STATE, else a cache directory."""
    from homebox.library.store import Library

    return Library(Path(os.environ.get("HOMEBOX_TEST_STATE") or platformdirs.user_cache_dir("homebox-tests")))


@pytest.fixture(scope="session")
def default_model(model_library: Library) -> Path:
    """The installed default model's directory."""
    from homebox.library.catalogue import DEFAULT
    from homebox.library.pull import pull

    return pull(model_library, DEFAULT)
