"""Which control groups is this process in, from its own up to the topmost? (cgroups(7), version 2)

What a service manager or a container allows stands in their files: the tightest of them holds.
"""

from __future__ import annotations

from pathlib import Path


def folders(root: Path = Path("/")) -> list[Path]:
    """Nothing where the system has none."""
    path = next(
        (
            line[3:].strip("/\n")
            for line in read(root / "proc/self/cgroup").splitlines()
            if line.startswith("0::")
        ),
        None,
    )
    if path is None:
        return []
    top = root / "sys/fs/cgroup"
    here = top / path
    return [folder for folder in (here, *here.parents) if folder.is_relative_to(top)]


def read(file: Path) -> str:
    """Empty where it is not there, or not ours to read."""
    try:
        return file.read_text()
    except OSError:
        return ""
