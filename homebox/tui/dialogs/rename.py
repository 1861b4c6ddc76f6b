"""What shall this conversation be called?

Answers with the new title, on one line and as long as the daemon takes; with nothing where it stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterable

from textual import on
from textual.widget import Widget
from textual.widgets import Input, Static

from homebox.tui.dialogs.box import Box
from homebox.tui.lines import line

MAX_CHARACTERS = 200  # as the daemon keeps it


class Rename(Box[str]):
    def __init__(self, title: str) -> None:
        super().__init__("name of the conversation")
        self._title = line(title)

    def content(self) -> Iterable[Widget]:
        yield Input(self._title, max_length=MAX_CHARACTERS, compact=True)
        yield Static("Enter keeps it, Esc leaves it as it was", markup=False, classes="hint")

    @on(Input.Submitted)
    def _entered(self, event: Input.Submitted) -> None:
        event.stop()
        words = line(event.value)
        self.dismiss(words if words and words != self._title else None)
