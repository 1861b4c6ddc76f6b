"""May this stream really be stopped? Asked in one line at the foot; the monitor goes on behind it."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static


class Question(ModalScreen[bool]):
    """Dismissed with True for a yes. `words` have been sanitised."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "yes", id="question-yes"),
        Binding("n,escape,q", "answer(False)", "no", id="question-no"),
    ]
    DEFAULT_CSS = """
    Question { background: transparent; }
    Question > Static { dock: bottom; height: auto; width: 1fr; background: $warning; color: $text; padding: 0 1; }
    """

    def __init__(self, words: str) -> None:
        super().__init__()
        self._words = words

    def compose(self) -> ComposeResult:
        yield Static(Content(f"{self._words}   y yes   n no"))

    def action_answer(self, answer: bool) -> None:
        self.dismiss(answer)
