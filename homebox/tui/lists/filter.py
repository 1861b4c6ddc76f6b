"""Which letters must a row have to be shown?

A line to type into above a list. The list keeps its cursor: up, down and enter are passed on to it. It knows no list.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.message import Message
from textual.widgets import Input, Static


class Line(Input):
    """The line alone: up and down move the cursor of the list below it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "move(-1)", "up", id="filter-up", show=False),
        Binding("down", "move(1)", "down", id="filter-down", show=False),
    ]

    @dataclass
    class Moved(Message):
        by: int

    def action_move(self, by: int) -> None:
        self.post_message(self.Moved(by))


class Filter(Horizontal):
    """Not to be seen until `show`, and gone again with Esc."""

    DEFAULT_CSS = """
    Filter { height: 1; display: none; }
    Filter Static { width: 2; }
    Filter Input { width: 1fr; height: 1; border: none; padding: 0; background: transparent; }
    Filter Input:focus { border: none; background-tint: transparent; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "close", "close", id="filter-close", show=False)
    ]

    @dataclass
    class Changed(Message):
        """Other letters; `value` of the filter has them."""

    @dataclass
    class Moved(Message):
        by: int

    @dataclass
    class Submitted(Message):
        pass

    @dataclass
    class Closed(Message):
        pass

    def __init__(self, asks_for: str) -> None:
        super().__init__()
        self._line = Line(placeholder=asks_for, compact=True)
        self._said = ""

    def compose(self) -> ComposeResult:
        yield Static("/", markup=False)
        yield self._line

    @property
    def open(self) -> bool:
        return bool(self.display)

    @property
    def value(self) -> str:
        return self._line.value if self.open else ""

    def show(self) -> None:
        self.display = True
        self._line.focus()

    def action_close(self) -> None:
        self.display = False
        self._line.value = ""
        self.post_message(self.Closed())

    @on(Input.Changed)
    def _typed(self, event: Input.Changed) -> None:
        event.stop()
        if self.open:
            self.post_message(self.Changed())

    @on(Input.Submitted)
    def _entered(self, event: Input.Submitted) -> None:
        event.stop()
        self.post_message(self.Submitted())

    @on(Line.Moved)
    def _arrow(self, event: Line.Moved) -> None:
        event.stop()
        self.post_message(self.Moved(event.by))
