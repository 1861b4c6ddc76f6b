"""Which messages are on the screen, and does the view follow the newest line?

The scrolling column of a conversation. It is told the whole `Conversation` and mounts, renames and removes message
views until they are the same. While the reader has scrolled up nothing below is drawn anew: a line at the bottom counts
what has come. It asks for older messages when its top is reached.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from textual.containers import VerticalScroll
from textual.message import Message
from textual.scrollbar import ScrollBar
from textual.widgets import Static

from homebox.client.conversation import ANSWERING, SAID, Conversation, Item
from homebox.tui.answer.rows import Look
from homebox.tui.chat.bar import Bar
from homebox.tui.chat.message import MessageView

AT_ONCE = 8  # messages; more are not in sight, and 40 take a quarter of a second


class Column(VerticalScroll, can_focus=False):
    BLANK = True  # its own background is one colour: textual need not make its rows anew at every drawing
    DEFAULT_CSS = """
    Column { layout: stream; height: 1fr; scrollbar-size-vertical: 1; }
    Column > #older { color: $text-muted; padding: 0 2; display: none; }
    Column > #welcome { color: $text-muted; padding: 1 2; }
    """

    class OlderWanted(Message):
        """The top was reached, and there is more."""

    class Behind(Message):
        """So many lines have come below what is shown; 0: the newest line is shown."""

        def __init__(self, lines: int) -> None:
            super().__init__()
            self.lines = lines

    def __init__(
        self, *, welcome: str, look: Look | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        super().__init__()
        self._clock, self._look = clock, look
        self._older = Static(id="older", markup=False)
        self._welcome = Static(welcome, id="welcome", markup=False)
        self._views: dict[str, MessageView] = {}
        self._now: Conversation | None = None
        self._earlier = 0
        self._wanted: str | None = None
        self._asked_at: str | None = None  # the message before which older ones were asked for

    @property
    def vertical_scrollbar(self) -> ScrollBar:
        if self._vertical_scrollbar is None:
            self._vertical_scrollbar = bar = Bar(name="vertical", thickness=self.scrollbar_size_vertical)
            bar.display = False
            self.app._start_widget(self, bar)
        return self._vertical_scrollbar

    def on_mount(self) -> None:
        self.mount(self._older, self._welcome)
        self.anchor()

    # ---- what is shown

    async def show(self, now: Conversation) -> None:
        """Make the column show this conversation."""
        if self._now is not None and now.items is self._now.items:
            return
        if self._now is not None and now.chat != self._now.chat and now.known != self._now.known:
            self._asked_at = None
        self._now = now
        self._rename(now)
        wanted = {item.message.id: item for item in now.items}
        gone = [view for name, view in self._views.items() if name not in wanted]
        selected = next((at for at, view in enumerate(self._views.values()) if view.has_focus), None)
        self._views = {name: view for name, view in self._views.items() if name in wanted}
        await self._mount_missing(self._at_first(now.items))
        if selected is not None and self.screen.focused in gone and self.views:
            # Another branch: the keys stay where they were, and none of them falls into the prompt.
            self.views[min(selected, len(self.views) - 1)].focus()
        if gone:
            await self.remove_children(gone)
        for name, view in self._views.items():
            view.show(wanted[name])
        self._say_whether_there_is_more(now)
        self._say_how_far_behind()
        self.call_after_refresh(self._settle)

    def _say_whether_there_is_more(self, now: Conversation) -> None:
        """To update a text lays the whole screen out anew, whether it is another text or not."""
        if now.earlier != self._earlier:
            self._earlier = now.earlier
            self._older.update(f"[+] {now.earlier} earlier messages: scroll up or click to read them")
            self._older.display = bool(now.earlier)
        self._welcome.display = not now.items

    def reveal(self, message: str) -> None:
        """Bring it into sight and select it, as soon as it is there."""
        self._wanted = message
        self.call_after_refresh(self._settle)

    def _settle(self) -> None:
        """After drawing: what was looked for is in sight, and the screen is full if there is enough to fill it."""
        if view := self._views.get(self._wanted or ""):
            self._wanted = None
            view.focus()
            self.scroll_to_widget(view, animate=False, top=True)
        elif self.max_scroll_y <= 0:
            self._want_older()

    def view(self, message: str) -> MessageView | None:
        return self._views.get(message)

    @property
    def views(self) -> list[MessageView]:
        return list(self._views.values())

    def _at_first(self, items: tuple[Item, ...]) -> tuple[Item, ...]:
        """Of a conversation that is opened its end, which is all that is in sight; the rest once that is drawn."""
        there = [item.message.id in self._views for item in items]
        missing = there.index(True) if True in there else len(there)
        if missing <= AT_ONCE or not all(there[missing:]) or self._wanted is not None:
            return items
        self.call_after_refresh(self._mount_more)
        return items[missing - AT_ONCE :]

    async def _mount_more(self) -> None:
        if self._now is not None:
            await self._mount_missing(self._at_first(self._now.items))
            self.call_after_refresh(self._settle)

    def _rename(self, now: Conversation) -> None:
        """What was said from here has got its ids: the same widgets go on under the new names."""
        names = [item.message.id for item in now.items]
        for provisional in (SAID, ANSWERING):
            if provisional not in self._views or provisional in names:
                continue
            place = list(self._views).index(provisional)
            if place < len(names) and names[place] not in self._views:
                views = list(self._views.items())
                views[place] = (names[place], views[place][1])
                self._views = dict(views)

    async def _mount_missing(self, items: tuple[Item, ...]) -> None:
        """New ones at their places; those at the top without moving what is read."""
        bottom, at_top = self.max_scroll_y, False
        after: MessageView | Static = self._welcome
        batch: list[MessageView] = []
        views: dict[str, MessageView] = {}
        for item in items:
            name = item.message.id
            view = self._views.get(name)
            if view is None:
                view = MessageView(item, look=self._look, clock=self._clock)
                batch.append(view)
            elif batch:
                at_top = at_top or after is self._welcome
                await self.mount_all(batch, after=after)
                batch = []
            if not batch:
                after = view
            views[name] = view
        if batch:
            await self.mount_all(batch, after=after)
        self._views = views
        if at_top and bottom:
            self.call_after_refresh(self._keep_place, bottom)

    def _keep_place(self, bottom: float) -> None:
        self._scroll_to(y=self.scroll_y + self.max_scroll_y - bottom, animate=False, release_anchor=False)

    # ---- where the reader is

    @property
    def follows(self) -> bool:
        """Whether the newest line is kept in sight: until the reader scrolls up, and again from when they are back."""
        return not self._anchor_released  # textual tells it nowhere else; its version is pinned

    def to_bottom(self) -> None:
        self.anchor()
        self._held(False)

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        if not self.is_attached:
            return
        self._held(not self.follows)
        if new_value <= 0 < self.max_scroll_y:
            self._want_older()

    def on_click(self) -> None:
        if self._older.display and self.scroll_y <= 0:
            self._want_older()

    def _want_older(self) -> None:
        now = self._now
        if not (now and now.earlier and now.items and now.items[0].message.id in self._views):
            return
        if self._asked_at != now.items[0].message.id:
            self._asked_at = now.items[0].message.id
            self.post_message(self.OlderWanted())

    def _held(self, held: bool) -> None:
        for view in self._views.values():
            if view.body.hold != held and (view.item.growing or not held):
                view.body.hold = held
        if not held:
            self.post_message(self.Behind(0))

    def _say_how_far_behind(self) -> None:
        if not self.follows:
            self.post_message(self.Behind(sum(view.body.held_lines for view in self._views.values())))
