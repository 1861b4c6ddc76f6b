"""Which conversations are there, and what is to be done with one of them?

A list for the left side of a wide terminal, and the same list as a screen of its own for a narrow one. It is given
pages of rows and shows at once what its own keys do; what the daemon is to do about it goes out as messages, and a row
that the daemon sees otherwise is put right by `update`. It speaks with nobody.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import ClassVar

import msgspec
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.message import Message
from textual.screen import ModalScreen
from textual.visual import Visual
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from homebox.client.sanitise import clean
from homebox.errors import HomeboxError
from homebox.tui.dialogs.rename import Rename
from homebox.tui.keys import bindings, in_words
from homebox.tui.lines import cut
from homebox.tui.lists import rows as looks
from homebox.tui.lists.filter import Filter
from homebox.wire.chats import ChatList as Page
from homebox.wire.chats import ChatRow

NEAR_LINES = 10  # more is asked for when so few lines are left below
_ELSEWHERE = "search-everything"  # the id of the row that leads to the search; no chat has one like it


class _Rows(OptionList):
    """The list itself: only where it has the focus are single letters keys."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings("chats")]

    @dataclass
    class Pressed(Message):
        what: str

    @dataclass
    class Scrolled(Message):
        pass

    def _press(self, what: str) -> None:
        self.post_message(self.Pressed(what))

    def action_rename(self) -> None:
        self._press("rename")

    def action_delete(self) -> None:
        self._press("delete")

    def action_undo(self) -> None:
        self._press("undo")

    def action_export(self) -> None:
        self._press("export")

    def action_search(self) -> None:
        self._press("search")

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        self.post_message(self.Scrolled())


