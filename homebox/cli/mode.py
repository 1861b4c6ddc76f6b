"""Screen or lines: on what does `homebox chat` draw?

Lines (`plain.py`) where somebody asks for them or a screen cannot be drawn; every reason has words, because the first
line of plain mode says why it is on. It looks at flags, environment and streams, and starts nothing.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

_OFF = ("", "0")


def why_plain(asked: bool, environ: Mapping[str, str] = os.environ) -> str:
    """The reason for plain mode; nothing where the screen can be drawn."""
    if asked:
        return "--plain was given"
    if environ.get("HOMEBOX_PLAIN", "") not in _OFF:
        return "HOMEBOX_PLAIN is set"
    if sys.stdin is None or not sys.stdin.isatty():
        return "standard input is no terminal"
    if not sys.stdout.isatty():
        return "standard output is no terminal"
    if sys.stderr is None or not sys.stderr.isatty():
        return "standard error is no terminal"  # where the screen is drawn
    if not environ.get("TERM"):
        return "TERM is not set"
    return "TERM is dumb" if environ["TERM"] == "dumb" else ""
