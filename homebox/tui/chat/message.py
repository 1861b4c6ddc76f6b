"""How does one message of a conversation look, and what can be done with it?

Its header (who, when, which branch, how it ended), a reasoning model's thoughts, and the text. It can have the focus:
then single letters act on it, and it says so by a bar at its side. What they do is the screen's; this asks for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.geometry import Region
from textual.message import Message
from textual.strip import Strip
from textual.widgets import Static

from homebox.client.chats import in_words
from homebox.client.conversation import Item
from homebox.client.phrases import ended_in_words
from homebox.client.sanitise import Growing, clean
from homebox.tui.answer.rows import Look
from homebox.tui.answer.thoughts import ThoughtsView
from homebox.tui.answer.view import AnswerView
from homebox.tui.keys import bindings


class MessageView(Vertical, can_focus=True):
    """One message. `show` again whenever there is something new."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings("message")]
    DEFAULT_CSS = """
    MessageView { height: auto; padding: 0 1; margin: 0 0 1 0; border-left: blank; }
    MessageView:focus { border-left: thick $accent; }
    MessageView > .header { height: 1; color: $text-muted; text-wrap: nowrap; text-overflow: ellipsis; }
    """

    @dataclass
    class Wanted(Message):
        """`what` is the name of a wish: copy, edit, regenerate ..."""

        view: MessageView
        what: str
        by: int = 0

    def __init__(
        self, item: Item, *, look: Look | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        super().__init__()
        self._clock, self._look = clock, look
        self._text, self._thoughts_text = Growing(), Growing()
        self._code_at = -1
        self._thinks_since: float | None = None
        self._thought = False
        self.item = item
        self._header = Static(self._head(), classes="header", markup=False)
        self._thoughts: ThoughtsView | None = None
        self.body = AnswerView(self._shown(item), plain=item.message.role == "user", look=look)
        self._finished = not item.growing

    def compose(self) -> ComposeResult:
        yield self._header
        yield self.body

    def render_lines(self, crop: Region) -> list[Strip]:
        """Its own part of what is drawn: the bar at its side, and otherwise the ground of the screen."""
        return super().render_lines(crop) if self.has_focus else []

    def on_mount(self) -> None:
        if self.item.think:
            self._show_thoughts(self.item)

    def show(self, item: Item) -> None:
        """Draw what is new of it."""
        if item is self.item:
            return
        before, self.item = self.item, item
        if before.message != item.message or before.growing != item.growing:
            self._header.update(self._head())
        if item.think and (item.think != before.think or item.growing != before.growing or item.text):
            self._show_thoughts(item)
        text = self._shown(item)
        if item.growing or text != self.body.source:
            self.body.grow(text)
            self._finished = False
        if not item.growing and not self._finished:
            self._finished = True
            self.body.finish()

    def _shown(self, item: Item) -> str:
        """What an answer says first often begins with a newline: no gap opens below the header."""
        return self._text.clean(item.text).lstrip("\n")

    @property
    def text(self) -> str:
        """The whole message, sanitised."""
        return self._text.clean(self.item.text)

    def next_code(self) -> str | None:
        """The exact text of its first code block, then of the next; None where it has none."""
        blocks = self.body.code_blocks()
        if not blocks:
            return None
        self._code_at = (self._code_at + 1) % len(blocks)
        return blocks[self._code_at]

    def fold(self) -> None:
        if self._thoughts:
            self._thoughts.toggle()
        else:
            self.body.unfolded = not self.body.unfolded

    def _show_thoughts(self, item: Item) -> None:
        text = self._thoughts_text.clean(item.think).strip("\n")
        if self._thoughts is None:
            self._thoughts = ThoughtsView("" if item.growing else text, look=self._look)
            self.mount(self._thoughts, before=self.body)
            if not item.growing:
                return
        if self._thinks_since is None and not item.text:
            self._thinks_since = self._clock()
        if text != self._thoughts.source:
            self._thoughts.grow(text)
        if (item.text or not item.growing) and not self._thought:
            self._thought = True
            stats = item.answer.stats if item.answer else None
            seconds = self._clock() - self._thinks_since if self._thinks_since is not None else None
            self._thoughts.finish(seconds, stats.tokens if stats and item.text else None)

    def _head(self) -> Content:
        message = self.item.message
        name = "you" if message.role == "user" else clean(message.model or "homebox")
        parts = [Content.styled(name, "bold"), Content(f" {_time(message.created, self._clock())}")]
        if len(message.siblings) > 1 and message.id in message.siblings:
            parts.append(Content(f"  [{message.siblings.index(message.id) + 1}/{len(message.siblings)}]"))
        if not self.item.growing and message.state not in ("done", "growing"):
            parts.append(Content(f"  {ended_in_words(message.detail) or in_words(message.state)}"))
        return Content.assemble(*parts)

    def action_want(self, what: str, by: int = 0) -> None:
        """A key: the screen does it."""
        if what == "fold":
            self.fold()
        else:
            self.post_message(self.Wanted(self, what, by))


def _time(at: float, now: float) -> str:
    """The time of today, or the day, too."""
    then, today = time.localtime(at), time.localtime(now)
    return time.strftime("%H:%M" if then[:3] == today[:3] else "%Y-%m-%d %H:%M", then) if at else ""
