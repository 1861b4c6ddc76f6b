"""What can be pressed and typed here?

Every key as this person has it and every command, from the two tables that the screens work by, so that the help
cannot be wrong. A line at its top finds words.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from rich.cells import cell_len, set_cell_size
from textual import on
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Input, Static

from homebox.client.commands import COMMANDS
from homebox.tui.dialogs.box import Box
from homebox.tui.keys import TABLE, Where, in_words
from homebox.tui.lines import line
from homebox.tui.lists.filter import Line

PLACES: Mapping[Where, str] = {
    "screen": "Everywhere",
    "prompt": "While you type",
    "message": "On a message",
    "chats": "In the list of conversations",
    "dialog": "In a box over the screen",
    "monitor": "In the monitor",
}
_NAME_CELLS = (21, 11)  # of a wide box and of a narrow one
_NARROW = 50


@dataclass(frozen=True)
class Row:
    under: str
    name: str
    about: str


def rows(remaps: Mapping[str, str]) -> Iterator[Row]:
    """All there is, in the order of the tables."""
    for where, heading in PLACES.items():
        for key in TABLE[where]:
            keys = remaps.get(key.id, key.keys).split(",")
            yield Row(heading, ", ".join(in_words(each) for each in keys[:2]), key.about)
    for command in COMMANDS:
        yield Row("Commands", f"{command.name} {command.takes}".strip(), command.about)


def text(found: Iterable[Row], width: int) -> Content:
    """The rows under their headings, for so many cells."""
    column = _NAME_CELLS[width < _NARROW]
    parts: list[Content] = []
    under = ""
    for row in found:
        if row.under != under:
            under = row.under
            parts.append(Content.styled(("\n" if parts else "") + under, "bold"))
        parts += (Content(each) for each in _columns(line(row.name), row.about, column, width))
    return Content("\n").join(parts) if parts else Content("nothing here has these words")


def _columns(name: str, about: str, column: int, width: int) -> Iterator[str]:
    """A name and, beside it, what it does; below it where the name is too long."""
    about_lines = textwrap.wrap(about, max(10, width - column - 2))
    if cell_len(name) >= column:
        yield f"  {name}"
        name = ""
    for each in about_lines:
        yield f"  {set_cell_size(name, column)}{each}"
        name = ""


class Help(Box[None]):
    """`remaps`: key ids and what the person presses instead."""

    DEFAULT_CSS = """
    Help > .box { width: 80; height: 100%; }
    Help VerticalScroll { height: 1fr; scrollbar-size-vertical: 1; scrollbar-gutter: stable; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("pagedown", "page(1)", "a page down", id="page-down", priority=True),
        Binding("pageup", "page(-1)", "a page up", id="page-up", priority=True),
    ]

    def __init__(self, remaps: Mapping[str, str]) -> None:
        super().__init__("keys and commands")
        self._rows = list(rows(remaps))
        self._found = self._rows
        self._text = Static(markup=False)

    def content(self) -> Iterable[Widget]:
        yield Line(placeholder="type to find; Esc closes", compact=True)
        yield VerticalScroll(self._text, can_focus=False)

    def on_mount(self) -> None:
        self.call_after_refresh(self._draw)

    def on_resize(self) -> None:
        self.call_after_refresh(self._draw)

    def _draw(self) -> None:
        self._text.update(text(self._found, self.query_one(VerticalScroll).scrollable_content_region.width))

    @on(Input.Changed)
    def _typed(self, event: Input.Changed) -> None:
        event.stop()
        words = event.value.casefold().split()
        self._found = [
            row for row in self._rows if all(word in f"{row.name} {row.about}".casefold() for word in words)
        ]
        self._draw()
        self.query_one(VerticalScroll).scroll_home(animate=False)

    @on(Line.Moved)
    def _moved(self, event: Line.Moved) -> None:
        event.stop()
        self.query_one(VerticalScroll).scroll_relative(y=event.by, animate=False)

    def action_page(self, by: int) -> None:
        column = self.query_one(VerticalScroll)
        column.scroll_relative(y=by * max(1, column.size.height - 1), animate=False)
