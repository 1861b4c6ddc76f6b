"""`homebox chat` that writes down what each drawing of an answer cost. A part of `chat_screen.py`.

    python -m homebox.bench.timed_chat FIGURES [--first WORDS]

The product's own screen, started as the command starts it; only the moment at which an answer draws what has come is
noted, in processor time of the screen's thread, and the moment at which that was painted.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import psutil

from homebox.client import connection
from homebox.client.settings import Screens
from homebox.tui import start
from homebox.tui.answer.lines import Lines

_drawings_ms: list[float] = []
_flush = Lines._flush


def _timed(self: Lines) -> None:
    began = time.thread_time()
    _flush(self)
    self.call_after_refresh(lambda: _drawings_ms.append((time.thread_time() - began) * 1e3))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("figures", type=Path)
    parser.add_argument("--first", help="said at once")
    args = parser.parse_args()
    Lines._flush = _timed  # type: ignore[method-assign]
    start.chat(connection.from_environment(), Screens(), first=args.first)
    resident = psutil.Process().memory_info().rss / 2**20
    args.figures.write_text(json.dumps({"drawings_ms": _drawings_ms, "resident_mib": resident}))


if __name__ == "__main__":
    main()
