"""Is what the command wrote still, byte for byte, what was agreed?

A golden is a file of `goldens/`. Rewrite them all with HOMEBOX_GOLDENS=write, and read the diff.
"""

from __future__ import annotations

import os
from pathlib import Path

FOLDER = Path(__file__).parent / "goldens"


def check(name: str, actual: str) -> None:
    """Compare with the golden `name`, or write it where HOMEBOX_GOLDENS=write asks for it."""
    file = FOLDER / f"{name}.txt"
    if os.environ.get("HOMEBOX_GOLDENS") == "write":
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(actual, encoding="utf-8", newline="")
    assert actual.encode() == file.read_bytes(), f"{name}: HOMEBOX_GOLDENS=write shows what changed"
