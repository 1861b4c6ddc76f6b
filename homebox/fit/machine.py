"""How much memory is free, measured now?

What the kernel says it could give without swapping (proc(5), MemAvailable), or less where a control group allows less:
in a container or under a service's MemoryMax the machine's own figure is somebody else's.
"""

from __future__ import annotations

from pathlib import Path

import psutil

from homebox import cgroups


def free_bytes(root: Path = Path("/")) -> int:
    return min([int(psutil.virtual_memory().available), *_allowed(root)])


def _allowed(root: Path) -> list[int]:
    """What is left of each control group's limit. Files that were read and not used since are given back first."""
    found = []
    for folder in cgroups.folders(root):
        limits = [cgroups.read(folder / name).strip() for name in ("memory.max", "memory.high")]
        used = cgroups.read(folder / "memory.current").strip()
        if used.isdecimal():
            idle = next(
                (
                    int(line.split()[1])
                    for line in cgroups.read(folder / "memory.stat").splitlines()
                    if line.startswith("inactive_file ")
                ),
                0,
            )
            found += [max(int(limit) - int(used) + idle, 0) for limit in limits if limit.isdecimal()]
    return found


def threads() -> int:
    """How many an engine on this processor would have, about."""
    return psutil.cpu_count(logical=False) or 1
