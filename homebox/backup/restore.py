"""How does a household come back out of a file?

The archive is read to its end and every checksum compared before anything is touched; then it is unpacked beside the
real files, and only renames follow. What stands in the way is moved aside, never overwritten, and moved back if
something fails. No daemon may work on the state meanwhile: the lock that a daemon holds is ours for so long.
"""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from homebox.backup import archive
from homebox.backup.archive import Entry, Manifest
from homebox.backup.contents import CONFIGURATION_DIR, Root, in_the_way
from homebox.backup.owner import acting_as_owner_of
from homebox.backup.staging import SPARE_BYTES, staging
from homebox.daemon import lock
from homebox.errors import BadFile, HomeboxError, NoSpace, NotAllowed, NotFound, UsageError
from homebox.library.files import Progress, silent, sync_folder
from homebox.library.store import Library

_NAMED = 6  # so many of the files in the way are named


@dataclass
class Restored:
    """`aside`: where what was there before is now. `configuration`: the files written there; `unwritten`: those that
    this account may not write. `missing_models` were there when the backup was made."""

    manifest: Manifest
    aside: Path | None = None
    configuration: list[Path] = field(default_factory=list)
    unwritten: list[Path] = field(default_factory=list)
    missing_models: list[str] = field(default_factory=list)


def verify(path: Path, progress: Progress = silent) -> Manifest:
    """Read a backup whole. Raises BadFile, NotFound, NotAllowed."""
    with _opened(path) as file:
        return archive.read(file, progress=progress)


def restore(
    path: Path,
    state: Path,
    configuration: Path = CONFIGURATION_DIR,
    *,
    replace: bool = False,
    progress: Progress = silent,
) -> Restored:
    """Put everything back. Raises BadFile, NotFound, NoSpace; UsageError where something is in the way and `replace`
    is not said; Busy while a daemon works there. Nothing has changed then."""
    with _opened(path) as file:
        room = shutil.disk_usage(_existing(state)).free - SPARE_BYTES
        manifest = archive.read(file, most_bytes=max(0, room), progress=progress)
        holding = lock.hold(state)
        try:
            with acting_as_owner_of(state):
                _check_the_way(state, replace)
                with staging(state, "restore") as folder:
                    archive.read(file, take=_Unpacking(folder).take, progress=progress)
                    aside = _exchange(folder, state, manifest)
                    done = Restored(manifest, aside)
                    settings = _kept(folder, manifest)
        except OSError as error:
            raise _cannot(error, state) from None
        finally:
            holding.release()
    for name, content in settings:
        _write_configuration(configuration / name, content, done)
    installed = {model.name for model in Library(state).models()}
    done.missing_models = [model.name for model in manifest.models if model.name not in installed]
    return done


class _Unpacking:
    """Writes each file below `folder`, under the name that the table has allowed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def take(self, entry: Entry, pieces: Iterator[bytes]) -> None:
        path = self._folder / entry.name
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
            for piece in pieces:
                out.write(piece)
            out.flush()
            os.fsync(out.fileno())


def _check_the_way(state: Path, replace: bool) -> None:
    there = in_the_way(state)
    if there and not replace:
        named = ", ".join(there[:_NAMED]) + (
            f" and {len(there) - _NAMED} more" if len(there) > _NAMED else ""
        )
        raise UsageError(
            f"{state} holds data already: {named}",
            hint="--replace moves that aside into a directory of its own, and restores.",
        )


def _exchange(folder: Path, state: Path, manifest: Manifest) -> Path | None:
    """What is in the way goes aside and what was unpacked takes its place; all of it or nothing."""
    there = in_the_way(state)
    aside = _aside(state) if there else None
    moves = [(state / name, aside / name) for name in there] if aside else []
    for entry in manifest.files:
        root, _, name = entry.name.partition("/")
        if root == Root.STATE:
            moves.append((folder / entry.name, state / name))
    done: list[tuple[Path, Path]] = []
    try:
        for source, target in moves:
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            source.rename(target)
            done.append((source, target))
    except BaseException:
        for source, target in reversed(done):
            target.rename(source)
        if aside:
            shutil.rmtree(aside, ignore_errors=True)  # empty again
        raise
    for place in {target.parent for _, target in done} | {state}:
        sync_folder(place)
    return aside


def _aside(state: Path) -> Path:
    stem = time.strftime("before-restore-%Y-%m-%d-%H%M%S")
    for ending in ("", *(f"-{number}" for number in range(2, 100))):
        aside = state / (stem + ending)
        try:
            aside.mkdir(mode=0o700)
        except FileExistsError:
            continue
        return aside
    raise UsageError(f"{state} holds too many directories called {stem}")


def _kept(folder: Path, manifest: Manifest) -> list[tuple[str, bytes]]:
    """The configuration files, read before the staging directory goes away."""
    names = [entry.name for entry in manifest.files if entry.name.startswith(f"{Root.CONFIGURATION}/")]
    return [(name.partition("/")[2], (folder / name).read_bytes()) for name in names]


def _write_configuration(path: Path, content: bytes, done: Restored) -> None:
    """In its place where there is none, else beside it: the configuration of this machine is not given up for that of
    another, or of an older day."""
    try:
        if path.exists() and path.read_bytes() == content:
            return
        target = path.with_name(f"{path.name}.restored") if path.exists() else path
        path.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
        done.configuration.append(target)
    except OSError:
        done.unwritten.append(path)


def _opened(path: Path) -> IO[bytes]:
    try:
        file = path.open("rb")
    except FileNotFoundError:
        raise NotFound(
            f"there is no backup {path}", hint="Name the file that homebox backup wrote."
        ) from None
    except PermissionError as error:
        raise NotAllowed(f"cannot read {path}: {error.strerror}", hint="sudo homebox restore may.") from None
    except OSError as error:
        raise BadFile(f"cannot read {path}: {error.strerror or error}") from None
    if file.seekable():
        return file
    file.close()
    raise UsageError(f"{path} cannot be read twice", hint="Write it to a file first, and name that.")


def _existing(folder: Path) -> Path:
    while not folder.exists():
        folder = folder.parent
    return folder


def _cannot(error: OSError, state: Path) -> HomeboxError:
    what = f"cannot restore to {error.filename or state}: {error.strerror or error}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return NoSpace(what, hint="Free some space; nothing was changed.")
    if isinstance(error, PermissionError):
        return NotAllowed(what, hint="sudo homebox restore may; nothing was changed.")
    return UsageError(what, hint="Nothing was changed.")
