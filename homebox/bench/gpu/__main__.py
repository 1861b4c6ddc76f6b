"""Everything about a GPU in one go: are the kernels right, are the texts, how fast is it? `scripts/gpu_check`.

    python -m homebox.bench.gpu [--json FILE] [--small] [--sections checks,8B,...] [--minutes 8]

Each section is a process of its own with a time of its own, so that one that fails leaves the others; the checks run side
by side, since most of their time goes into compiling. With --small on the CPU, in Triton's interpreter: everything runs to
its end, and no figure means anything.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

# Section: seconds that it may take, and whether it goes on beside others.
SECTIONS: dict[str, tuple[int, bool]] = {
    "attention": (120, True),
    "entering": (60, True),
    "operations": (60, True),
    "quantised": (90, True),
    "sampling": (90, True),
    "equality": (90, True),
    "chunks": (60, False),
    "speeds": (60, False),
    "8B dense": (120, False),
    "8B int4": (90, False),
    "0.6B dense": (60, False),
    "transformers 8B": (120, False),
    "8B fp8": (120, False),
}
_CHECKS = [name for name, (_, beside) in SECTIONS.items() if beside]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="also write everything to FILE", metavar="FILE")
    parser.add_argument("--small", action="store_true", help="on the CPU, tiny, in Triton's interpreter")
    parser.add_argument("--sections", default="", help=f"some of: {', '.join(SECTIONS)} [all]")
    parser.add_argument(
        "--minutes", type=float, default=8.0, help="no section begins after this [%(default)s]"
    )
    parser.add_argument(
        "--section", help=argparse.SUPPRESS
    )  # in a process of its own: print its lines as JSON
    asked = parser.parse_args()
    if asked.section:
        return _one(asked.section, asked.small)
    chosen = [name.strip() for name in asked.sections.split(",") if name.strip()] or list(SECTIONS)
    if unknown := set(chosen) - set(SECTIONS):
        parser.error(f"unknown sections: {', '.join(sorted(unknown))}; known: {', '.join(SECTIONS)}")
    if not asked.small and (why := _no_gpu()):
        print(
            f"{why}\n  With --small everything runs on the CPU, without a figure that means anything.",
            file=sys.stderr,
        )
        return 2
    return _all(chosen, asked.small, asked.minutes * 60, asked.json)


def _no_gpu() -> str:
    import torch

    return "" if torch.cuda.is_available() else f"torch {torch.__version__} sees no GPU"


def _all(chosen: list[str], small: bool, within_s: float, file: Path | None) -> int:
    began = time.monotonic()
    found: dict[str, Any] = {"machine": _machine(small), "sections": {}}
    print("\n".join(f"{key}: {value}" for key, value in found["machine"].items()))
    waves = [
        [name for name in chosen if name in _CHECKS],
        *([name] for name in chosen if name not in _CHECKS),
    ]
    failed = 0
    for wave in (wave for wave in waves if wave):
        left = within_s - (time.monotonic() - began)
        if left <= 0:
            print(f"no time left for: {', '.join(wave)}", file=sys.stderr)
            failed += len(wave)
            continue
        print(f"[{time.monotonic() - began:5.0f} s] {', '.join(wave)} ...", file=sys.stderr)
        for name, lines, error in _side_by_side(wave, small, left):
            found["sections"][name] = {"lines": lines, "error": error}
            failed += _show(name, lines, error)
            if file:
                file.write_text(json.dumps(found, indent=1))
    _show_ratios(found)
    found["seconds"] = round(time.monotonic() - began, 1)
    if file:
        file.write_text(json.dumps(found, indent=1))
    print(f"{found['seconds']} s; {'all passed' if not failed else f'{failed} failed'}")
    return 1 if failed else 0


def _side_by_side(names: list[str], small: bool, left_s: float) -> Iterator[tuple[str, list[Any], str]]:
    env = os.environ | ({"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""} if small else {})
    command = [sys.executable, "-m", "homebox.bench.gpu", *(["--small"] if small else []), "--section"]
    running = [
        (
            name,
            subprocess.Popen(
                [*command, name], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            ),
        )
        for name in names
    ]
    began = time.monotonic()
    for name, process in running:
        limit = min(SECTIONS[name][0] * (4 if small else 1), left_s) - (time.monotonic() - began)
        error = ""
        try:
            out, err = process.communicate(timeout=max(limit, 1.0))
            if process.returncode:
                error = (err.strip().splitlines() or [f"ended with {process.returncode}"])[-1]
        except subprocess.TimeoutExpired:
            process.kill()
            out, _ = process.communicate()
            error = f"took more than its {SECTIONS[name][0]} s"
        yield name, [json.loads(line) for line in out.splitlines() if line.startswith("{")], error


def _one(name: str, small: bool) -> int:
    """A section in this process; a JSON line for each finding, as it comes."""
    import torch

    from homebox.bench.gpu import library, measures, shapes, speeds
    from homebox.bench.gpu.equality import equality
    from homebox.kernels.triton import checks

    device = torch.device("cpu" if small else "cuda")
    sizes = measures.SMALL if small else measures.Sizes()
    found: Iterator[Any]
    if name in checks.SETS:
        found = checks.SETS[name](device, shapes.SMALL_SCOPE if small else shapes.SCOPE)
    elif name == "equality":
        found = equality(device, small)
    elif name == "chunks":
        found = library.chunks(device)
    elif name == "speeds":
        found = speeds.speeds(device, sizes, small)
    else:
        shape, kind = name.split()
        if shape == "transformers":
            found = measures.transformers("tiny" if small else kind, device, sizes)
        else:
            found = measures.engine("tiny" if small else shape, kind, device, sizes)
    for each in found:
        print(json.dumps(_line(each)), flush=True)
    return 0


def _line(found: Any) -> dict[str, Any]:
    if is_dataclass(found) and not isinstance(found, type):
        return asdict(found)
    line: dict[str, Any] = found._asdict()
    return line | ({"passed": found.passed} if "bound" in line else {})


def _show(name: str, lines: list[Any], error: str) -> int:
    """Print a section; returns how much of it failed."""
    failed = int(bool(error))
    print(f"\n{name}")
    for line in lines:
        if "said" in line:
            print(f"  {line['said']}")
        elif "bound" in line and "error" in line:
            failed += not line["passed"]
            mark = "ok  " if line["passed"] else "FAIL"
            print(f"  {mark} {line['name']}: off by {line['error']:.2g} (at most {line['bound']:.2g})")
        else:
            print(f"  {line['what']}: {line['value']:.4g} {line['unit']}{_compared(line)}")
    if error:
        print(f"  FAIL {error}")
    return failed


def _compared(line: dict[str, Any]) -> str:
    goal, less = line["goal"], line["better"] == "less"
    if line["bound"] is not None:
        ratio = line["value"] / line["bound"]
        text = f", {ratio:.2f} {line['of']}"
        return text + (f" (goal {goal:g})" if goal is not None else "")
    return f" (goal: {'at most' if less else 'at least'} {goal:g})" if goal is not None else ""


def _show_ratios(found: dict[str, Any]) -> None:
    """Against transformers, in the same run."""
    ours = _values(found, "8B dense")
    theirs = _values(found, "transformers 8B")
    many = next((value for what, value in ours.items() if what.endswith(" streams")), None)
    print()
    for what, goal in (("transformers, one at a time", 25.0), ("transformers, continuous", 1.5)):
        if many and what in theirs:
            print(f"many streams against {what}: {many / theirs[what]:.1f} times (goal {goal:g})")


def _values(found: dict[str, Any], section: str) -> dict[str, float]:
    lines = found["sections"].get(section, {}).get("lines", [])
    return {line["what"]: line["value"] for line in lines}


def _version(*packages: str) -> str:
    for package in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(package)
    return "none"


def _machine(small: bool) -> dict[str, str]:
    import torch

    found = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": _version("triton", "pytorch-triton-rocm"),
        "cores": str(os.cpu_count()),
    }
    if not small:
        free, total = torch.cuda.mem_get_info()
        major, minor = torch.cuda.get_device_capability()
        found |= {
            "gpu": torch.cuda.get_device_name(),
            "capability": f"{major}.{minor}",
            "memory": f"{free / 2**30:.1f} of {total / 2**30:.1f} GiB free",
        }
    return found


if __name__ == "__main__":
    sys.exit(main())
