"""Which screens are there, how do they look, and how does a person leave them?

The application around the chat screen and the monitor: theme, the person's own keys, and the way out, which always
gives the terminal back.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
from typing import ClassVar

from textual import events
from textual.app import App
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen, Screen

from homebox.client.connection import Daemon
from homebox.client.sanitise import clean
from homebox.client.settings import Screens
from homebox.tui import keys, themes
from homebox.tui.palette import Everything
from homebox.tui.prompt.editor import Editor


class HomeboxApp(App[int], inherit_bindings=False):
    """`last_words`: what is to be said when it has ended, on the ordinary screen."""

    TITLE = "homebox"
    COMMANDS = {Everything}  # noqa: RUF012
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+z", "suspend_process", "", show=False, id="suspend", priority=True),
        Binding("ctrl+c,ctrl+q", "leave", "", show=False),  # where the screen has nothing else for them
    ]
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (60, "-normal"), (100, "-wide"), (130, "-full")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [(0, "-low"), (20, "-high")]  # noqa: RUF012

    def __init__(self, daemon: Daemon, first: Screen[None], wanted: Screens | None = None) -> None:
        """Raises UsageError for keys or a theme that cannot be meant."""
        self.wanted = wanted or Screens()
        self._look = themes.look(self.wanted.theme)
        super().__init__(ansi_color=self._look.ansi_color)
        self.daemon = daemon
        self.last_words = ""
        self.fault: Exception | None = None
        self._first = first
        self._keys = keys.checked(self.wanted.keys)
        themes.register(self)
        self.theme = self._look.theme

    def on_mount(self) -> None:
        self.set_keymap(self._keys)
        if not self.is_headless:
            loop = asyncio.get_running_loop()
            for number in (signal.SIGTERM, signal.SIGHUP):  # the terminal is given back, and then it ends
                loop.add_signal_handler(number, self.exit, 128 + number)
        self.push_screen(self._first, self._left)
        self.call_after_refresh(_spare_the_collector)

    async def on_event(self, event: events.Event) -> None:
        """A paste is nothing but text in every line that can be typed into. The prompt sees to it, and says so."""
        if isinstance(event, events.Paste) and not isinstance(self.focused, Editor):
            event = events.Paste(clean(event.text))
        await super().on_event(event)

    def _left(self, _: None) -> None:
        if self.return_code is None:  # a signal has said already how it ends
            self.exit(0)

    def _handle_exception(self, error: Exception) -> None:
        """A fault of ours: the screen ends, and `fault` says why. Textual would print a traceback with everything that
        was said in it."""
        if self.is_headless:
            super()._handle_exception(error)  # the tests want to see it
            return
        self.fault = self.fault or error
        self._return_code = 1
        self._close_messages_no_wait()

    def action_suspend_process(self) -> None:
        """As the terminal would do it: for everything of this job, so that a script around us does not wait for us."""
        if self._driver is None or not self._driver.can_suspend:
            return
        # The terminal is put back before anybody of the job stops: from then on it belongs to the shell.
        with self.suspend():
            handler = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
            os.killpg(0, signal.SIGTSTP)
            signal.signal(signal.SIGTSTP, handler)

    def action_leave(self) -> None:
        """What stands over a screen is left first."""
        if isinstance(self.screen, ModalScreen):
            self.screen.dismiss(None)
        else:
            self.exit(0)


def _spare_the_collector() -> None:
    """What the screens are made of stays to the end; looking through it again costs 100 ms in the middle of an answer."""
    gc.collect()
    gc.freeze()
