"""The native kernels, compiled for this machine: for the best level that it has, and in long runs for every one."""

from __future__ import annotations

import ctypes
import os

import pytest

from homebox.kernels.cpu import abi, levels
from homebox.kernels.cpu.library import SOURCES, Absent, decide
from tests.kernels.cpu_builds import REAL

LEVELS = [level.name for level in levels.possible(levels.processor())]


def native(level: str) -> ctypes.CDLL:
    """The library for one level. Skips where no compiler is; one that cannot compile our sources is a failure."""
    found = decide(SOURCES, os.environ | {"HOMEBOX_CPU_LEVEL": level}, lambda *_: None)
    if isinstance(found, Absent):
        if REAL:
            pytest.fail(found.why)
        pytest.skip(found.why)
    library = abi.declare(found.functions)
    library.hb_threads(2, None)
    return library


@pytest.fixture(
    scope="session",
    params=[LEVELS[0], *(pytest.param(name, marks=pytest.mark.long) for name in LEVELS[1:])],
)
def functions(request: pytest.FixtureRequest) -> ctypes.CDLL:
    return native(request.param)
