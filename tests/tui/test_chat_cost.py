"""What the chat screen does not do while an answer grows and somebody types: counted, not timed."""

from __future__ import annotations

import os
import pty

import pytest
from textual._compositor import Compositor
from textual.screen import Screen

from homebox.client import conversation
from homebox.client.connection import Daemon
from homebox.client.conversation import Conversation, Item
from homebox.client.state import ChatState, Phase
from homebox.tui import pasted
from homebox.tui.chat.column import AT_ONCE
from homebox.tui.pasted import PasteParser
from homebox.wire.chats import MessageView

from .test_chat_screen import Person, used
from .waiting import until

MESSAGES = 30


def old(count: int = MESSAGES) -> tuple[Item, ...]:
    return tuple(
        Item(MessageView(id=f"m{n}", role="assistant" if n % 2 else "user", content=f"# said {n}\n\nmore"))
        for n in range(count)
    )


def grown(lines: int) -> ChatState:
    return ChatState(text="".join(f"- line {n}\n" for n in range(lines)), phase=Phase.WRITING, seq=lines)


async def with_an_answer(me: Person) -> None:
    """A long conversation, all of it there, whose last answer grows."""
    growing = Item(MessageView(id="a", role="assistant", content="", state="growing"), grown(30))
    me.screen.talk._set(Conversation(chat="c", known=True, items=(*old(), growing)))
    await until(lambda: len(me.screen.column.views) == MESSAGES + 1)
    await me.sees("line 29")
    await me.pilot.pause(0.3)  # what was mounted last is laid out


def counted(monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> list[str]:
    calls: list[str] = []
    real = getattr(owner, name)

    def call(*args: object, **kwargs: object) -> object:
        calls.append(name)
        return real(*args, **kwargs)

    monkeypatch.setattr(owner, name, call)
    return calls


def test_an_answer_that_grows_places_only_what_is_in_sight(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def script(me: Person) -> None:
        await with_an_answer(me)
        whole = counted(monkeypatch, Compositor, "reflow")
        for lines in range(31, 41):
            me.screen.talk._set(conversation.heard(me.screen.talk.now, "a", grown(lines)))
            await me.sees(f"line {lines - 1}")
        assert len(whole) <= 2  # the clock in the status line may once need another line
        first = me.screen.column.views[0]
        first.scroll_visible(animate=False, top=True)  # what was never in sight is found all the same
        await me.sees("said 0")

    used(daemon, script)


def test_a_key_and_a_figure_lay_nothing_out(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    async def script(me: Person) -> None:
        await with_an_answer(me)
        await me.press("a")  # the words that invite to type go
        await me.sees("> a")
        laid_out = counted(monkeypatch, Screen, "_refresh_layout")
        await me.press("b", "c", "d")
        for _ in range(10):  # figures come, and no text
            me.screen.talk._set(conversation.heard(me.screen.talk.now, "a", grown(30)))
        await me.sees("> abcd")
        assert len(laid_out) <= 1

    used(daemon, script)


def test_a_long_conversation_shows_its_end_first_and_then_has_all_of_it_in_order(daemon: Daemon) -> None:
    async def script(me: Person) -> None:
        there: list[int] = []
        column = me.screen.column
        show = column.show

        async def noted(now: Conversation) -> None:
            await show(now)
            there.append(len(column.views))

        column.show = noted  # type: ignore[method-assign]
        me.screen.talk._set(Conversation(chat="c", known=True, items=old()))
        await me.sees(f"said {MESSAGES - 1}")
        await until(lambda: len(column.views) == MESSAGES)
        assert there[0] == AT_ONCE
        assert [view.item.message.id for view in column.views] == [f"m{n}" for n in range(MESSAGES)]
        assert list(column.query("MessageView")) == column.views
        assert column.follows
        await me.sees(f"said {MESSAGES - 1}")

    used(daemon, script)


def test_an_escape_that_nothing_follows_is_a_key_at_once_and_the_begin_of_a_sequence_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    master, slave = pty.openpty()
    with os.fdopen(slave, "rb", buffering=0) as terminal:
        monkeypatch.setattr(pasted.sys, "__stdin__", terminal)
        (key,) = PasteParser().feed("\x1b")
        assert getattr(key, "key", "") == "escape"
        os.write(master, b"[A\n")
        parser = PasteParser()
        assert list(parser.feed("\x1b")) == []
        (key,) = parser.feed("[A")
        assert getattr(key, "key", "") == "up"
    os.close(master)
