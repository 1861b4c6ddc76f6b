"""Do our kernels work on the GPU that is here? One that nobody asked for is used only then.

Each set of checks is a process of its own (proving.py), since a kernel that reads where it must not takes its process
with it. What they measured is remembered, and measured again when anything changes that it depends on; what only came
in the way, too little memory or time, a compiler that is missing, is tried again at the next start.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from pathlib import Path
from typing import NamedTuple

import torch

from homebox.engine.compute import plan_for
from homebox.engine.gpu import Gpu
from homebox.errors import KernelsMissing
from homebox.fit.model import Model
from homebox.fit.plan import kinds, kv_kind
from homebox.kernels.fp8 import multiplies
from homebox.kernels.remembered import Finding, Remembered
from homebox.model.loader import Report
from homebox.wire.frames import Start

FILE = "gpu.json"
STAGE = "checking the GPU"
SETS = ("attention", "entering", "operations", "quantised", "sampling", "whole")
AT_ONCE = 3  # each takes up to 1 GiB of the GPU, and as much of the machine
WITHIN_S, LEAVE_S, REPORT_S = 300.0, 10.0, 5.0
# How a process of proving.py ends: memory was short, or the GPU refused what a kernel did.
NO_MEMORY, ILLEGAL = 3, 4
# A kernel did it, and will do it again.
_CRASHES = {-signal.SIGSEGV, -signal.SIGBUS, -signal.SIGABRT, -signal.SIGILL, ILLEGAL}


class Outcome(NamedTuple):
    """Of a set: why it failed, or nothing. `lasting`: whether it will be the same the next time."""

    why: str = ""
    lasting: bool = False


def why_not(
    gpu: Gpu, start: Start, model: Model, report: Report, cache: Path,
    run: Callable[[Gpu, Start, str], Outcome] | None = None,
) -> str:  # fmt: skip
    """Why this GPU is not to be used for this model, or nothing. Takes a minute or two the first time. `cache`: the directory
    where the answer is kept; `run`: does one of SETS."""
    about = _about(gpu, start, model)
    try:
        remembered = Remembered(cache, FILE)
        found = remembered.find(about)
        if found is None:
            failed = [each for each in _outcomes(run or in_a_process, gpu, start, report) if each.why]
            for each in failed:
                if not each.lasting:
                    return f"our kernels could not be checked on it: {each.why}"
            found = Finding(about, not failed, failed[0].why if failed else "")
            remembered.put(found)
    except (KernelsMissing, OSError) as error:
        return f"whether our kernels work on it is not found out, since that could not be remembered: {error}"
    again = f"to check again, remove {remembered.path}"
    return f"our kernels do not pass their checks on it: {found.why}; {again}" if found.why else ""


def _about(gpu: Gpu, start: Start, model: Model) -> dict[str, str]:
    """All that the answer depends on. Not the driver: what it loads is compiled by what comes with Triton and torch."""
    from homebox.kernels.triton import trial

    plan, spec = plan_for(start, threads=1, kernels="gpu"), model.spec
    numbers = spec.hidden, spec.heads, spec.kv_heads, spec.head_dim, spec.mlp, spec.vocab_size
    return {
        "gpu": gpu.name,
        "capability": str(gpu.capability()),
        "torch": str(torch.__version__),
        "kernels": trial.own_build(),
        "around them": _own_build(),
        "model": f"{numbers} {sorted(set(map(str, spec.windows)))}",
        "kept": f"{kinds(model, plan)}, {kv_kind(model, plan)}, products of fp8: {multiplies(gpu.device)}",
    }


def _own_build() -> str:
    digest, root = hashlib.sha256(), Path(__file__).parents[1]
    for part in ("kernels", "engine", "model"):
        for file in sorted((root / part).rglob("*.py")):
            digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def _outcomes(
    run: Callable[[Gpu, Start, str], Outcome], gpu: Gpu, start: Start, report: Report
) -> list[Outcome]:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        running = [pool.submit(run, gpu, start, name) for name in SETS]
        left = set(running)
        while left:
            report(STAGE, len(SETS) - len(left), len(SETS))  # now and then, or we are taken for dead
            left = wait(left, REPORT_S, FIRST_COMPLETED).not_done
        report(STAGE, len(SETS), len(SETS))
    return [each.result() for each in running]


def in_a_process(gpu: Gpu, start: Start, name: str, within_s: float = WITHIN_S) -> Outcome:
    command = [
        sys.executable, "-m", "homebox.engine.proving", name, "--model", start.model_dir, "--device", str(gpu.device),
        "--quantize", start.quantize, "--kv-type", start.kv_type, "--until-closed",
    ]  # fmt: skip
    end, held = os.pipe()  # closed when this process ends, however it does: then that one ends, too
    try:
        process = subprocess.Popen(
            command, stdin=end, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
    except OSError as error:
        os.close(held)
        return Outcome(f"{name}: {error}")
    finally:
        os.close(end)
    try:
        out, err = process.communicate(timeout=within_s)
    except subprocess.TimeoutExpired:
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # the driver may hold it for ever
            process.communicate(timeout=LEAVE_S)
        return Outcome(f"{name} took longer than {within_s:.0f} s")
    finally:
        os.close(held)
    sys.stderr.write(err)
    return _read(name, out, err, process.returncode)


def _read(name: str, out: str, err: str, ended: int) -> Outcome:
    """What a process said, and how it ended."""
    for line in out.splitlines():
        check = json.loads(line)
        if not check["error"] <= check["bound"]:
            off = f"{check['name']} is off by {check['error']:.2g}, of which {check['bound']:g} is rounding"
            return Outcome(off if check["bound"] else f"{check['name']}: not so", lasting=True)
    if ended == NO_MEMORY:
        return Outcome(f"{name}: too little memory is free, on it or in this machine")
    if ended:
        last = (err.strip().splitlines() or [f"ended with {ended}"])[-1]
        return Outcome(f"{name}: {last[:200]}", lasting=ended in _CRASHES)
    return Outcome()
