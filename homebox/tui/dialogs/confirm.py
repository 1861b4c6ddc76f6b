"""Is this really meant?

A question whose answer is no unless a person says yes: `y`, or Enter on `yes`. Esc, `n` and Enter where the box opens
say no.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from textual import on
from textual.binding import BindingType
from textual.containers import Horizontal
from textual.widget import Widget
from textual.widgets import Button, Static

from homebox.client.sanitise import clean
from homebox.tui.dialogs.box import Box, dialog_keys


class Confirm(Box[bool]):
    """Answers True for yes and False for everything else."""

    DEFAULT_CSS = """
    Confirm Horizontal { height: auto; margin-top: 1; }
    Confirm Button { min-width: 8; margin-right: 2; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [*dialog_keys("dialog-yes", "dialog-no")]

    def __init__(self, question: str, *, detail: str = "", yes: str = "yes", no: str = "no") -> None:
        super().__init__("homebox asks")
        self._question, self._detail = clean(question), clean(detail)
        self._words = {"yes": f"{clean(yes)} (y)", "no": f"{clean(no)} (n)"}

    def content(self) -> Iterable[Widget]:
        yield Static(self._question, markup=False)
        if self._detail:
            yield Static(self._detail, markup=False, classes="hint")
        yield Horizontal(*(Button(words, id=name, compact=True) for name, words in self._words.items()))

    def on_mount(self) -> None:
        self.query_one("#no", Button).focus()

    @on(Button.Pressed)
    def _pressed(self, event: Button.Pressed) -> None:
        event.stop()
        self.dismiss(event.button.id == "yes")

    def action_yes(self) -> None:
        self.dismiss(True)

    def action_no(self) -> None:
        self.dismiss(False)

    def action_close(self) -> None:
        self.dismiss(False)
