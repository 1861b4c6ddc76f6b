"""What all tests share: the real default model, fetched once through our own library code and kept between runs."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import platformdirs
import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from homebox.library.store import Library

# Kernels in Triton are interpreted on the CPU. It looks when it is imported, whoever does that first.
os.environ.setdefault("TRITON_INTERPRET", "1")
# An engine takes a GPU where there is one; what the tests say is to be the same everywhere.
os.environ |= {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}


def pytest_configure(config: pytest.Config) -> None:
    """A shell that runs the tests in the background has them ignore Ctrl-C, and so would every process they start.

    Property tests try the same examples on every run, so that a change is judged by what it changes; the long runs, which
    nothing waits for, try new ones."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    settings.register_profile("the same", derandomize=True)
    settings.register_profile("new ones", derandomize=False, print_blob=True)
    settings.load_profile("new ones" if _is_long(config) else "the same")


def _is_long(config: pytest.Config) -> bool:
    chosen = config.getoption("markexpr")
    return "long" in chosen and "not long" not in chosen


@pytest.fixture
def one_thread_of_torch() -> Iterator[None]:
    """What is small is slow on two threads while other processes run: each waits for the other."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.hookimpl(tryfirst=True)  # before those that are not marked are left out
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if _is_long(config):
        for item in items:
            if isinstance(item, pytest.Function) and getattr(item.obj, "is_hypothesis_test", False):
                item.add_marker("long")


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
