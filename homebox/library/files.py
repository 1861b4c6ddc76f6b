"""How does a file come into the library whole?

Copying, linking and hashing of large files, with progress, and making sure that what is on disk is really on disk.
Knows nothing of models.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import IO

from homebox.errors import NoSpace
from homebox.library.manifest import WeightFile

# stage in words, then how far it is: bytes done and in all, 0 in all where that is not known
Progress = Callable[[str, int, int], None]

CHUNK_BYTES = 2**20
SPARE_BYTES = 64 * 2**20


def silent(stage: str, done: int, total: int) -> None:
    """The progress of someone who does not want to know."""


def need_space(folder: Path, size: int, what: str) -> None:
    """Raises NoSpace unless `folder`'s disk has room for `size` bytes, and a little more."""
    free = shutil.disk_usage(folder).free
    if free < size + SPARE_BYTES:
        raise NoSpace(
            f"{what} needs {_mb(size + SPARE_BYTES)} in {folder}; {_mb(free)} are free",
            hint="Free some space (homebox models list, homebox models rm NAME) or set another state_dir.",
            numbers={"needed_bytes": size + SPARE_BYTES, "free_bytes": free},
        )


def copy_stream(source: IO[bytes], target: Path, size: int, stage: str, progress: Progress) -> str:
    """Write a stream to a new file, synced, and give its SHA-256. Never writes more than `size` bytes."""
    digest = hashlib.sha256()
    done = 0
    with target.open("wb") as out:
        while chunk := source.read(min(CHUNK_BYTES, size - done)):
            out.write(chunk)
            digest.update(chunk)
            done += len(chunk)
            progress(stage, done, size)
        out.flush()
        os.fsync(out.fileno())
    return digest.hexdigest()


def bring(source: Path, target: Path, progress: Progress) -> None:
    """Hard link a file where that is possible and safe, else copy it.

    Only our own file is linked: whoever owns the other name of a linked file could change the model later.
    """
    real = source.resolve(strict=True)
    status = real.stat()
    if status.st_uid == os.geteuid() and not status.st_mode & 0o022:
        try:
            target.hardlink_to(real)
            return
        except OSError as error:
            if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EACCES):
                raise
    need_space(target.parent, status.st_size, f"a copy of {source.name}")
    with real.open("rb") as file:
        copy_stream(file, target, status.st_size, f"copying {source.name}", progress)


def fingerprint(path: Path, progress: Progress) -> WeightFile:
    """Name, size and SHA-256 of a file as it is now."""
    digest = hashlib.sha256()
    size = path.stat().st_size
    done = 0
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
            done += len(chunk)
            progress(f"checking {path.name}", done, size)
    return WeightFile(path.name, done, digest.hexdigest())


def sync(folder: Path) -> None:
    """Put a folder and the files in it on the disk."""
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
    sync_folder(folder)


def sync_folder(folder: Path) -> None:
    """Put a folder's list of names on the disk."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _mb(size: int) -> str:
    return f"{size / 1e6:,.0f} MB"


def hand_over(state: Path, *paths: Path) -> None:
    """What root puts into somebody's state directory (`sudo homebox models pull`) is theirs. A file that has another
    name elsewhere, too, stays whose it is."""
    owner = state.stat()
    if os.geteuid() != 0 or owner.st_uid == 0:
        return
    for path in paths:
        if path.is_dir() or path.stat().st_nlink == 1:
            os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)
