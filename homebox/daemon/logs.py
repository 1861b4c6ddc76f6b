"""How does the daemon log? One line an event on stderr, as text or as JSON: ids and counts, never what people write."""

from __future__ import annotations

import logging
import sys
import time
from typing import Any

import msgspec


class _Text(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = getattr(record, "fields", {})
        pairs = " ".join(f"{name}={value}" for name, value in fields.items() if value is not None)
        message = " - ".join(
            line.strip() for line in record.getMessage().splitlines()
        )  # a hint is a line of its own
        line = (
            f"{_clock(record)} {record.levelname.lower():7} {record.name.removeprefix('homebox.')}: {message}"
        )
        line = f"{line} {pairs}" if pairs else line
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        out: dict[str, Any] = {
            "at": _clock(record),
            "level": record.levelname.lower(),
            "from": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            out["traceback"] = self.formatException(record.exc_info)
        return msgspec.json.encode(out).decode()


def _clock(record: logging.LogRecord) -> str:
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.localtime(record.created))}.{int(record.msecs):03}"


def configure(form: str) -> None:
    """`form`: "text" or "json"."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json() if form == "json" else _Text())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("homebox").setLevel(logging.INFO)
