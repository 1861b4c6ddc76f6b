"""Which file is meant by what was typed after an @?

A walk of the current directory that is bounded in entries and in time, matched loosely; or, for something that begins
like a path, the entries of the directory that it names. Called in a thread: a directory may lie on a slow disk. It
knows no widgets.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path

from textual.fuzzy import Matcher

MAX_ENTRIES = 5000
MAX_WALK_S = 0.2
MAX_SHOWN = 50
_PATH_STARTS = ("~", "/", "./", "../")


def find(query: str, names: Sequence[str]) -> list[str]:
    """The files that may be meant, the likeliest first. A directory ends with a slash."""
    return complete(query) if query.startswith(_PATH_STARTS) else match(query, names)


def walk(
    root: Path, *, max_entries: int = MAX_ENTRIES, max_s: float = MAX_WALK_S
) -> tuple[tuple[str, ...], bool]:
    """The files below `root`, near ones first, hidden ones left out; and whether these are all."""
    until, seen = time.monotonic() + max_s, 0
    found: list[str] = []
    folders = deque([root])
    while folders:
        for entry in _entries(folders.popleft()):
            seen += 1
            if seen > max_entries or time.monotonic() > until:
                return tuple(found), False
            if entry.name.startswith("."):
                continue
            if entry.is_dir(follow_symlinks=False):
                folders.append(Path(entry.path))
            elif _is_file(entry):
                found.append(os.path.relpath(entry.path, root))
    return tuple(found), True


def match(query: str, names: Sequence[str]) -> list[str]:
    """Those that have the letters of `query` in order, the best first."""
    if not query:
        return list(names[:MAX_SHOWN])
    score = Matcher(query).match
    scored = sorted((-value, len(name), name) for name in names if (value := score(name)) > 0)
    return [name for _, _, name in scored[:MAX_SHOWN]]


def complete(typed: str) -> list[str]:
    """The paths that begin like this one; hidden ones only where their dot was typed."""
    if typed == "~":
        return ["~/"]
    folder, _, prefix = typed.rpartition("/")
    try:
        where = Path(f"{folder}/").expanduser()
    except RuntimeError:  # ~nobody
        return []
    rows = [
        (not entry.is_dir(), entry.name)
        for entry in _entries(where)
        if entry.name.startswith(prefix) and (prefix.startswith(".") or not entry.name.startswith("."))
    ]
    return [f"{folder}/{name}{'' if is_file else '/'}" for is_file, name in sorted(rows)[:MAX_SHOWN]]


def _entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            yield from found
    except OSError:  # not ours to read, or gone meanwhile
        return


def _is_file(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file()
    except OSError:
        return False
