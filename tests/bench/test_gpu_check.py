"""`scripts/gpu_check` says what it found, and runs to its end without a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="the development extra brings Triton on Linux on x86-64 only")

from homebox.bench.gpu.__main__ import SECTIONS

ROOT = Path(__file__).parents[2]


def check(*arguments: str, within_s: float = 120) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "homebox.bench.gpu", *arguments]
    env = os.environ | {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(command, capture_output=True, text=True, timeout=within_s, env=env, check=False)


def test_a_section_prints_a_line_a_check_and_keeps_them(tmp_path: Path) -> None:
    done = check("--small", "--sections", "operations", "--json", str(tmp_path / "found.json"))
    assert done.returncode == 0, done.stderr
    assert "ok   norm: off by" in done.stdout and "all passed" in done.stdout
    found = json.loads((tmp_path / "found.json").read_text())
    names = [line["name"] for line in found["sections"]["operations"]["lines"]]
    assert names == ["residual", "norm", "gate"] and found["machine"]["torch"]


def test_without_a_gpu_or_with_an_unknown_section_it_says_the_next_step() -> None:
    done = check("--sections", "operations")
    assert done.returncode == 2 and "sees no GPU" in done.stderr and "--small" in done.stderr
    done = check("--sections", "attentoin")
    assert done.returncode == 2 and "unknown sections: attentoin; known: attention" in done.stderr


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_all_of_it_runs_to_its_end_without_a_gpu(tmp_path: Path) -> None:
    done = check("--small", "--minutes", "25", "--json", str(tmp_path / "found.json"), within_s=1700)
    assert done.returncode == 0 and "all passed" in done.stdout, done.stdout + done.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    assert all(part["lines"] and not part["error"] for part in found["sections"].values())
    assert set(found["sections"]) == set(SECTIONS)
