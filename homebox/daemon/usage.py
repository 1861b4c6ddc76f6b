"""Who used how much, on which day?

Counts requests and tokens for each day, person and key: in memory at once, and once a second in `<state>/usage.db`,
which a thread of its own writes. What counts toward a limit (`counted`) is what somebody else had to wait for: prompt
tokens that had to be computed, and tokens of the answer. Today's counts are read back at a start, so that a restart
forgives nothing. It knows no limits.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, dataclass
from datetime import date, timedelta
from pathlib import Path

from homebox.errors import Unavailable

log = logging.getLogger("homebox.usage")

SCHEMA = 1
WRITE_EVERY_S = 1.0
_COLUMNS = ("requests", "refused", "tokens_in", "tokens_out", "cached", "counted")
_TABLE = (
    "CREATE TABLE IF NOT EXISTS usage (day TEXT NOT NULL, person TEXT NOT NULL, key TEXT NOT NULL, "
    + ", ".join(f"{name} INTEGER NOT NULL" for name in _COLUMNS)
    + ", PRIMARY KEY (day, person, key)) WITHOUT ROWID"
)
_ADD = (
    f"INSERT INTO usage VALUES ({', '.join('?' * (3 + len(_COLUMNS)))}) ON CONFLICT DO UPDATE SET "
    + ", ".join(f"{name} = {name} + excluded.{name}" for name in _COLUMNS)
)
_READ = (
    f"SELECT day, person, {', '.join(f'SUM({name})' for name in _COLUMNS)} FROM usage "
    "WHERE day >= ? AND (? IS NULL OR person = ?) GROUP BY day, person ORDER BY day DESC, person"
)


@dataclass
class Counts:
    """`tokens_in` includes the `cached` ones, which cost nobody anything."""

    requests: int = 0
    refused: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    cached: int = 0
    counted: int = 0

    def add(self, other: Counts) -> None:
        for name in _COLUMNS:
            setattr(self, name, getattr(self, name) + getattr(other, name))


Place = tuple[str, str, str]  # day, person, id of the key or ""


class Usage:
    def __init__(self, state_dir: Path, *, clock: Callable[[], float] = time.time) -> None:
        self.path = state_dir / "usage.db"
        self._clock = clock
        # Whoever counts now and then, not with each token, adds what is new whenever somebody looks.
        self.catch_up: Callable[[], None] = lambda: None
        self._new: dict[Place, Counts] = {}  # not written yet
        # Counted, by day and person; the day before as well, for a clock that is put back over midnight.
        self._days: dict[str, dict[str, int]] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="usage")
        self._writing: asyncio.Task[None] | None = None
        self._under_way: set[asyncio.Task[None]] = set()
        self._failed = False
        self._load()

    def day(self) -> str:
        """Today, in local time, like 2026-07-27."""
        return date.fromtimestamp(self._clock()).isoformat()

    def today(self, person: str) -> int:
        """What this person has used of the local day, in counted tokens."""
        self.catch_up()
        return self.added_today(person)

    def added_today(self, person: str) -> int:
        """Of that, what was added already."""
        return self._by_person().get(person, 0)

    def people_today(self) -> dict[str, int]:
        self.catch_up()
        return dict(self._by_person())

    def add(self, person: str, key: str | None, counts: Counts) -> None:
        day = self.day()
        self._new.setdefault((day, person, key or ""), Counts()).add(counts)
        if counts.counted:
            today = self._by_person()
            today[person] = today.get(person, 0) + counts.counted

    async def read(self, days: int, person: str | None) -> list[tuple[str, str, Counts]]:
        """Day, person and counts of the last `days` days, newest first, of everybody where `person` is None. Raises
        Unavailable where the file cannot be read."""
        since = (date.fromtimestamp(self._clock()) - timedelta(days=days - 1)).isoformat()
        await self.flush()

        def rows() -> list[tuple[str, str, Counts]]:
            with contextlib.closing(self._open()) as db:
                found = db.execute(_READ, (since, person, person))
                return [(day, name, Counts(*numbers)) for day, name, *numbers in found]

        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, rows)
        except sqlite3.Error as error:
            raise Unavailable(
                f"usage cannot be read: {self.path}: {error}",
                hint="Restore it from a backup, or move it away: a new one is begun.",
            ) from None

    # ---- on disk

    def start(self) -> None:
        """Write once a second from now on."""
        self._writing = asyncio.create_task(self._write_again(), name="usage-writer")

    async def stop(self) -> None:
        if self._writing:
            self._writing.cancel()
            await asyncio.gather(self._writing, return_exceptions=True)
        await asyncio.gather(*self._under_way)
        await self.flush()
        self._thread.shutdown(wait=False)

    async def flush(self) -> None:
        """Everything that was counted is in the file, or kept for the next time if that fails, whoever asked for it
        and has left meanwhile."""
        self.catch_up()
        if self._new:
            task = asyncio.create_task(self._write_new())
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)
            await asyncio.shield(task)

    async def _write_new(self) -> None:
        new, self._new = self._new, {}
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._write, new)
            self._failed = False
        except (sqlite3.Error, OSError) as error:
            for place, counts in new.items():
                self._new.setdefault(place, Counts()).add(counts)
            if not self._failed:
                log.error("usage cannot be written, and is kept in memory: %s: %s", self.path, error)
            self._failed = True

    async def _write_again(self) -> None:
        while True:
            await asyncio.sleep(WRITE_EVERY_S)
            await self.flush()

    def _write(self, new: dict[Place, Counts]) -> None:
        with contextlib.closing(self._open()) as db, db:
            db.executemany(_ADD, [(*place, *astuple(counts)) for place, counts in new.items()])

    def _open(self) -> sqlite3.Connection:
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        db = sqlite3.connect(self.path, timeout=5.0)
        try:
            version = db.execute("PRAGMA user_version").fetchone()[0]
            if version > SCHEMA:
                raise sqlite3.DatabaseError(f"it is of schema {version}, this version reads up to {SCHEMA}")
            if version < SCHEMA:
                db.execute(_TABLE)
                db.execute(f"PRAGMA user_version = {SCHEMA}")
        except BaseException:
            db.close()
            raise
        return db

    def _load(self) -> None:
        """What was used today before this start. A file that cannot be read is said in the log, and left alone."""
        day, people = self.day(), self._by_person()
        if not self.path.exists():
            return
        try:
            with contextlib.closing(self._open()) as db:
                found = db.execute(
                    "SELECT person, SUM(counted) FROM usage WHERE day = ? GROUP BY person", (day,)
                )
                people.update(dict(found))
        except (sqlite3.Error, OSError) as error:
            self._failed = True
            log.error("usage cannot be read, so today counts from now: %s: %s", self.path, error)

    def _by_person(self) -> dict[str, int]:
        day = self.day()
        if day not in self._days:
            self._days = dict(list(self._days.items())[-1:]) | {day: {}}
        return self._days[day]
