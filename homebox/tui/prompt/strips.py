"""What stands around the text: the chips of what is folded or attached, and the messages that wait for their turn.

Each is a line or two of content made from data; a click on it is a message. They hold no state of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from textual import events
from textual.content import Content
from textual.message import Message
from textual.style import Style
from textual.widgets import Static

from homebox.client.sanitise import clean

MAX_QUEUED_ROWS = 3


@dataclass(frozen=True)
class Row:
    """A chip as it is shown: `key` is its mark or the name of its file."""

    key: str
    label: str
    can_open: bool = False


class Chips(Static):
    """`[1 pasted 214 lines x] [notes.md 12.3 kB x]`: the x takes it away, the rest unfolds what can be unfolded."""

    DEFAULT_CSS = (
        "Chips { display: none; height: auto; max-height: 3; padding: 0 0 0 2; color: $text-accent; }"
    )

    @dataclass
    class Clicked(Message):
        key: str
        away: bool

    def show(self, rows: Sequence[Row]) -> None:
        self.display = bool(rows)
        self.update(Content(" ").join(_chip(row) for row in rows))

    def on_click(self, event: events.Click) -> None:
        meta = event.style.meta
        if "chip" in meta:
            event.stop()
            self.post_message(self.Clicked(meta["chip"], meta["away"]))


class Queued(Static):
    """The messages behind a running answer, a line each."""

    DEFAULT_CSS = "Queued { display: none; height: auto; padding: 0 0 0 2; color: $text-muted; }"

    def show(self, texts: Sequence[str]) -> None:
        self._texts = list(texts)
        self.display = bool(texts)
        self._draw()

    def on_resize(self) -> None:
        if self.display:
            self._draw()

    def _draw(self) -> None:
        more = len(self._texts) - MAX_QUEUED_ROWS
        lines = [Content(f"next: {_one_line(text)}") for text in self._texts[:MAX_QUEUED_ROWS]]
        if more > 0:
            lines[-1] = Content(f"and {more + 1} more")
        if lines:
            lines[-1] += Content.styled("  (Esc drops the last)", "dim")
        width = max(self.content_size.width, 10)
        self.update(Content("\n").join(line.truncate(width, ellipsis=True) for line in lines))


def _chip(row: Row) -> Content:
    label = Content(f"[{clean(row.label)}").stylize(
        Style.from_meta({"chip": row.key, "away": not row.can_open})
    )
    away = Content(" x]").stylize(Style.from_meta({"chip": row.key, "away": True}))
    return label + away


def _one_line(text: str) -> str:
    return " ".join(clean(text[:1000]).split())
