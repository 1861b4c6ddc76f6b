"""How does the daemon log? One line an event on stderr, as text or as JSON: ids and counts, never what people write.

Under systemd each line begins with its priority, `<6>`, and leaves the time to the journal. Nothing that comes from a
person can begin a line or drive a terminal: control characters are written as escapes and values are quoted. An
exception is logged by its kind and its place in the code; its own words may quote what was asked, and are left out.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any

from aiohttp.http_exceptions import HttpProcessingError

from homebox.daemon import asked

# C0 and C1 controls, DEL, marks that turn the writing direction, line separators, undecodable bytes.
_UNSAFE = re.compile(
    "[\\x00-\\x1f\\x7f-\\x9f\\u061c\\u200e\\u200f\\u2028-\\u202e\\u2066-\\u2069\\ud800-\\udfff]"
)
_PLAIN = re.compile(r"[\w.:/@%+,-]+", re.ASCII)
_PRIORITIES = {logging.DEBUG: 7, logging.INFO: 6, logging.WARNING: 4, logging.ERROR: 3, logging.CRITICAL: 2}


def one_line(text: str) -> str:
    """The text with everything that could end a line or drive a terminal written as an escape."""
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def json_line(values: Mapping[str, Any]) -> str:
    """One JSON object in ASCII, on one line whatever the values hold."""
    return json.dumps(values, ensure_ascii=True, default=str, separators=(",", ":")).replace(
        "\x7f", "\\u007f"
    )


def to_journal(environ: Mapping[str, str] = os.environ, descriptor: int = 2) -> bool:
    """Whether stderr is the journal: JOURNAL_STREAM names its device and inode (a child may have inherited the name
    with another stderr)."""
    try:
        status = os.fstat(descriptor)
    except OSError:
        return False
    return environ.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"


def configure(form: str) -> None:
    """`form`: "text" or "json"."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter(form, journal=to_journal()))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("homebox").setLevel(logging.INFO)
    server = logging.getLogger("aiohttp.server")
    server.filters[:] = [_no_fault_of_ours]


def _no_fault_of_ours(record: logging.LogRecord) -> bool:
    """Bytes that are no HTTP are refused by the server itself: one line, as for any other refusal."""
    if record.exc_info and isinstance(record.exc_info[1], HttpProcessingError):
        record.levelno, record.levelname, record.exc_info = logging.WARNING, "WARNING", None
        record.msg, record.args = "refused: what a client sent is not HTTP", ()
    return True


def formatter(form: str, *, journal: bool) -> logging.Formatter:
    return _Json(journal) if form == "json" else _Text(journal)


class _Lines(ABC, logging.Formatter):
    """What both forms share: a record as lines, each with its priority where the journal reads them."""

    def __init__(self, journal: bool) -> None:
        super().__init__()
        self.journal = journal

    def format(self, record: logging.LogRecord) -> str:
        prefix = f"<{_PRIORITIES.get(record.levelno, 6)}>" if self.journal else ""
        return "\n".join(prefix + line for line in self.lines(record))

    @abstractmethod
    def lines(self, record: logging.LogRecord) -> Iterator[str]: ...


class _Text(_Lines):
    def lines(self, record: logging.LogRecord) -> Iterator[str]:
        when = "" if self.journal else f"{_clock(record)} {record.levelname.lower():7} "
        pairs = [f"{name}={_value(value)}" for name, value in _fields(record).items() if value is not None]
        head = f"{when}{record.name.removeprefix('homebox.')}: {_message(record)}"
        yield one_line(" ".join([head, *pairs]))
        for line in _trace(record):
            yield f"    {one_line(line)}"


class _Json(_Lines):
    def lines(self, record: logging.LogRecord) -> Iterator[str]:
        out: dict[str, Any] = {} if self.journal else {"at": _clock(record)}
        out |= {"level": record.levelname.lower(), "from": record.name, "message": _message(record)}
        out |= _fields(record)
        if trace := _trace(record):
            out["traceback"] = trace
        yield json_line(out)


def _clock(record: logging.LogRecord) -> str:
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.localtime(record.created))}.{int(record.msecs):03}"


def _message(record: logging.LogRecord) -> str:
    """A hint is a line of its own, and becomes a part of this one. What a library adds after its first line shows
    objects and what is in them."""
    parts = [line.strip() for line in record.getMessage().splitlines()]
    return " - ".join(parts if record.name.startswith("homebox") else parts[:1])


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    fields: dict[str, Any] = dict(getattr(record, "fields", {}))
    if "request" not in fields and (name := asked.current_id()) is not None:
        fields["request"] = name
    return fields


def _value(value: object) -> str:
    """Bare where it is one word, else in quotes, so that no value can look like the next field."""
    text = str(value)
    return text if _PLAIN.fullmatch(text) else json.dumps(text, ensure_ascii=False)


def _trace(record: logging.LogRecord) -> list[str]:
    """Where it came from, the cause first, in lines of code and without the words of the exceptions."""
    if not record.exc_info or record.exc_info[1] is None:
        return []
    chain: list[BaseException] = []
    error: BaseException | None = record.exc_info[1]
    while error is not None and error not in chain:
        chain.append(error)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    lines: list[str] = []
    for one in reversed(chain):
        for part in traceback.format_tb(one.__traceback__):
            lines += part.rstrip().splitlines()
        words = f": {one.strerror}" if isinstance(one, OSError) and one.strerror else ""
        lines.append(f"{type(one).__module__}.{type(one).__qualname__}{words}")
    return lines
