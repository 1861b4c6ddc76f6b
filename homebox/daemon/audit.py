"""Who did what on this box, and when?

`<state>/audit.jsonl`: one JSON line for each answer when it ends, for each refused request, for each request that
changes something, and for each act of administration; ids, names and counts, never a word of what was asked. Lines are
written by a thread of their own, so that no disk holds an answer; the files are turned over by size. A disk that takes
no more is said once in the log, and nobody's answer stops for it. Whoever is refused again and again, a stranger on the
network above all, gets so many lines a minute and then one with a count: nobody may push out what others did. Reading looks at the files, newest line first.

Readable by the daemon alone: in an installed box the group of the state directory is the household's.
"""

from __future__ import annotations

import contextlib
import io
import logging
import logging.handlers
import os
import queue
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from homebox.daemon import asked
from homebox.daemon.asked import Asked
from homebox.daemon.identity import Person
from homebox.daemon.logs import json_line
from homebox.daemon.turns import Turn

log = logging.getLogger("homebox.audit")

FILE = "audit.jsonl"
FILE_BYTES = 8 * 1024 * 1024
FILES = 5
WAITING_LINES = 10_000  # for a disk that stands still; beyond that lines are lost, and counted
REFUSALS_A_MINUTE = 120  # of one person, or of all strangers together


