"""Every kernel compiles for every GPU that we mean to run on, and fits there. No GPU is needed, nor looked at."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from homebox.kernels.triton.compile import TARGETS, choice, variants


def compiled(folder: Path, *options: str) -> list[dict[str, Any]]:
    """In a process without the interpreter, with nothing from a run before."""
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", "homebox.kernels.triton.compile", "--json", *options],
        env=environment | {"TRITON_CACHE_DIR": str(folder)},
        capture_output=True,
        text=True,
    )
    made = [json.loads(line) for line in done.stdout.splitlines()]
    assert not [one for one in made if one["error"]], done.stderr
    assert done.returncode == 0, done.stderr
    return made


def kernels() -> set[str]:
    """What is a kernel, in all modules, whatever the compile test says."""
    from homebox.kernels.triton import draw, enter, paged, quantised, rows
    from homebox.kernels.triton.launch import Kernel

    modules = (draw, enter, paged, quantised, rows)
    return {name for module in modules for name, value in vars(module).items() if isinstance(value, Kernel)}


def test_every_kernel_and_every_target_is_among_what_is_compiled() -> None:
    chosen = choice()
    assert {variant.kernel for _, variant in chosen} == kernels()
    assert {target for target, _ in chosen} == set(TARGETS)


def test_a_choice_of_kernels_compiles_for_every_target_and_fits(tmp_path: Path) -> None:
    made = compiled(tmp_path, "--choice", "--processes", "2")
    assert {one["target"] for one in made} == set(TARGETS)
    assert all(one["code_bytes"] and one["registers"] for one in made)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("target", TARGETS)
def test_every_kernel_in_every_shape_compiles_and_fits(target: str, tmp_path: Path) -> None:
    made = compiled(tmp_path, "--targets", target)
    assert len(made) == len(list(variants(TARGETS[target])))


def test_what_does_not_fit_is_said(tmp_path: Path) -> None:
    code = (
        "import homebox.kernels.triton.compile as c\n"
        "c.TARGETS['sm_90'] = c.TARGETS['sm_90']._replace(shared_bytes=8)\n"
        "first = next(v for v in c.variants(c.TARGETS['sm_90']) if v.kernel == 'survey')\n"
        "print(c.compile_for('sm_90', first).error)"
    )
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment | {"TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.stdout.startswith("16 bytes of shared memory, 8 there"), done.stderr
