"""How do lines of styled text get onto the screen with little work?

`Lines` draws them as they are; `Rows` is a table whose rows scroll and one of which is chosen. Both turn a span's style
name into a colour of the theme, and draw again only the rows that have changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.segment import Segment
from rich.style import Style
from textual.events import Click
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widget import Widget

from homebox.client.lines import Line

STYLES = (
    "title", "head", "dim", "bar", "graph", "good", "busy", "warn", "mine", "chosen", "key",
    "who0", "who1", "who2", "who3", "who4", "who5",
)  # fmt: skip
_CLASSES = {f"line--{name}" for name in STYLES} | {"line--cursor"}
_CSS = """
    & > .line--title { text-style: bold; color: $primary; }
    & > .line--head { text-style: bold; }
    & > .line--dim { text-style: dim; }
    & > .line--bar { color: $success; }
    & > .line--graph { color: $accent; }
    & > .line--good { color: $success; }
    & > .line--busy { color: $accent; }
    & > .line--warn { text-style: bold; color: $warning; }
    & > .line--mine { text-style: bold; color: $primary; }
    & > .line--chosen { text-style: bold underline; color: $primary; }
    & > .line--key { text-style: bold; color: $accent; }
    & > .line--who0 { color: $primary; }
    & > .line--who1 { color: $success; }
    & > .line--who2 { color: $warning; }
    & > .line--who3 { color: $error; }
    & > .line--who4 { color: $accent; }
    & > .line--who5 { color: $secondary; }
    & > .line--cursor { text-style: reverse; }
"""
# Greys of unlike colours would only be harder to read.
_CSS += "\n".join(f"&:nocolor > .line--{name} {{ color: $foreground; }}" for name in STYLES)


class _Painter:
    """Lines to strips. What stands in a line has been sanitised by whoever made it."""

    def __init__(self, widget: Widget) -> None:
        self._widget = widget

    def strip(self, line: Line, cells: int) -> Strip:
        # Every cell has a style, also a blank one: textual's filters for terminals without colour expect it.
        base = self._widget.rich_style
        segments = [Segment(text, base + self.style(name) if name else base) for text, name in line if text]
        return Strip(segments).adjust_cell_length(cells, base)

    def style(self, name: str) -> Style:
        return self._widget.get_component_rich_style(f"line--{name}", partial=True)


class Lines(Widget):
    """As high as it has lines, unless its style says otherwise."""

    COMPONENT_CLASSES = _CLASSES
    DEFAULT_CSS = "Lines { height: auto; width: 1fr;" + _CSS + "}"

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._lines: tuple[Line, ...] = ()
        self._painter = _Painter(self)

    def show(self, lines: Sequence[Line]) -> None:
        before, self._lines = self._lines, tuple(lines)
        if len(before) != len(self._lines):
            self.refresh(layout=True)
            return
        changed = [
            Region(0, y, self.size.width, 1)
            for y, (old, new) in enumerate(zip(before, lines, strict=True))
            if old != new
        ]
        if changed:
            self.refresh(*changed)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return len(self._lines)

    def render_line(self, y: int) -> Strip:
        line = self._lines[y] if y < len(self._lines) else ()
        return self._painter.strip(line, self.size.width)


class Rows(ScrollView):
    """The streams. It has no focus: the screen moves its cursor."""

    COMPONENT_CLASSES = _CLASSES
    DEFAULT_CSS = "Rows { height: 1fr; width: 1fr; scrollbar-size: 0 0;" + _CSS + "}"

    @dataclass
    class Picked(Message):
        """Somebody has clicked on this row."""

        row: int

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.can_focus = False
        self._lines: tuple[Line, ...] = ()
        self._cursor: int | None = None
        self._painter = _Painter(self)

    def show(self, lines: Sequence[Line], cursor: int | None) -> None:
        moved = cursor != self._cursor
        same = tuple(lines) == self._lines
        self._lines, self._cursor = tuple(lines), cursor
        self.virtual_size = Size(0, len(self._lines))
        if cursor is not None and moved:
            self.scroll_to_region(Region(0, cursor, 1, 1), animate=False)
        if moved or not same:
            self.refresh()

    def render_line(self, y: int) -> Strip:
        place = y + self.scroll_offset.y
        if place >= len(self._lines):
            return self._painter.strip((), self.size.width)
        strip = self._painter.strip(self._lines[place], self.size.width)
        if place == self._cursor:
            strip = strip.apply_style(self._painter.style("cursor"))
        return strip

    def on_click(self, event: Click) -> None:
        if (place := event.y + self.scroll_offset.y) < len(self._lines):
            self.post_message(self.Picked(place))
