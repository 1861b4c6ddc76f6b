"""Where do compiled kernels lie, who may have written them, and who compiles while ten processes start at once?

A library is code that runs in the engine, so it is taken only from a directory and a file that belong to us (or to
root) and that nobody else may write. Its last bytes are the checksum of the rest: a file that a full disk or a power
cut has shortened is built again instead of being mapped. One process builds at a time, in a directory that nobody else
looks at; renaming makes the result visible, whole. What a builder that was killed has left is removed by the next.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import platformdirs

from homebox.errors import KernelsMissing

KEPT = 12  # libraries: of all levels, and of a few versions
_LOCK, _BUILDING = "lock", "building-"
_SEAL = b"\nsha256 "
_SEAL_BYTES = len(_SEAL) + hashlib.sha256().digest_size
_LOCK_POLL_S = 0.1
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def folder(environ: Mapping[str, str]) -> Path:
    """Below the service's own cache directory (systemd's CACHE_DIRECTORY), else below the person's."""
    given = environ.get("CACHE_DIRECTORY", "").partition(":")[0]
    return (Path(given) if given else Path(platformdirs.user_cache_path("homebox"))) / "kernels"


class Cache:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def open(self) -> None:
        """Make the directory where it is missing. Raises KernelsMissing where nothing can be, or may be, taken from it."""
        try:
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            self.folder.mkdir(mode=0o700, exist_ok=True)
            found = self.folder.lstat()
        except OSError as error:
            raise _unwritable(self.folder, error) from None
        if not stat.S_ISDIR(found.st_mode) or not ours(found):
            raise KernelsMissing(
                f"{self.folder} is not a directory that only this account can write (uid {found.st_uid}, mode "
                f"{stat.S_IMODE(found.st_mode):04o}), so nothing is loaded from it",
                hint="remove it and restart homebox",
            )

    def find(self, pattern: str) -> Path | None:
        """The newest whole library of ours with such a name; it counts as used now."""
        for path in self._newest_first(pattern):
            if _trusted(path):
                with contextlib.suppress(OSError):  # a cache that can only be read is a cache
                    os.utime(path)
                return path
        return None

    @contextlib.contextmanager
    def building(self, waiting: Callable[[], None]) -> Iterator[Path]:
        """A directory to build in, for one process at a time; `waiting` is called while another one builds. Raises
        KernelsMissing where nothing can be written."""
        try:
            descriptor = os.open(
                self.folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
            )
        except OSError as error:
            raise _unwritable(self.folder, error) from None
        try:
            while not _locked(descriptor):
                waiting()
                time.sleep(_LOCK_POLL_S)
            for left in self.folder.glob(f"{_BUILDING}*"):
                shutil.rmtree(left, ignore_errors=True)
            with tempfile.TemporaryDirectory(
                prefix=_BUILDING, dir=self.folder, ignore_cleanup_errors=True
            ) as made:
                yield Path(made)
        except OSError as error:
            raise _unwritable(self.folder, error) from None
        finally:
            os.close(descriptor)

    def publish(self, built: Path) -> Path:
        """Seal a library that was built in `building`, and make it visible under its name. The oldest others go."""
        content = built.read_bytes()
        with built.open("ab") as file:
            file.write(_SEAL + hashlib.sha256(content).digest())
        built.chmod(0o700)
        path = built.replace(self.folder / built.name)
        for old in self._newest_first("*.so")[KEPT:]:
            old.unlink(missing_ok=True)
        return path

    def _newest_first(self, pattern: str) -> list[Path]:
        found = []
        for path in self.folder.glob(pattern):
            with contextlib.suppress(OSError):  # another process has just removed it
                found.append((path.lstat().st_mtime_ns, path))
        return [path for _, path in sorted(found, reverse=True)]


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def ours(found: os.stat_result) -> bool:
    """Nobody else can have written it."""
    return found.st_uid in (0, os.geteuid()) and not found.st_mode & _OTHERS_WRITE


def _trusted(path: Path) -> bool:
    """A plain file with one name, written by nobody else, and whole."""
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW)) as file:
            found = os.fstat(file.fileno())
            if not (stat.S_ISREG(found.st_mode) and found.st_nlink == 1 and ours(found)):
                return False
            content = file.read()
    except OSError:
        return False
    return content[-_SEAL_BYTES:] == _SEAL + hashlib.sha256(content[:-_SEAL_BYTES]).digest()


def _unwritable(folder: Path, error: OSError) -> KernelsMissing:
    return KernelsMissing(
        f"compiled kernels cannot be kept in {folder}: {error.strerror or error}",
        hint="set XDG_CACHE_HOME to a directory that this account can write, and restart homebox",
    )
