"""How does a program without torch get to know the quality? It starts `homebox.bench.quality` and reads its lines."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from homebox.errors import EngineFailed, UsageError, from_dict

COMMAND = (sys.executable, "-m", "homebox.bench.quality")


def measured(
    model_dir: Path, step: Callable[[str, int, int], None], command: Sequence[str] = COMMAND
) -> dict[str, Any]:
    """Raises what the process said, UsageError where there is no torch, EngineFailed where it died."""
    found: dict[str, Any] | None = None
    with tempfile.TemporaryFile() as said:
        env = {"OMP_WAIT_POLICY": "PASSIVE"} | os.environ  # as the engine's process has it
        process = subprocess.Popen([*command, str(model_dir)], stdout=subprocess.PIPE, stderr=said, env=env)
        try:
            assert process.stdout is not None
            for line in process.stdout:
                told = _told(line)
                if "error" in told:
                    raise from_dict(told["error"])
                if "stage" in told:
                    step(told["stage"], told["done"], told["total"])
                found = told.get("quality", found)
            process.wait()
        finally:
            process.kill()
            process.communicate()
        said.seek(0)
        last = said.read().decode(errors="replace").strip().rpartition("\n")[2]
    if found is not None:
        return found
    if last.startswith("ModuleNotFoundError"):
        raise UsageError(
            f"the quality is measured with the engine's libraries, which are not here: {last}",
            hint="Install homebox[engine], or leave --quality out.",
        )
    raise EngineFailed(f"measuring the quality ended with status {process.returncode}: {last or 'no word'}")


def _told(line: bytes) -> dict[str, Any]:
    """What a library prints besides is no message."""
    with contextlib.suppress(msgspec.DecodeError):
        told = msgspec.json.decode(line)
        if isinstance(told, dict):
            return told
    return {}
