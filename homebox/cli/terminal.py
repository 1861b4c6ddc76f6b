"""What is at the other end of our standard streams, and how may it be written to?

Standard output carries the answer: UTF-8 bytes when it is a file or a pipe, what the terminal can show when it is one.
Everything else goes to standard error; a line there that changes (the place in the queue) is rewritten in place on a
terminal and repeated, when it says something new, elsewhere. It knows nothing of events.
"""

from __future__ import annotations

import os
import sys

from homebox.client.lines import clip
from homebox.client.sanitise import clean, safe_json


def prepare_stdout() -> None:
    """UTF-8 for files and pipes whatever the locale; a terminal keeps its encoding and shows `?` for what it lacks."""
    if hasattr(sys.stdout, "reconfigure"):
        if sys.stdout.isatty():
            sys.stdout.reconfigure(errors="replace")
        else:
            sys.stdout.reconfigure(encoding="utf-8", errors="strict", newline="")


def answer(*lines: str) -> None:
    """These lines, on standard output."""
    prepare_stdout()
    for line in lines:
        sys.stdout.write(clean(line) + "\n")


def answer_json(value: object) -> None:
    """The same for programs: `value` as one line of JSON."""
    import msgspec

    prepare_stdout()
    sys.stdout.write(safe_json(msgspec.json.encode(value).decode()) + "\n")


def is_dumb() -> bool:
    """True for a terminal that cannot move its cursor."""
    return os.environ.get("TERM", "dumb") in ("dumb", "")


def only_ascii() -> bool:
    """True for a terminal that is not known to show more: its locale is not UTF-8, or it is the kernel's console.

    Python itself puts C.UTF-8 in the place of a C locale (PEP 538), which says nothing of the terminal."""
    said = os.environ.get("LC_ALL") or os.environ.get("LC_CTYPE") or os.environ.get("LANG") or "C"
    if (
        said == "C.UTF-8"
        and not os.environ.get("LC_ALL")
        and os.environ.get("LANG", "C") in ("", "C", "POSIX")
    ):
        said = "C"
    return "utf8" not in said.lower().replace("-", "") or is_dumb() or os.environ.get("TERM") == "linux"


def say(text: str) -> None:
    """One line about what is going on, on standard error."""
    print(clean(f"homebox: {text}"), file=sys.stderr, flush=True)


class StatusLine:
    """The one changing line on standard error."""

    def __init__(self, *, quiet: bool = False) -> None:
        self.on_terminal = sys.stderr is not None and sys.stderr.isatty()
        self._rewrites = self.on_terminal and not is_dumb()
        self._quiet = quiet
        self._shown = ""

    def show(self, text: str) -> None:
        """Show `text` unless it is what stands there already."""
        if self._quiet or text == self._shown:
            return
        if self._rewrites:
            print(f"\r\x1b[K{clip(text, _columns() - 1)}", end="", file=sys.stderr, flush=True)
        else:
            say(text)
        self._shown = text

    def clear(self) -> None:
        """Take the line away before something else is written."""
        if self._shown and self._rewrites:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
        self._shown = ""


def _columns() -> int:
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or 80
    except (OSError, ValueError):
        return 80
