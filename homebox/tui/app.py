"""Which screens are there, how do they look, and how does a person leave them?

The application around the chat screen and the monitor: theme, the person's own keys, and the way out, which always
gives the terminal back. `run` is called by the commands once it is known that the terminal can be drawn on.
"""

from __future__ import annotations

from textual.app import App
from textual.binding import Binding
from textual.screen import Screen

from homebox.client.connection import Daemon
from homebox.client.settings import Screens
from homebox.tui import keys
from homebox.tui.rescue import rescued


class HomeboxApp(App[int], inherit_bindings=False):
    """`words`: what is to be said when it has ended, on the ordinary screen."""

    TITLE = "homebox"
    BINDINGS = [Binding("ctrl+z", "suspend_process", "", show=False, id="suspend", priority=True)]
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (60, "-normal"), (100, "-wide"), (130, "-full")]
    VERTICAL_BREAKPOINTS = [(0, "-low"), (20, "-high")]

    def __init__(self, daemon: Daemon, first: Screen[None], look: Screens | None = None) -> None:
        """Raises UsageError for keys or a theme that cannot be meant."""
        super().__init__()
        self.daemon = daemon
        self.look = look or Screens()
        self.words = ""
        self._first = first
        self._keys = keys.checked(self.look.keys)

    def on_mount(self) -> None:
        self.set_keymap(self._keys)
        if self.look.theme:
            self.theme = self.look.theme
        self.push_screen(self._first)


def run(app: HomeboxApp) -> int:
    """Run it on this terminal. Returns the exit code."""
    with rescued():
        code = app.run(mouse=app.look.mouse is not False)
    if app.words:
        print(app.words)
    return code or 0
