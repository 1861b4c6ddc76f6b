"""Which screens are there, how do they look, and how does a person leave them?

The application around the chat screen and the monitor: theme, the person's own keys, and the way out, which always
gives the terminal back. `run` is called by the commands once it is known that the terminal can be drawn on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from textual.app import App
from textual.binding import Binding

from homebox.client.connection import Daemon
from homebox.tui import keys
from homebox.tui.rescue import rescued


@dataclass(frozen=True)
class Look:
    """How the person wants the screens. `keys`: their `[keys]` table."""

    theme: str | None = None
    mouse: bool = True
    keys: Mapping[str, str] = field(default_factory=dict)


class HomeboxApp(App[int]):
    """`words`: what is to be said when it has ended, on the ordinary screen."""

    TITLE = "homebox"
    BINDINGS = [Binding("ctrl+z", "suspend_process", "", show=False, id="suspend", priority=True)]
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (60, "-normal"), (100, "-wide"), (130, "-full")]
    VERTICAL_BREAKPOINTS = [(0, "-low"), (20, "-high")]

    def __init__(self, daemon: Daemon, look: Look | None = None) -> None:
        super().__init__()
        self.daemon = daemon
        self.look = look or Look()
        self.words = ""

    def on_mount(self) -> None:
        self.set_keymap(keys.checked(self.look.keys))
        if self.look.theme:
            self.theme = self.look.theme


def run(app: HomeboxApp) -> int:
    """Run it on this terminal. Returns the exit code."""
    with rescued():
        code = app.run(mouse=app.look.mouse)
    if app.words:
        print(app.words)
    return code or 0
