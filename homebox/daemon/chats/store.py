"""Whose file is it, is it open, and on which thread is it used?

`Chats` runs a function of the modules beside it inside a transaction on the file of one person, and
never on the event loop: changes one after the other on one thread, looking on another, after all changes that were
asked for before. A person's name becomes one file name and no other person's; a file is opened for its person alone.
What SQLite says becomes an error of `homebox.errors`. It knows no turns and no HTTP.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import sqlite3
import string
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from homebox.daemon.chats import deleting, growing, schema, shelf
from homebox.errors import Busy, HomeboxError, InvalidRequest, NoSpace, UnusableFile, UsageError
from homebox.wire.chats import Counts

log = logging.getLogger("homebox.chats")

T = TypeVar("T")
MAX_OPEN = 64  # files at a time, each with two connections
MAX_WAITING = 256  # changes that wait for the disk, for all persons together
RESERVE_BYTES = 256 * 1024  # left free, so that answers which are being written find room for their end
PURGE_EVERY_S = 3600.0
_PLAIN = frozenset(string.ascii_lowercase + string.digits + "_-")
_MAX_NAME_BYTES = 200
_WHOLE_NAME_BYTES = 80


def file_name(person: str) -> str:
    """`anna.db`; everything but small letters, digits, _ and - is written as %xx, so that no two persons share a file
    on any disk and no name is a way out of the directory. What would be longer than an archive's header takes ends in
    a digest instead. Raises UsageError for a name that no file can have."""
    name = "".join(
        char
        if char in _PLAIN
        else "".join(f"%{byte:02x}" for byte in char.encode("utf-8", "surrogateescape"))
        for char in person
    )
    if not 0 < len(name) <= _MAX_NAME_BYTES:
        raise UsageError(f"{person[:80]!r} is not a person's name")
    if len(name) > _WHOLE_NAME_BYTES:
        name = f"{name[:40]}~{hashlib.sha256(name.encode()).hexdigest()[:32]}"
    return f"{name}.db"


class Chats:
    """Everybody's chats, in `folder`. Used from one event loop; `close` once at the end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._writer = ThreadPoolExecutor(1, "chats-write")
        self._reader = ThreadPoolExecutor(1, "chats-read")
        self._waiting = 0
        self._complained: set[str] = set()
        # Only touched on the writer's thread.
        self._open: OrderedDict[str, sqlite3.Connection] = OrderedDict()
        self._recovered: set[str] = set()
        self._purge_due: dict[str, float] = {}
        # Only touched on the reader's thread.
        self._looking: OrderedDict[str, sqlite3.Connection] = OrderedDict()

    def path(self, person: str) -> Path:
        """Raises UsageError."""
        return self.folder / file_name(person)

    # ---- from the event loop

    async def write(
        self,
        person: str,
        what: Callable[..., T],
        *args: Any,
        durable: bool = True,
        needs_bytes: int = 0,
        **more: Any,
    ) -> T:
        """`what(connection, *args)` in a transaction; when this returns it is on the disk, with `durable` also after a
        power cut. With `needs_bytes` it is refused while the disk has less than that and a reserve.

        Raises what `what` raises, NoSpace, UnusableFile, and Busy when the disk is far too slow."""
        if self._waiting >= MAX_WAITING:
            raise Busy(
                f"{self._waiting} changes wait for the disk", hint="Try again in a moment.", retry_after_s=2
            )
        self._waiting += 1
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(
                self._writer,
                lambda: self._change(person, durable, needs_bytes, lambda db: what(db, *args, **more)),
            )
        finally:
            self._waiting -= 1

    async def read(self, person: str, what: Callable[..., T], *args: Any, **more: Any) -> T:
        """`what(connection, *args)`, seeing every change that was asked for before. A person without a file has an
        empty one. Raises what `what` raises, and UnusableFile."""
        loop = asyncio.get_running_loop()
        there = await loop.run_in_executor(self._writer, self._settle, person)
        return await loop.run_in_executor(
            self._reader, lambda: self._look(person, there, lambda db: what(db, *args, **more))
        )

    async def counts(self, person: str) -> Counts:
        """How much a person has: figures only, for administrators."""
        return await self.read(person, shelf.counts)

    async def copy_to(self, person: str, target: Path) -> bool:
        """A consistent copy of a person's file for a backup; False where there is none. Raises NoSpace, UnusableFile."""

        def copy(db: sqlite3.Connection) -> None:
            schema.copy(db, target)

        loop = asyncio.get_running_loop()
        if not await loop.run_in_executor(self._writer, self._settle, person):
            return False
        await loop.run_in_executor(self._reader, lambda: self._look(person, True, copy))
        return True

    async def close(self) -> None:
        """After all changes that were asked for; nothing works afterwards."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._reader, _close_all, self._looking)
        await loop.run_in_executor(self._writer, _close_all, self._open)
        self._reader.shutdown()
        self._writer.shutdown()

    # ---- on the writer's thread

    def _change(
        self, person: str, durable: bool, needs_bytes: int, what: Callable[[sqlite3.Connection], T]
    ) -> T:
        path = self.path(person)
        try:
            if needs_bytes and (free := _free_bytes(self.folder)) < needs_bytes + RESERVE_BYTES:
                raise _no_space(self.folder, free, needs_bytes + RESERVE_BYTES)
            db = self._opened(person)
            db.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            db.execute("BEGIN IMMEDIATE")
            try:
                if due := time.monotonic() >= self._purge_due.get(person, 0.0):
                    deleting.purge(db)
                done = what(db)
                db.execute("COMMIT")
            except BaseException:
                if db.in_transaction:
                    db.execute("ROLLBACK")
                raise
            if due:
                self._purge_due[person] = time.monotonic() + PURGE_EVERY_S
            return done
        except Exception as error:
            raise self._in_words(error, path) from None

    def _settle(self, person: str) -> bool:
        """Whether the person has a file; if so, it is of this version and nothing in it is left half way."""
        path = self.path(person)
        try:
            if person not in self._open and not path.exists():
                return False
            self._opened(person)
            return True
        except Exception as error:
            raise self._in_words(error, path) from None

    def _opened(self, person: str) -> sqlite3.Connection:
        if person in self._open:
            self._open.move_to_end(person)
            return self._open[person]
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.folder.chmod(0o700)
        db = schema.open_file(self.path(person))
        try:
            if person not in self._recovered:
                db.execute("BEGIN IMMEDIATE")
                cut = growing.recover(db)
                db.execute("COMMIT")
                self._recovered.add(person)
                if cut:
                    log.info("answers were cut off", extra={"fields": {"person": person, "answers": cut}})
        except BaseException:
            db.close()
            raise
        self._open[person] = db
        while len(self._open) > MAX_OPEN:
            self._open.popitem(last=False)[1].close()
        return db

    # ---- on the reader's thread

    def _look(self, person: str, there: bool, what: Callable[[sqlite3.Connection], T]) -> T:
        name = person if there else ""
        path = self.path(person)
        try:
            if name not in self._looking:
                self._looking[name] = schema.open_file(path if there else schema.MEMORY)
                self._looking[name].execute("PRAGMA query_only = ON")
            self._looking.move_to_end(name)
            while len(self._looking) > MAX_OPEN:
                self._looking.popitem(last=False)[1].close()
            db = self._looking[name]
            db.execute("BEGIN")  # what is looked at is of one moment
            try:
                return what(db)
            finally:
                db.execute("ROLLBACK")
        except Exception as error:
            raise self._in_words(error, path) from None

    # ---- on either

    def _in_words(self, error: Exception, path: Path) -> Exception:
        said = _in_words(error, path)
        if isinstance(said, UnusableFile) and said.message not in self._complained:
            self._complained.add(said.message)  # a broken file is used again and again
            log.error(said.message)
        return said


def _close_all(connections: OrderedDict[str, sqlite3.Connection]) -> None:
    while connections:
        connections.popitem()[1].close()


def _free_bytes(folder: Path) -> int:
    place = folder
    while not place.exists():
        place = place.parent
    found = os.statvfs(place)
    return found.f_bavail * found.f_frsize


def _no_space(folder: Path, free: int, needed: int) -> NoSpace:
    return NoSpace(
        f"the disk that holds the chats is full: {free} bytes free, {needed} needed",
        hint=f"Make room on the disk of {folder}, then send it again.",
        numbers={"free_bytes": free, "needed_bytes": needed},
    )


def _in_words(error: Exception, path: Path) -> Exception:
    """What SQLite or the disk said, as one of our errors; anything else is not ours to explain."""
    if isinstance(error, HomeboxError):
        return error
    if isinstance(error, UnicodeEncodeError):
        return InvalidRequest("the text holds half of a surrogate pair, which is no character")
    if not isinstance(error, sqlite3.DatabaseError | OSError) or isinstance(error, sqlite3.IntegrityError):
        return error
    free = _free_bytes(path.parent)
    full = getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
    # A full disk shows in other ways as well: the index of the log cannot grow, no new file can be made.
    trouble = isinstance(error, sqlite3.OperationalError | OSError)
    if full or (trouble and free < RESERVE_BYTES):
        return _no_space(path.parent, free, RESERVE_BYTES)
    if (
        isinstance(error, sqlite3.OperationalError)
        and getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY
    ):
        return Busy(
            "another program holds this person's chats", hint="Try again in a moment.", retry_after_s=2
        )
    return UnusableFile(
        f"the chats in {path} cannot be used: {error}",
        hint="Nothing in the file was changed. homebox restore gets the chats back from a backup.",
    )
