"""How should the model behave in this conversation?

Answers with the new system prompt, empty for none, or with nothing where it stays as it was.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from textual import on
from textual.binding import BindingType
from textual.containers import Horizontal
from textual.widget import Widget
from textual.widgets import Button, Static, TextArea

from homebox.client.sanitise import clean
from homebox.tui.dialogs.box import Box, dialog_keys

_FIRST = "It applies from the first answer on."
_BEGUN = "It applies from the next answer on. What was said is then read again from its start, which takes a moment."


class SystemPrompt(Box[str]):
    """`begun`: something was said in the conversation already."""

    DEFAULT_CSS = """
    SystemPrompt > .box { width: 80; height: 80%; }
    SystemPrompt TextArea { height: 1fr; border: none; padding: 0; background: $panel; }
    SystemPrompt TextArea:focus { border: none; }
    SystemPrompt Horizontal { height: 1; }
    SystemPrompt Button { min-width: 8; margin-right: 2; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [*dialog_keys("dialog-keep")]

    def __init__(self, text: str, *, begun: bool) -> None:
        super().__init__("how the model should behave here")
        self._text = clean(text)
        self._begun = begun

    def content(self) -> Iterable[Widget]:
        yield TextArea(self._text, soft_wrap=True, compact=True)
        yield Static(_BEGUN if self._begun else _FIRST, markup=False, classes="hint")
        yield Horizontal(
            Button("keep (F8)", id="keep", compact=True), Button("leave (Esc)", id="leave", compact=True)
        )

    @on(Button.Pressed)
    def _pressed(self, event: Button.Pressed) -> None:
        event.stop()
        if event.button.id == "keep":
            self.action_keep()
        else:
            self.action_close()

    def action_keep(self) -> None:
        # A paste may bring what a terminal must not see; it is not sent to the model either.
        words = clean(self.query_one(TextArea).text).strip()
        self.dismiss(words if words != self._text.strip() else None)
