"""How far is something that takes long? A bar on a terminal, one line a stage elsewhere, always on standard error."""

from __future__ import annotations

import time

from homebox.cli import terminal

_REDRAW_S = 0.1
_BAR = 24


class Stages:
    """Called with a stage, and bytes done and in all (0 where that is not known)."""

    def __init__(self, *, only_bar: bool = False) -> None:
        """`only_bar`: say nothing where no bar can be drawn."""
        self._line = terminal.StatusLine()
        self._bar = self._line.on_terminal and not terminal.is_dumb()
        self._silent = only_bar and not self._bar
        self._drawn = 0.0
        self._stage = ""

    def __call__(self, stage: str, done: int, total: int) -> None:
        now = time.monotonic()
        if self._silent:
            return
        if not self._bar:
            self._line.show(stage)
        elif stage != self._stage or done == total or now - self._drawn >= _REDRAW_S:
            self._line.show(f"{stage} {_figures(done, total)}" if total else stage)
            self._drawn = now
        self._stage = stage

    def clear(self) -> None:
        self._line.clear()


def size(count: int) -> str:
    """Bytes as a person reads them."""
    return f"{count / 1e6:,.1f} MB" if count >= 1_000_000 else f"{count / 1e3:,.1f} kB"


def _figures(done: int, total: int) -> str:
    filled = _BAR * done // total
    return f"[{'#' * filled}{'.' * (_BAR - filled)}] {size(done)} of {size(total)}"