class ChatList(Vertical):
    """`show` a first page, `add` those that it asks for with WantMore; `mark` the conversation that is open."""

    DEFAULT_CSS = """
    ChatList { width: 30; height: 1fr; }
    ChatList .chats-head { height: 1; color: $text-muted; }
    ChatList _Rows { height: 1fr; border: none; padding: 0 1; background: transparent; scrollbar-size-vertical: 1; }
    ChatList _Rows:focus { border: none; background-tint: transparent; }
    ChatList _Rows > .option-list--option-disabled { color: $text-muted; text-style: bold; }
    ChatList .chats-note { height: auto; max-height: 4; color: $text-muted; display: none; }
    """

    @dataclass
    class Said(Message):
        """What any of its messages is."""

    @dataclass
    class Opened(Said):
        chat_id: str

    @dataclass
    class Renamed(Said):
        chat_id: str
        title: str

    @dataclass
    class Deleted(Said):
        chat_id: str

    @dataclass
    class Undo(Said):
        """Have back the chat that was deleted last here."""

        chat_id: str

    @dataclass
    class Exported(Said):
        chat_id: str

    @dataclass
    class Searched(Said):
        """Look for these words in everything that was said."""

        query: str

    @dataclass
    class WantMore(Said):
        """The page after `before`, please; it goes to `add`."""

        before: str

    def __init__(self, *, clock: Callable[[], float] = time.time, id: str | None = None) -> None:
        super().__init__(id=id)
        self._clock = clock
        self._chats: dict[str, ChatRow] | None = None  # newest first; None before the first page
        self._next: str | None = None
        self._asked: str | None = None
        self._current: str | None = None
        self._heading = ""  # of the last row that is drawn
        self._deleted: list[ChatRow] = []
        self._list = _Rows(markup=False, compact=True)
        self._filter = Filter("letters of a title")
        self._note = Static(markup=False, classes="chats-note")

    def compose(self) -> ComposeResult:
        yield Static("CHATS", markup=False, classes="chats-head")
        yield self._filter
        yield self._list
        yield self._note

    def on_mount(self) -> None:
        self._draw()

    # ---- what it is given

    def show(self, page: Page) -> None:
        """The newest chats; what was shown before is forgotten."""
        self._chats = {row.id: row for row in page.chats}
        self._next, self._asked = page.next, None
        self._draw()

    def add(self, before: str, page: Page) -> None:
        """The page that was asked for with `before`; another one is out of date and ignored."""
        if self._chats is None or before != self._asked:
            return
        # What was said in meanwhile is at the top of the list and may come a second time.
        fresh = [row for row in page.chats if row.id not in self._chats]
        self._chats |= {row.id: row for row in fresh}
        self._next, self._asked = page.next, None
        if self._filter.open:
            self._draw()
        elif self.is_attached:
            self._list.add_options(self._options(fresh))
            self.call_after_refresh(self._want_more)

    def update(self, row: ChatRow) -> None:
        """One chat as it is now: new, renamed, answered, or back from being deleted."""
        self._deleted = [each for each in self._deleted if each.id != row.id]
        chats = (self._chats or {}) | {row.id: row}
        newest = sorted(chats.values(), key=lambda each: (each.updated, each.id), reverse=True)
        self._chats = {each.id: each for each in newest}
        self._draw()

    def mark(self, chat_id: str | None) -> None:
        """Which one is open."""
        if chat_id == self._current:
            return
        before, self._current = self._current, chat_id
        for name in (before, chat_id):
            self._redraw(name)

    def say(self, words: str) -> None:
        """A line below the list; nothing takes it away."""
        self._note.update(clean(words))
        self._note.display = bool(words)

    def fail(self, error: HomeboxError) -> None:
        """Why the list is not what it should be."""
        self._asked = None  # the page did not come
        self.say(f"{error.message}. {error.hint or ''}".rstrip())

    def say_keys(self) -> None:
        """What can be done with a row, by the keys that this person has."""
        names = {"search": "find", "rename": "name", "delete": "delete", "export": "to a file"}
        keys = (f"{self._key(f'chats-{name}')} {word}" for name, word in names.items())
        self.say(f"Enter opens   {'   '.join(keys)}")

    def focus_rows(self) -> None:
        self._list.focus()

    # ---- drawing

    def _draw(self) -> None:
        if not self.is_attached:
            return
        under, at = self._list.highlighted_option, self._list.highlighted
        self._heading = ""
        self._list.set_options(self._options(self._shown()))
        self._list.highlighted = self._place_of(under.id if under else self._current, at)
        self.call_after_refresh(self._want_more)

    def _shown(self) -> Iterable[ChatRow]:
        chats = (self._chats or {}).values()
        words = self._filter.value.casefold().split()
        if not words:
            return chats
        return [row for row in chats if all(word in looks.title(row).casefold() for word in words)]

    def _options(self, chats: Iterable[ChatRow]) -> list[Option]:
        """These rows with a heading wherever the day changes; in an empty list, words that say why it is."""
        made: list[Option] = []
        for heading, row in looks.by_period(chats, self._clock()):
            if heading != self._heading:
                made.append(Option(looks.Line(heading), disabled=True))
                self._heading = heading
            made.append(Option(self._visual(row), id=row.id))
        query = self._filter.value.strip()
        if query:
            made.append(Option(looks.Line(f"/ search all words: {query}"), id=_ELSEWHERE))
        elif not made and not self._heading:
            words = "reading ..." if self._chats is None else "no conversation yet"
            made.append(Option(looks.Line(words), disabled=True))
        return made

    def _visual(self, row: ChatRow) -> Visual:
        return looks.ChatLine(row, current=row.id == self._current)

    def _redraw(self, chat_id: str | None) -> None:
        row = (self._chats or {}).get(chat_id or "")
        if row and any(option.id == row.id for option in self._list.options):
            self._list.replace_option_prompt(row.id, self._visual(row))

    def _place_of(self, name: str | None, otherwise: int | None) -> int | None:
        """Where this row stands, else the one that is nearest to `otherwise`."""
        options = self._list.options
        choices = [index for index, option in enumerate(options) if not option.disabled]
        found = next((index for index in choices if options[index].id == name), None) if name else None
        if found is not None or not choices:
            return found
        return next((index for index in choices if index >= (otherwise or 0)), choices[-1])

    def _want_more(self) -> None:
        below = self._list.virtual_size.height - self._list.scroll_y - self._list.size.height
        if self._next and not self._asked and below < NEAR_LINES and self.is_attached:
            self._asked = self._next
            self.post_message(self.WantMore(self._next))

    # ---- what the person does

    @on(_Rows.Scrolled)
    def _scrolled(self, event: _Rows.Scrolled) -> None:
        event.stop()
        self._want_more()

    @on(OptionList.OptionSelected)
    def _selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        if event.option.id == _ELSEWHERE:
            self.post_message(self.Searched(self._filter.value.strip()))
        elif event.option.id:
            self.post_message(self.Opened(event.option.id))

    @on(OptionList.OptionHighlighted)
    def _highlighted(self, event: OptionList.OptionHighlighted) -> None:
        event.stop()

    @on(Filter.Changed)
    def _filtered(self, event: Filter.Changed) -> None:
        event.stop()
        self._list.highlighted = None
        self._draw()

    @on(Filter.Moved)
    def _moved(self, event: Filter.Moved) -> None:
        event.stop()
        (self._list.action_cursor_down if event.by > 0 else self._list.action_cursor_up)()

    @on(Filter.Submitted)
    def _submitted(self, event: Filter.Submitted) -> None:
        event.stop()
        self._list.action_select()

    @on(Filter.Closed)
    def _filter_closed(self, event: Filter.Closed) -> None:
        event.stop()
        self._draw()
        self._list.focus()

    @on(_Rows.Pressed)
    def _pressed(self, event: _Rows.Pressed) -> None:
        event.stop()
        if event.what == "search":
            self._filter.show()
        elif event.what == "undo":
            self._undo()
        elif row := self._under_the_cursor():
            {"rename": self._rename, "delete": self._delete, "export": self._export}[event.what](row)

    def _under_the_cursor(self) -> ChatRow | None:
        option = self._list.highlighted_option
        return (self._chats or {}).get(option.id or "") if option else None

    def _rename(self, row: ChatRow) -> None:
        def renamed(words: str | None) -> None:
            if words is not None and self._chats is not None and row.id in self._chats:
                self._chats[row.id] = msgspec.structs.replace(self._chats[row.id], title=words)
                self._redraw(row.id)
                self.post_message(self.Renamed(row.id, words))

        self.app.push_screen(Rename(row.title), renamed)

    def _delete(self, row: ChatRow) -> None:
        if self._chats is None:
            return
        del self._chats[row.id]
        self._deleted.append(row)
        self._draw()
        self.say(
            f"deleted: {cut(looks.title(row), 40)} - {self._key('chats-undo')} has it back, for seven days"
        )
        self.post_message(self.Deleted(row.id))

    def _key(self, name: str) -> str:
        """What this person presses for it."""
        found = (key for key, active in self.screen.active_bindings.items() if active.binding.id == name)
        return in_words(next(found, ""))

    def _undo(self) -> None:
        if not self._deleted:
            self.say("nothing was deleted here; homebox chats list --deleted shows what was before")
            return
        row = self._deleted.pop()
        self.update(row)
        self._list.highlighted = self._place_of(row.id, None)
        self.say("")
        self.post_message(self.Undo(row.id))

    def _export(self, row: ChatRow) -> None:
        self.post_message(self.Exported(row.id))


class ChatListScreen(ModalScreen[None]):
    """The list on a narrow terminal. What it says, it says to the screen below, as if it were a part of that."""

    DEFAULT_CSS = """
    ChatListScreen { align: left top; }
    ChatListScreen ChatList { width: 100%; max-width: 60; background: $surface; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        *(each for each in bindings("dialog") if each.id == "dialog-close"),
        Binding("f2", "close", "close", id="chats"),  # what opened it
    ]

    def __init__(self, chats: ChatList | None = None) -> None:
        super().__init__()
        self.chats = chats or ChatList()

    def compose(self) -> ComposeResult:
        yield self.chats

    def on_mount(self) -> None:
        self.chats.focus_rows()
        self.call_after_refresh(self.chats.say_keys)

    def action_close(self) -> None:
        self.dismiss(None)

    @on(ChatList.Said)
    def _pass_on(self, message: ChatList.Said) -> None:
        message.stop()
        stack = self.app.screen_stack
        stack[stack.index(self) - 1].post_message(dataclasses.replace(message))
        if isinstance(message, ChatList.Opened | ChatList.Searched | ChatList.Exported):
            self.dismiss(None)
