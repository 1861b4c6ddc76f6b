"""The monitor: who runs what, how fast, in how much memory, and what the machine does meanwhile.

A thread hears the daemon and posts messages; handlers put what they say on the `Board`; one function draws the board.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar
from urllib.parse import quote

from textual import on, work
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.events import Resize
from textual.message import Message
from textual.screen import Screen
from textual.widgets import Input

from homebox.client import stream
from homebox.client.connection import Daemon
from homebox.client.lines import ASCII, UNICODE, inline
from homebox.client.streams import Filter, Order, View, parse_filter
from homebox.errors import HomeboxError, NotFound, UsageError
from homebox.tui.keys import bindings
from homebox.tui.monitor.board import Board, Pane
from homebox.tui.monitor.feed import Feed
from homebox.tui.monitor.question import Question
from homebox.tui.monitor.widgets import Lines, Rows
from homebox.wire.events import Snapshot
from homebox.wire.people import PersonRow

NOTICE_S = 6.0


class MonitorScreen(Screen[None]):
    """Dismissed with `q`. Opens one connection, and closes it when it goes."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings("monitor")]
    AUTO_FOCUS = ""  # the filter's line is the only thing that can have it, once it is opened
    DEFAULT_CSS = """
    MonitorScreen { layout: vertical; }
    MonitorScreen #pane { height: 1fr; }
    MonitorScreen #pane.-below { height: auto; max-height: 50%; }
    MonitorScreen Input { padding: 0 1; }
    MonitorScreen.-old #top, MonitorScreen.-old Rows { text-opacity: 60%; }
    """

    @dataclass
    class Arrived(Message):
        """A snapshot of the box."""

        now: Snapshot

    @dataclass
    class Known(Message):
        """For whom the daemon takes us."""

        me: PersonRow

    @dataclass
    class Away(Message):
        """The daemon cannot be heard; the next try is in `retry_s`."""

        error: HomeboxError
        retry_s: float

    @dataclass
    class Stopped(Message):
        """What became of stopping a stream, in words."""

        words: str

    def __init__(
        self,
        daemon: Daemon,
        *,
        view: View | None = None,
        interval_s: float = 2.0,
        readonly: bool = False,
        ascii: bool = False,
    ) -> None:
        super().__init__()
        self._daemon = daemon
        self.board = Board(
            ASCII if ascii else UNICODE, interval_s=interval_s, view=view or View(), readonly=readonly
        )
        self._feed: Feed | None = None
        self._filter_before = Filter()

    def compose(self) -> ComposeResult:
        yield Lines(id="top")
        yield Lines(id="head")
        yield Rows(id="rows")
        yield Lines(id="pane")
        yield Input(
            id="filter",
            placeholder="user=dad tok_s<10 state=decode, or a word",
            select_on_focus=False,
            compact=True,
        )
        yield Lines(id="foot")

    def on_mount(self) -> None:
        self.query_one(Input).display = False
        self._listen()
        self._draw()

    def on_unmount(self) -> None:
        if self._feed is not None:
            self._feed.stop()

    def on_resize(self, event: Resize) -> None:
        self._draw()

    # ---- what is heard

    def _listen(self) -> None:
        if self._feed is not None:
            self._feed.stop()
        self._feed = Feed(
            self._daemon,
            self.board.interval_s,
            arrived=lambda now: self.post_message(self.Arrived(now)),
            known=lambda me: self.post_message(self.Known(me)),
            away=lambda error, retry_s: self.post_message(self.Away(error, retry_s)),
        )
        self._feed.start()

    @on(Arrived)
    def _on_arrived(self, message: Arrived) -> None:
        self.board.arrived(message.now)
        if not message.now.past:  # five minutes of it come before the first picture
            self._draw()

    @on(Known)
    def _on_known(self, message: Known) -> None:
        self.board.me = message.me
        self._draw()

    @on(Away)
    def _on_away(self, message: Away) -> None:
        self.board.away = (message.error, message.retry_s)
        self._draw()

    @on(Stopped)
    def _on_stopped(self, message: Stopped) -> None:
        self._say(message.words)

    @on(Rows.Picked)
    def _on_picked(self, message: Rows.Picked) -> None:
        if message.row < len(self.board.rows):
            self.board.chosen = self.board.rows[message.row].id
            self._draw()

    # ---- what is drawn

    def _draw(self) -> None:
        cells, rows = self.size
        board, keys = self.board, self._keys()
        small = board.too_small(cells, rows)
        top, head, table = self.query_one("#top", Lines), self.query_one("#head", Lines), self.query_one(Rows)
        pane, foot = self.query_one("#pane", Lines), self.query_one("#foot", Lines)
        below = board.has_room_below(cells, rows)
        self.set_class(board.away is not None and board.now is not None, "-old")
        figures, feet = small or board.top(cells, rows), [] if small else board.foot(cells, rows, keys)
        room = rows - len(figures) - len(feet)
        top.show(figures)
        foot.show(feet)
        head.display = table.display = not small and (board.pane is Pane.TABLE or below)
        pane.display = not small and board.pane is not Pane.TABLE
        pane.set_class(below, "-below")
        if table.display:
            head.show(board.head(cells))
            table.show(board.table(cells), board.place(board.rows))
        if pane.display:
            pane.show(board.pane_lines(cells, room // 2 if below else room, keys))

    def _keys(self) -> dict[str, str]:
        """For each id the keys that it has now, as the person may have set them."""
        found: dict[str, list[str]] = {}
        for key, active in self.active_bindings.items():
            found.setdefault(active.binding.id or "", []).append(key)
        return {name: ",".join(each) for name, each in found.items()}

    def _say(self, words: str) -> None:
        self.board.notice = words
        self._draw()
        self.set_timer(NOTICE_S, self._unsay)

    def _unsay(self) -> None:
        self.board.notice = ""
        self._draw()

    # ---- keys

    def action_move(self, step: int) -> None:
        self.board.move(step)
        self._draw()

    def _toggle(self, pane: Pane) -> None:
        self.board.pane = Pane.TABLE if self.board.pane is pane else pane
        self._draw()

    def action_detail(self) -> None:
        self._toggle(Pane.DETAIL)

    def action_map(self) -> None:
        self._toggle(Pane.MAP)

    def action_help(self) -> None:
        self._toggle(Pane.HELP)

    def action_graphs(self) -> None:
        cells, rows = self.size
        if self.board.is_wide(cells, rows) or not self.board.spread:
            self.board.spread = not self.board.spread
            self._draw()
        else:
            self._toggle(Pane.GRAPHS)

    def action_sort(self) -> None:
        self.board.next_order(self.size.width)
        self._draw()

    def action_reverse(self) -> None:
        order = self.board.view.order
        self.board.view = replace(self.board.view, order=Order(order.column, not order.reverse))
        self._draw()

    def action_mine(self) -> None:
        self.board.view = replace(self.board.view, mine=not self.board.view.mine)
        self._draw()

    def action_pause(self) -> None:
        self.board.held = None if self.board.held is not None else self.board.latest
        self._draw()

    def action_interval(self, step: int) -> None:
        if self.board.slower(step):
            self._listen()
            self._draw()

    def action_close(self) -> None:
        """The filter's line first, then what is open, then the filter itself."""
        box = self.query_one(Input)
        if box.display:
            self._narrow(self._filter_before)
            self._close_filter()
        elif self.board.pane is not Pane.TABLE:
            self.board.pane = Pane.TABLE
        else:
            self._narrow(Filter())
        self._draw()

    def action_back(self) -> None:
        if self.board.pane is not Pane.TABLE:
            self.action_close()
        else:
            self.dismiss()

    # ---- filter

    def action_filter(self) -> None:
        box = self.query_one(Input)
        self._filter_before = self.board.view.filter
        box.value = self._filter_before.text
        box.display = True
        box.focus()

    @on(Input.Changed)
    def _on_changed(self, event: Input.Changed) -> None:
        """What can be understood holds at once."""
        try:
            self._narrow(parse_filter(event.value))
            self.board.notice = ""
        except UsageError as error:
            self.board.notice = error.message
        self._draw()

    @on(Input.Submitted)
    def _on_submitted(self, event: Input.Submitted) -> None:
        try:
            self._narrow(parse_filter(event.value))
        except UsageError as error:
            self.board.notice = f"{error.message}   {error.hint}"
        else:
            self._close_filter()
        self._draw()

    def _narrow(self, wanted: Filter) -> None:
        self.board.view = replace(self.board.view, filter=wanted)

    def _close_filter(self) -> None:
        self.board.notice = ""
        self.query_one(Input).display = False
        self.set_focus(None)

    # ---- stopping a stream

    def action_cancel(self) -> None:
        row = self.board.row()
        if row is None:
            return
        if why_not := self.board.may_not_cancel(row):
            self._say(why_not)
            return
        name = self.board.name(row)
        whose = "your" if row.mine else f"{inline(row.person)}'s"

        def answered(yes: bool | None) -> None:
            if yes:
                self._stop(row.id, name)

        self.app.push_screen(Question(f"Stop {whose} {name}? What it has written is kept."), answered)

    @work(thread=True, exit_on_error=False)
    def _stop(self, stream_id: str, name: str) -> None:
        try:
            stream.cancel(self._daemon, quote(stream_id, safe=""))
            words = f"{name} stopped"
        except NotFound:
            words = f"{name} had already ended"
        except HomeboxError as error:
            words = error.message
        self.post_message(self.Stopped(words))
