"""The native kernels, compiled for this machine."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest

import homebox.kernels.cpu

SOURCES = Path(homebox.kernels.cpu.__file__).parent / "native"
FLAGS = "-std=c++17 -O3 -fPIC -shared -fvisibility=hidden -fno-math-errno -fno-trapping-math -ffp-contract=off -pthread"
LEVELS = {  # best first
    "avx512": "-mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma -mf16c",
    "avx2": "-mavx2 -mfma -mf16c",
    "portable": "",
}


def _runs_here(level: str) -> bool:
    cpuinfo = Path("/proc/cpuinfo")
    has = set(cpuinfo.read_text().split()) if cpuinfo.exists() else set()
    return has.issuperset(flag.removeprefix("-m") for flag in LEVELS[level].split())


@pytest.fixture(
    scope="session",
    params=["best", *(pytest.param(level, marks=pytest.mark.long) for level in ("avx2", "portable"))],
)
def sampling_library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The sampling kernel for one level. Skips where this machine cannot build or run it."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no C++ compiler here")
    level = next(filter(_runs_here, LEVELS)) if request.param == "best" else request.param
    if not _runs_here(level):
        pytest.skip(f"this processor has no {level}")
    library = tmp_path_factory.mktemp("kernels") / f"{level}.so"
    flags = (*FLAGS.split(), *LEVELS[level].split())
    subprocess.run([compiler, *flags, str(SOURCES / "sampling.cpp"), "-o", str(library)], check=True)
    return ctypes.CDLL(str(library))
