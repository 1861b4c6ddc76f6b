"""How does a household get into one file, while it goes on living?

Each file is copied to a staging directory first: a database through SQLite's own backup, as one moment of it, whatever
is written meanwhile; then it is hashed and packed. The archive appears under its name only when it is whole and has
been read back. Databases that are damaged already are saved as they are, and said.
"""

from __future__ import annotations

import errno
import os
import shutil
import socket
import sqlite3
import stat
import tempfile
import time
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from homebox.backup import archive
from homebox.backup.archive import Manifest
from homebox.backup.contents import CONFIGURATION_DIR, Kind, Root, Source, item_of, sources
from homebox.backup.owner import acting_as_owner_of
from homebox.backup.staging import need_room, staging
from homebox.errors import HomeboxError, NoSpace, NotAllowed, NotFound, UsageError
from homebox.library.files import Progress, silent
from homebox.library.store import Library

_PAGES_A_STEP = 1024
_PATIENCE_S = 30.0  # for a writer that holds a database


@dataclass(frozen=True)
class Saved:
    """`left_out`: what has a name of the table and could not be saved, with the reason."""

    manifest: Manifest
    left_out: tuple[str, ...]
    bytes: int = 0


def save_to_file(
    path: Path, state: Path, configuration: Path = CONFIGURATION_DIR, progress: Progress = silent
) -> Saved:
    """Write a backup that only its owner can read, and read it back. Raises UsageError where something has that name
    already, NoSpace, NotAllowed, NotFound."""
    if os.path.lexists(path):
        raise UsageError(f"{path} is there already", hint="Name another file: a backup replaces nothing.")
    found = _found(state, configuration)
    partial = path.with_name(f".{path.name}.partial")
    try:
        need_room(path.parent, sum(_size(source) for source in found), "the backup")
        partial.unlink(missing_ok=True)
        with os.fdopen(os.open(partial, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600), "w+b") as target:
            saved = _save(target, found, state, progress)
            target.flush()
            os.fsync(target.fileno())
            archive.read(target, progress=progress)
            size = target.tell()
        partial.rename(path)
    except OSError as error:
        raise _cannot_write(path, error) from None
    finally:
        partial.unlink(missing_ok=True)
    return Saved(saved.manifest, saved.left_out, size)


def save_to_stream(
    target: IO[bytes], state: Path, configuration: Path = CONFIGURATION_DIR, progress: Progress = silent
) -> Saved:
    """The same to a pipe: nothing can be read back. Raises NotFound, NotAllowed, and HomeboxError where its reader
    leaves: for a backup that is no success."""
    try:
        saved = _save(target, _found(state, configuration), state, progress)
        target.flush()
    except BrokenPipeError:
        raise HomeboxError("whoever read the backup left before its end", hint="Nothing was saved.") from None
    return saved


def _found(state: Path, configuration: Path) -> list[Source]:
    try:
        with acting_as_owner_of(state):
            found = [*sources(Root.STATE, state)]
        found += sources(Root.CONFIGURATION, configuration)
    except FileNotFoundError:
        raise NotFound(
            f"there is no state directory {state}", hint="Name it: homebox backup --state DIR"
        ) from None
    except PermissionError as error:
        raise NotAllowed(f"{error.filename}: {error.strerror}", hint="sudo homebox backup may.") from None
    if not found:
        raise NotFound(f"there is nothing to save in {state}", hint="Name another one: --state DIR")
    return found


def _save(target: IO[bytes], found: list[Source], state: Path, progress: Progress) -> Saved:
    saving = _Saving(target, progress)
    with acting_as_owner_of(state), staging(state, "backup") as folder:
        need_room(folder, max(_size(source) for source in found), "a copy of one file at a time")
        models = Library(state).models()
        saving.add((each for each in found if each.name.startswith(f"{Root.STATE}/")), folder)
    with tempfile.TemporaryDirectory(prefix="homebox-backup-") as other:
        saving.add((each for each in found if each.name.startswith(f"{Root.CONFIGURATION}/")), Path(other))
    manifest = Manifest(
        created=time.time(),
        host=socket.gethostname(),
        files=saving.writer.files,
        damaged=saving.damaged,
        models=models,
    )
    saving.writer.finish(manifest)
    return Saved(manifest, tuple(saving.left_out))


class _Saving:
    """Copies one file after the other, packs the copy, and remembers what was not as it should be."""

    def __init__(self, target: IO[bytes], progress: Progress) -> None:
        self.writer = archive.Writer(target)
        self.damaged: list[str] = []
        self.left_out: list[str] = []
        self._progress = progress

    def add(self, found: Iterable[Source], folder: Path) -> None:
        copy = folder / "copy"
        for source in found:
            try:
                reason = self._copy(source, copy)
            except FileNotFoundError:
                reason = "it was removed or renamed while the backup was made"
            except PermissionError as error:
                raise NotAllowed(
                    f"{source.path}: {error.strerror}", hint="sudo homebox backup may."
                ) from None
            if reason:
                self.left_out.append(f"{source.path}: {reason}")
            else:
                self.writer.add(source.name, copy, self._progress)

    def _copy(self, source: Source, copy: Path) -> str:
        """The reason why it is left out, empty where it is not."""
        copy.unlink(missing_ok=True)
        if item_of(source.name) is None:
            return "its name is too long, or cannot be shown"
        if not stat.S_ISREG(source.path.lstat().st_mode):
            return "it is no plain file"
        if source.kind is Kind.FILE:
            shutil.copyfile(source.path, copy, follow_symlinks=False)
        elif not copy_database(source.path, copy, self._progress):
            shutil.copyfile(source.path, copy, follow_symlinks=False)
            self.damaged.append(source.name)
        return ""


def copy_database(path: Path, copy: Path, progress: Progress = silent) -> bool:
    """One moment of a database that may be written meanwhile, into a file without companions. False, and no copy,
    where it is damaged."""

    def step(status: int, remaining: int, total: int) -> None:
        progress(f"copying {path.name}", total - remaining, total)

    try:
        with (
            closing(
                sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True, timeout=_PATIENCE_S)
            ) as source,
            closing(sqlite3.connect(copy)) as target,
        ):
            # A transaction that reads holds the moment: without it every writer would start the copy again.
            source.execute("BEGIN")
            source.execute("SELECT count(*) FROM sqlite_schema").fetchone()
            source.backup(target, pages=_PAGES_A_STEP, progress=step)
            good = bool(target.execute("PRAGMA quick_check(1)").fetchone() == ("ok",))
    except sqlite3.DatabaseError as error:
        if isinstance(error, sqlite3.OperationalError) and not path.exists():
            raise FileNotFoundError(path) from None
        if error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            raise HomeboxError(
                f"{path} was held by somebody for {_PATIENCE_S:.0f} s", hint="Try again in a moment."
            ) from None
        if error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
            raise NoSpace(f"no room for a copy of {path.name}: {error}", hint="Free some space.") from None
        good = False
    if not good:
        for each in copy.parent.glob(f"{copy.name}*"):
            each.unlink()
    return good


def _size(source: Source) -> int:
    try:
        return source.path.lstat().st_size
    except OSError:
        return 0


def _cannot_write(path: Path, error: OSError) -> HomeboxError:
    where = f"cannot write {path}: {error.strerror or error}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return NoSpace(where, hint="Free some space there, or name a file on another disk.")
    if isinstance(error, PermissionError):
        return NotAllowed(where, hint="Name a file where you may write.")
    return UsageError(where, hint="Name another file.")
