"""How does one conversation look in a list, and under which day does it stand?

A row is one line however long its title is, so that a list of thousands needs no wrapping to know its height. Days are
those of this computer's calendar. It knows no list.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date, datetime, timedelta

from textual.content import Content
from textual.css.styles import RulesMap
from textual.strip import Strip
from textual.style import Style
from textual.visual import RenderOptions, Visual

from homebox.tui.lines import both_ends, line
from homebox.wire.chats import ChatRow

UNTITLED = "untitled"
# What became of the last answer: being written, failed, or there is more of it to be had.
MARKS = {"growing": "*", "error": "!", "stopped": "=", "length": "="}


@dataclass(frozen=True)
class Line(Visual):
    """One line of a list: `left` is cut to make room for `right`."""

    left: str
    right: str = ""

    def render_strips(
        self, width: int, height: int | None, style: Style, options: RenderOptions
    ) -> list[Strip]:
        return Content(both_ends(self.left, self.right, width)).render_strips(width, 1, style, options)

    def get_optimal_width(self, rules: RulesMap, container_width: int) -> int:
        return container_width

    def get_height(self, rules: RulesMap, width: int) -> int:
        return 1


@dataclass(frozen=True)
class ChatLine(Visual):
    """The line of one conversation: made where it is seen, since thousands are not."""

    row: ChatRow
    current: bool

    def render_strips(
        self, width: int, height: int | None, style: Style, options: RenderOptions
    ) -> list[Strip]:
        made = Line(f"{'>' if self.current else ' '} {title(self.row)}", MARKS.get(self.row.state or "", ""))
        return made.render_strips(width, height, style, options)

    def get_optimal_width(self, rules: RulesMap, container_width: int) -> int:
        return container_width

    def get_height(self, rules: RulesMap, width: int) -> int:
        return 1


def title(row: ChatRow) -> str:
    """The title as it may be shown."""
    return line(row.title) or UNTITLED


def period(day: date, today: date) -> str:
    """Under which heading a day stands. Weeks begin on Monday."""
    if day >= today:  # also where the two clocks do not agree
        return "Today"
    if day == today - timedelta(days=1):
        return "Yesterday"
    if day >= today - timedelta(days=today.weekday()):
        return "This week"
    if (day.year, day.month) == (today.year, today.month):
        return "This month"
    return "Earlier"


def by_period(rows: Iterable[ChatRow], now: float) -> Iterator[tuple[str, ChatRow]]:
    """Each row with its heading."""
    today = datetime.fromtimestamp(now).date()
    for row in rows:
        yield period(datetime.fromtimestamp(row.updated).date(), today), row
