"""How do several processes share one small file of the state directory?

JSON, mode 0600, read whole and written back whole: to a partial file, synced, then put in its place, so that a reader
finds the old or the new one. Writers wait for each other at a lock beside it. A reader looks again whenever the file
has changed, so a change counts at once, whoever made it. What root writes belongs to the state directory's owner, so
that the daemon can read it. It knows nothing of what is in the file.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from homebox.config import check_state_dir
from homebox.errors import BadFile, HomeboxError, NoSpace, NotAllowed, UsageError
from homebox.owned import open_owned

T = TypeVar("T")


class Records(Generic[T]):
    """`kind` is a struct with a field `schema`; `empty` is what a missing file says."""

    def __init__(self, path: Path, kind: type[T], empty: Callable[[], T], schema: int) -> None:
        self.path = path
        self._kind, self._empty, self._schema = kind, empty, schema
        self._seen: tuple[tuple[int, int, int] | None, T] | None = None

    def get(self) -> T:
        """What the file says now; read only if it has changed. Raises BadFile."""
        stamp = self._stamp()
        if self._seen is None or self._seen[0] != stamp:
            self._seen = (stamp, self._read())
        return self._seen[1]

    @contextmanager
    def changing(self) -> Iterator[Callable[[T], None]]:
        """Nobody else writes within; call what you get with the new content. Raises BadFile, and NoSpace, NotAllowed or
        UsageError where nothing can be written; what the file said stays then."""
        folder = self.path.parent
        check_state_dir(folder)
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock = self._open(folder / f"{self.path.stem}.lock", os.O_RDWR)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX)
                yield self._write
            finally:
                os.close(lock)
        except OSError as error:
            raise self._unwritable(error) from None

    def _unwritable(self, error: OSError) -> HomeboxError:
        said = f"{self.path} cannot be written, so nothing was changed: {error.strerror or error}"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return NoSpace(said, hint=f"Make room on the disk of {self.path.parent}, then do it again.")
        return (NotAllowed if isinstance(error, PermissionError) else UsageError)(said)

    def _write(self, content: T) -> None:
        partial = self.path.with_suffix(".partial")
        partial.unlink(missing_ok=True)
        try:
            with os.fdopen(self._open(partial, os.O_WRONLY | os.O_EXCL), "wb") as out:
                out.write(msgspec.json.format(msgspec.json.encode(content)) + b"\n")
                out.flush()
                os.fsync(out.fileno())
            partial.replace(self.path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise

    def _open(self, path: Path, flags: int) -> int:
        try:
            return open_owned(path, flags)
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.EACCES, errno.ELOOP):
                raise
            raise NotAllowed(f"cannot open {path}: {error.strerror}") from None

    def _stamp(self) -> tuple[int, int, int] | None:
        with contextlib.suppress(OSError):
            status = self.path.stat()
            return status.st_mtime_ns, status.st_size, status.st_ino
        return None

    def _read(self) -> T:
        try:
            content = msgspec.json.decode(self.path.read_bytes(), type=self._kind)
        except FileNotFoundError:
            return self._empty()
        except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BadFile(f"{self.path}: {error}", hint="Restore it from a backup, or remove it.") from None
        if (schema := getattr(content, "schema", 0)) > self._schema:
            raise BadFile(
                f"{self.path} is of schema {schema}; this version of homebox reads up to {self._schema}",
                hint="Use the version that wrote it, or a newer one.",
            )
        return content
