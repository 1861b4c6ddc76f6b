"""`homebox top` as a program: the monitor and nothing else."""

from __future__ import annotations

import asyncio
import signal
from typing import ClassVar

from textual.app import App
from textual.binding import Binding, BindingType

from homebox.client.connection import Daemon
from homebox.client.streams import View
from homebox.errors import UsageError
from homebox.tui.monitor.screen import MonitorScreen

# What a person calls a look, beside the names that textual has.
THEMES = {"dark": "textual-dark", "light": "textual-light", "ansi": "ansi-dark"}


class MonitorApp(App[None]):
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+c", "quit", "leave", id="monitor-leave", priority=True)
    ]

    def __init__(
        self,
        daemon: Daemon,
        *,
        view: View | None = None,
        interval_s: float = 2.0,
        readonly: bool = False,
        ascii: bool = False,
        theme: str | None = None,
    ) -> None:
        """Raises UsageError for a theme that there is not."""
        super().__init__()
        if theme is not None:
            name = THEMES.get(theme, theme)
            if name not in self.available_themes:
                known = ", ".join([*THEMES, *sorted(self.available_themes)])
                raise UsageError(f"there is no theme {theme!r}", hint=f"Themes: {known}.")
            self.theme = name
        self._monitor = MonitorScreen(
            daemon, view=view, interval_s=interval_s, readonly=readonly, ascii=ascii
        )

    def on_mount(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGHUP):  # the terminal is given back, and then it ends
            loop.add_signal_handler(number, self.exit, None, 128 + number)
        self.push_screen(self._monitor, self._left)

    def _left(self, _: None) -> None:
        if self.return_code is None:  # a signal has said already how it ends
            self.exit()
