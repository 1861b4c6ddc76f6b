"""A screen with nothing on it but what a test is about, and everything that was said to it."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

from textual.app import App, ComposeResult
from textual.message import Message
from textual.pilot import Pilot
from textual.widget import Widget

from homebox.tui import themes

from .golden import shown

SIZES = ((80, 24), (60, 20), (40, 12), (140, 40))
DEADLINE_S = 10.0
NOW = datetime(2026, 3, 18, 15, 30).timestamp()  # a Wednesday
HOUR, DAY = 3600.0, 86400.0
# What a title, a name or a snippet may bring: an escape, a title for the window, a direction, a newline, markup.
HOSTILE = "[red]sale[/red] \x1b[31m\x1b]0;owned\x07\u202eevil\x9b2J\nrm -rf"
HARMLESS = "[red]sale[/red] evil rm -rf"


class Stage(App[None]):
    """`said`: every message of the kinds in `hears`, in order."""

    CSS = "Screen { layout: horizontal; }"

    def __init__(self, *widgets: Widget, hears: tuple[type[Message], ...] = (), look: str = "dark") -> None:
        self.look = themes.look(look)
        super().__init__(ansi_color=self.look.ansi_color)
        self._widgets, self._hears = widgets, hears
        self.said: list[Any] = []

    def compose(self) -> ComposeResult:
        yield from self._widgets

    def on_mount(self) -> None:
        themes.register(self)
        self.theme = self.look.theme

    async def _on_message(self, message: Message) -> None:
        if isinstance(message, self._hears):
            self.said.append(message)
        await super()._on_message(message)


async def until(pilot: Pilot[None], condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"it did not come true; the screen is\n{shown(pilot.app)}"
        await pilot.pause(0.01)


async def settled(pilot: Pilot[None], words: str) -> str:
    """The screen once it has these words, on one line or on several, and does not change any more."""
    before = ""
    deadline = time.monotonic() + DEADLINE_S
    while words not in " ".join((now := shown(pilot.app)).split()) or now != before:
        assert time.monotonic() < deadline, f"{words!r} did not come; the screen is\n{now}"
        before = now
        await pilot.pause(0.03)
    return now
