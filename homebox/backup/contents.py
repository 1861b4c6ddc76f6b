"""What belongs in a backup, and what may stand in one?

One table, read in both directions: saving looks for these files, restoring accepts these names and no others. A part
of homebox that keeps a new file adds a line here. Models are not in it: their names are in the manifest, and they can
be fetched again. It reads no file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path


class Kind(StrEnum):
    DATABASE = "database"  # SQLite: copied as one moment, while others write
    FILE = "file"  # replaced whole by who writes it, or only ever appended to


class Root(StrEnum):
    """The two places that a backup covers; the first part of each name in the archive."""

    STATE = "state"
    CONFIGURATION = "configuration"


@dataclass(frozen=True)
class Item:
    """`pattern` is below its root; a `*` stands for any name that does not begin with a dot. `about` is what a person
    calls it."""

    root: Root
    pattern: str
    kind: Kind
    about: str


ITEMS = (
    Item(Root.STATE, "chats/*.db", Kind.DATABASE, "chats"),
    Item(Root.STATE, "people.json", Kind.FILE, "people"),
    Item(Root.STATE, "keys.json", Kind.FILE, "keys"),
    Item(Root.STATE, "usage.db", Kind.DATABASE, "usage"),
    Item(Root.STATE, "pause.json", Kind.FILE, "pause"),
    Item(Root.STATE, "audit.jsonl*", Kind.FILE, "audit"),
    Item(Root.CONFIGURATION, "config.toml", Kind.FILE, "configuration"),
    Item(Root.CONFIGURATION, "conf.d/*.toml", Kind.FILE, "configuration"),
)
MANIFEST = "manifest.json"
CONFIGURATION_DIR = Path("/etc/homebox")
MAX_NAME_BYTES = 100  # what a tar header holds without an extension
_SIDECARS = (
    "-wal",
    "-shm",
    "-journal",
)  # what SQLite keeps beside a database that is open, or was when it crashed


@dataclass(frozen=True)
class Source:
    """A file on this disk that belongs in a backup."""

    path: Path
    name: str  # in the archive
    kind: Kind


def sources(root: Root, folder: Path) -> Iterator[Source]:
    """Everything below `folder` that the table names, links and directories of such names, too. Raises
    PermissionError: what cannot be seen is not left out in silence."""
    for item in _items(root):
        for place in _matches(folder, item.pattern):
            yield Source(folder / place, f"{root}/{place}", item.kind)


def in_the_way(state: Path) -> list[str]:
    """What stands where a restore would put something, relative to `state`, with what belongs to it."""
    found: list[str] = []
    for item in _items(Root.STATE):
        endings = ("", *_SIDECARS) if item.kind is Kind.DATABASE else ("",)
        for ending in endings:
            found += _matches(state, item.pattern + ending)
    return found


def _matches(folder: Path, pattern: str) -> list[str]:
    parent, _, last = pattern.rpartition("/")
    try:
        names = sorted(entry.name for entry in os.scandir(folder / parent))
    except (FileNotFoundError, NotADirectoryError):
        return []
    chosen = [name for name in names if fnmatchcase(name, last) and not name.startswith(".")]
    return [f"{parent}/{name}" if parent else name for name in chosen]


def item_of(name: str) -> Item | None:
    """The line of the table that allows this name in an archive, None if none does."""
    parts = name.split("/")
    if len(name.encode(errors="replace")) > MAX_NAME_BYTES or not name.isprintable():
        return None
    if any(not part or part.startswith(".") for part in parts):
        return None
    for item in ITEMS:
        pattern = f"{item.root}/{item.pattern}".split("/")
        if len(parts) == len(pattern) and all(map(fnmatchcase, parts, pattern)):
            return item
    return None


def _items(root: Root) -> Iterator[Item]:
    return (item for item in ITEMS if item.root is root)
