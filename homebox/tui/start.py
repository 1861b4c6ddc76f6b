"""How does a command get its screen?

Called once it is known that the terminal can be drawn on and that a daemon answers. Returns when the person has left.
"""

from __future__ import annotations

from homebox.client.connection import Daemon
from homebox.client.settings import Screens
from homebox.client.streams import View
from homebox.tui import pasted
from homebox.tui.app import HomeboxApp
from homebox.tui.chat.screen import ChatScreen
from homebox.tui.monitor.screen import MonitorScreen
from homebox.tui.rescue import rescued
from homebox.wire.requests import Options


def chat(
    daemon: Daemon,
    wanted: Screens,
    *,
    chat: str | None = None,
    first: str | None = None,
    system: str | None = None,
    options: Options | None = None,
) -> int:
    """The chat screen, with the conversation `chat` or a new one. Returns the exit code."""
    screen = ChatScreen(
        daemon, chat=chat, first=first, system=system, options=options, ascii=bool(wanted.ascii)
    )
    return _run(HomeboxApp(daemon, screen, wanted))


def top(daemon: Daemon, wanted: Screens, *, view: View, interval_s: float, readonly: bool) -> int:
    """The monitor. Returns the exit code."""
    screen = MonitorScreen(
        daemon, view=view, interval_s=interval_s, readonly=readonly, ascii=bool(wanted.ascii)
    )
    return _run(HomeboxApp(daemon, screen, wanted))


def _run(app: HomeboxApp) -> int:
    pasted.install()
    with rescued():
        code = app.run(mouse=app.wanted.mouse is not False)
    if app.fault:
        raise app.fault
    if app.last_words:
        print(app.last_words)
    return code or 0