class Audit:
    """Call from the event loop; `close` once, from a thread or at the very end."""

    def __init__(self, state_dir: Path, *, file_bytes: int = FILE_BYTES, files: int = FILES) -> None:
        self.path = state_dir / FILE
        self._files = files
        self._lines: queue.Queue[Any] = queue.Queue(WAITING_LINES)
        self._lost = 0
        self._writer = logging.handlers.QueueListener(self._lines, _File(self.path, file_bytes, files))
        self._started = False
        self._minute = 0
        self._refusals: Counter[str | None] = Counter()  # of this minute, by person

    # ---- what there is to write

    def action(self, person: Person | None, what: str, *, target: str = "", **fields: Any) -> None:
        """An act of administration, such as `key.revoke`. `person` None: the daemon itself, or its owner's signal."""
        request = asked.current()
        if request is not None:
            request.recorded = True
        who = _who(person) if person else {"person": "daemon"}
        self._write(
            {"what": what, **who, "target": target or None, "request": request and request.id, **fields}
        )

    def answered(self, turn: Turn) -> None:
        """A turn has ended, however it did."""
        request, usage, error = turn.asked, turn.usage, turn.error
        who = _who(request.person) if request and request.person else {}
        self._write(
            {
                "what": "answer",
                **who,
                "person": turn.person,
                "turn": turn.id,
                "request": request and request.id,
                "route": request and request.route,
                "model": turn.model,
                "tokens_in": usage.prompt_tokens,
                "tokens_out": usage.completion_tokens,
                "cached": usage.cached_tokens,
                "outcome": turn.outcome,
                "code": error.code if error else None,
                "status": error.http_status if error else 200,
                "ms": round(turn.timing.total_ms),
            }
        )

    def refused(self, request: Asked, status: int, code: str) -> None:
        if not request.recorded and self._has_a_line(request.person.name if request.person else None):
            self._write(
                {"what": "refused", **_of(request), "outcome": "refused", "code": code, "status": status}
            )

    def done(self, request: Asked, status: int) -> None:
        """A request went well. Reading is not recorded: what polls would push everything else out; but one who speaks
        for somebody else always is."""
        reads = request.route.startswith(("GET ", "HEAD ", "OPTIONS "))
        if request.recorded or (reads and not (request.person and request.person.spoken_by)):
            return
        self._write({"what": "request", **_of(request), "outcome": "ok", "status": status})

    def _has_a_line(self, person: str | None) -> bool:
        """Whether one more refusal of this person is written by itself."""
        if (minute := int(time.time() // 60)) != self._minute:
            self._minute = minute
            self._tell_left_out()
        self._refusals[person] += 1
        return self._refusals[person] <= REFUSALS_A_MINUTE

    def _tell_left_out(self) -> None:
        counts, self._refusals = self._refusals, Counter()
        for person, count in counts.items():
            if (left_out := count - REFUSALS_A_MINUTE) > 0:
                self._write({"what": "refused", "person": person, "outcome": "left_out", "count": left_out})

    def close(self) -> None:
        """Everything so far is in the file when this returns."""
        self._tell_left_out()
        if self._started:
            self._started = False
            with contextlib.suppress(
                queue.Full
            ):  # the disk stands still; nothing is gained by waiting for it
                self._writer.stop()

    def _write(self, values: dict[str, Any]) -> None:
        if not self._started:
            self._started = True
            self._writer.start()
        line = json_line({"at": stamp(time.time())} | {k: v for k, v in values.items() if v is not None})
        try:
            self._lines.put_nowait(logging.makeLogRecord({"msg": line}))
        except queue.Full:
            if not self._lost:
                log.error("audit lines are lost: the disk does not take them as fast as they come")
            self._lost += 1

    # ---- reading

    def read(self, *, person: str | None = None, since: float = 0.0, limit: int = 50) -> list[dict[str, Any]]:
        """The newest `limit` lines, oldest first, of this person and not before `since` (unix seconds). Blocking.
        Raises OSError where a file that is there cannot be read."""
        found: list[dict[str, Any]] = []
        earliest = stamp(since) if since else ""
        for line in self._newest_first():
            try:
                said = msgspec.json.decode(line, type=dict[str, Any])
            except msgspec.DecodeError:  # a line that a full disk cut short
                continue
            if str(said.get("at", "")) < earliest:
                break
            if person is None or person in (said.get("person"), said.get("spoken_by"), said.get("owner")):
                found.append(said)
                if len(found) >= limit:
                    break
        return found[::-1]

    def _newest_first(self) -> Iterator[bytes]:
        for number in range(self._files):
            path = self.path if number == 0 else Path(f"{self.path}.{number}")
            try:
                yield from reversed(path.read_bytes().splitlines())
            except FileNotFoundError:
                return


class _File(logging.handlers.RotatingFileHandler):
    """The standard library's file that turns over, opened for its owner alone and written without a buffer, so that a
    line which found no room is not kept back to spoil the next. What goes wrong is said once, until it goes right."""

    def __init__(self, path: Path, file_bytes: int, files: int) -> None:
        super().__init__(path, maxBytes=file_bytes, backupCount=files - 1, encoding="ascii", delay=True)
        self._failing = False
        self._why = ""

    def _open(self) -> io.TextIOWrapper:
        descriptor = os.open(self.baseFilename, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        raw = io.FileIO(descriptor, "a")
        return io.TextIOWrapper(raw, encoding="ascii", write_through=True)

    def emit(self, record: logging.LogRecord) -> None:
        # What a full disk cut short is ended first: the reader skips it, and finds this line whole.
        began_failing = self._failing
        if began_failing:
            record.msg = f"\n{record.msg}"
        self._failing = False
        super().emit(record)
        if self._failing and not began_failing:
            log.error("audit lines are not written: %s; everything else goes on", self._why)
        elif began_failing and not self._failing:
            log.warning("audit lines are written again")

    def handleError(self, record: logging.LogRecord) -> None:
        self._failing = True
        error = sys.exc_info()[1]
        self._why = (error.strerror if isinstance(error, OSError) else None) or type(error).__name__


def stamp(unix_s: float) -> str:
    """`2026-11-02T10:22:33.123Z`: sorts as text in the order of time."""
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(unix_s))}.{int(unix_s % 1 * 1000):03}Z"


def _who(person: Person) -> dict[str, Any]:
    return {"person": person.name, "key": person.key, "spoken_by": person.spoken_by}


def _of(request: Asked) -> dict[str, Any]:
    who = _who(request.person) if request.person else {}
    return {**who, "request": request.id, "route": request.route, "ms": round(request.ms)}
