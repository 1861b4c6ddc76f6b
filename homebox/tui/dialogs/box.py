"""What have all boxes over the screen in common?

A border with a heading, a size that gives way on a narrow terminal, and that Esc closes it without an answer.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, Generic, TypeVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widget import Widget

from homebox.tui.keys import bindings
from homebox.tui.lines import line

Answer = TypeVar("Answer")


def dialog_keys(*names: str) -> list[BindingType]:
    """Those rows of the key table that a box uses."""
    return [each for each in bindings("dialog") if each.id in names]


class Box(ModalScreen[Answer | None], Generic[Answer]):
    """Answers with `dismiss`; None where it was closed."""

    DEFAULT_CSS = """
    Box { align: center middle; }
    Box > .box {
        width: 64; max-width: 100%; height: auto; max-height: 100%; padding: 0 1;
        border: round $border; border-title-color: $foreground; background: $surface;
    }
    Box .hint { color: $text-muted; height: auto; }
    Box Input { border: none; height: 1; padding: 0; margin: 0; background: $panel; }
    Box Input:focus { border: none; }
    Box OptionList { border: none; padding: 0; background: transparent; scrollbar-size-vertical: 1; }
    Box OptionList:focus { border: none; background-tint: transparent; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [*dialog_keys("dialog-close")]

    def __init__(self, heading: str) -> None:
        super().__init__()
        self._heading = line(heading)

    def content(self) -> Iterable[Widget]:
        """What stands in the box."""
        raise NotImplementedError

    def compose(self) -> ComposeResult:
        box = Vertical(*self.content(), classes="box")
        box.border_title = self._heading.replace("[", r"\[")
        yield box

    def action_close(self) -> None:
        self.dismiss(None)
