"""The chat screen as a person uses it, with real keys, against a real daemon."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from textual.events import AppBlur, AppFocus, Key, Resize
from textual.geometry import Size
from textual.pilot import Pilot

from homebox.client import chats
from homebox.client.connection import Daemon
from homebox.client.settings import Screens
from homebox.tui.app import HomeboxApp
from homebox.tui.chat.message import MessageView
from homebox.tui.chat.screen import ChatScreen
from tests.daemon.box import Box

from . import golden
from .waiting import until

PACE = "[[forever]][[pace=20]]"
Script = Callable[["Person"], Awaitable[None]]


class Person:
    """Types keys and looks at the screen."""

    def __init__(self, pilot: Pilot[int], screen: ChatScreen) -> None:
        self.pilot, self.screen = pilot, screen

    async def types(self, text: str) -> None:
        self.screen.prompt.draft = text  # what typing does is the prompt's own test
        await self.pilot.pause()

    async def says(self, text: str) -> None:
        await self.types(text)
        await self.press("enter")

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)

    async def presses_at_once(self, *keys: str) -> None:
        """As when the machine is slow: the text has not seen the first of them when the app has seen the last."""
        text, seen, free = self.screen.focused, asyncio.Event(), asyncio.Event()
        assert text is not None
        text.call_later(free.wait)
        for key in keys:
            self.screen.app.post_message(Key(key, key if len(key) == 1 else None))
        self.screen.app.call_later(seen.set)
        await seen.wait()
        await asyncio.sleep(0)  # what it has begun by then has its turn
        free.set()

    async def sees(self, words: str) -> str:
        try:
            return await until(lambda: words in (shown := golden.shown(self.screen.app)) and shown)
        except AssertionError:
            raise AssertionError(f"{words!r} did not come:\n{golden.shown(self.screen.app)}") from None

    async def asks(self, text: str, answer: str) -> None:
        """A question, and its answer to the end."""
        await self.says(text)
        await until(lambda: self.texts[-1:] == [answer] and self.quiet)

    @property
    def texts(self) -> list[str]:
        return [item.text for item in self.screen.talk.now.items]

    @property
    def quiet(self) -> bool:
        now = self.screen.talk.now
        return now.growing is None and now.known and now.items[-1].message.state != "growing"

    @property
    def focused(self) -> MessageView:
        assert isinstance(self.screen.focused, MessageView)
        return self.screen.focused


def used(daemon: Daemon, script: Script, size: tuple[int, int] = (80, 24), **given: Any) -> HomeboxApp:
    async def run() -> HomeboxApp:
        screen = ChatScreen(daemon, **given)
        app = HomeboxApp(daemon, screen, Screens())
        async with app.run_test(size=size) as pilot:
            await until(lambda: screen.is_attached and screen.focused is not None and screen.model)
            await script(Person(pilot, screen))
        return app

    return asyncio.run(run())


def test_a_question_is_answered_and_the_answer_stopped_by_esc_is_kept(daemon: Daemon) -> None:
    async def script(me: Person) -> None:
        await me.says(PACE)
        await me.sees("[#] writing")
        await me.press("escape")
        await me.sees("stopped by you at")
        await me.sees("ctx ")
        assert chats.show(daemon, me.screen.talk.now.chat).messages[-1].state == "stopped"
        await me.press("up", "c")  # on the last message: go on
        await me.sees("[#] writing")
        await me.press("escape")
        await me.sees("stopped by you at")

    used(daemon, script)


def test_messages_are_edited_answered_again_and_left_for_their_branches_by_single_letters(
    daemon: Daemon,
) -> None:
    async def script(me: Person) -> None:
        await me.asks("[[say=one]]", "one")
        await me.press("up", "r")
        await until(lambda: me.quiet and len(me.screen.talk.now.items[-1].message.siblings) == 2)
        await me.sees("[2/2]")
        await me.press("up", "left_square_bracket")
        await me.sees("[1/2]")
        await me.press("escape", "up", "e")
        assert me.screen.prompt.draft == "[[say=one]]"
        await me.asks("[[say=two]]", "two")
        assert len(me.texts) == 2
        await me.press("up", "k", "left_square_bracket")
        await until(lambda: me.texts[-1] == "one")

    used(daemon, script)


def test_an_edit_that_is_left_changes_nothing(daemon: Daemon) -> None:
    async def script(me: Person) -> None:
        await me.asks("[[say=one]]", "one")
        await me.press("up", "e", "escape")
        await me.sees("the question stays as it was")
        await me.asks("[[say=two]]", "two")
        assert len(me.texts) == 4

    used(daemon, script)


def test_a_message_is_deleted_and_had_back(daemon: Daemon) -> None:
    async def script(me: Person) -> None:
        await me.asks("[[say=one]]", "one")
        await me.asks("[[say=two]]", "two")
        await me.press("up", "k", "d")
        await until(lambda: len(me.texts) == 2)
        await me.sees("has it back")
        await me.says("/undo")
        await until(lambda: me.texts[-1] == "two")

    used(daemon, script)


def test_a_conversation_is_deleted_and_had_back_named_and_written_to_a_file(
    daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    async def script(me: Person) -> None:
        await me.asks("[[say=one]]", "one")
        chat = me.screen.talk.now.chat
        await me.says("/title A trip")
        await until(lambda: me.screen.talk.now.title == "A trip")
        await me.says("/export trip.md")
        await me.sees("written to")
        assert "one" in (tmp_path / "trip.md").read_text()
        await me.says("/export trip.md")
        await me.sees("Name another file")
        await me.press("escape")
        await me.says("/delete")
        await until(lambda: not me.screen.talk.now.items)
        await me.says("/undo")
        await until(lambda: me.screen.talk.now.chat == chat and me.texts == ["[[say=one]]", "one"])

    used(daemon, script)


def test_what_is_typed_and_not_sent_stays_with_its_conversation(daemon: Daemon) -> None:
    async def script(me: Person) -> None:
        await me.asks("[[say=one]]", "one")
        chat = me.screen.talk.now.chat
        await me.types("half a thought")
        await me.press("ctrl+n")
        await until(lambda: not me.screen.talk.now.items)
        assert me.screen.prompt.draft != "half a thought"
        await until(lambda: chats.draft(daemon, chat) == "half a thought")
        me.screen.wish(me.screen.wishes.shelf.open(chat))
        await until(lambda: me.screen.prompt.draft == "half a thought")

    used(daemon, script)


def test_a_conversation_is_found_by_its_words_and_opened_at_the_place(daemon: Daemon) -> None:
    async def script(me: Person) -> None:
        await me.asks("[[say=hello]]", "hello")  # the title
        await me.asks("[[say=zebra_crossing]]", "zebra crossing")
        wanted = me.screen.talk.now
        for number in range(3):
            await me.asks(f"[[say={number}]]", str(number))
        await me.press("ctrl+n")
        await until(lambda: not me.screen.talk.now.items)
        await me.press("ctrl+r", *"zebra")
        await me.sees("found")
        await me.press("enter")
        await until(lambda: me.screen.talk.now.chat == wanted.chat)
        await until(lambda: isinstance(me.screen.focused, MessageView))
        assert "zebra" in me.focused.item.text

    used(daemon, script)


def test_the_list_of_conversations_opens_one_with_two_keys(daemon: Daemon) -> None:
    async def script(me: Person) -> None:
        await me.asks("[[say=listed]]", "listed")
        chat = me.screen.talk.now.chat
        await me.press("ctrl+n")
        await until(lambda: not me.screen.talk.now.items)
        await me.press("f2")
        await me.sees("listed")
        await me.press("enter")
        await until(lambda: me.screen.talk.now.chat == chat)

    used(daemon, script)


def test_a_message_behind_a_running_answer_waits_is_shown_and_can_be_taken_back(daemon: Daemon) -> None:
    async def script(me: Person) -> None:
        await me.says(PACE)
        await me.sees("[#] writing")
        await me.says("the next one")
        await me.sees("the next one")
        assert me.screen.talk.now.queued == ("the next one",)
        await me.press("escape")
        await until(lambda: not me.screen.talk.now.queued)
        await me.press("escape")
        await me.sees("stopped by you")

    used(daemon, script)


def test_leaving_leaves_the_answer_to_the_daemon_and_says_so(daemon: Daemon, box: Box) -> None:
    async def script(me: Person) -> None:
        await me.says(PACE)
        await me.sees("[#] writing")
        await me.press("ctrl+q")

    app = used(daemon, script)
    assert "homebox chat -c" in app.last_words
    (row,) = [row for row in box.streams() if row["mine"]]
    box.http.delete(f"/homebox/turns/{row['id']}")


def test_ctrl_c_stops_then_clears_then_asks_before_it_leaves(daemon: Daemon) -> None:
    async def script(me: Person) -> None:
        await me.says(PACE)
        await me.sees("[#] writing")
        await me.press("ctrl+c")
        await me.sees("stopped by you")
        await me.types("something")
        await me.press("ctrl+c")
        await until(lambda: me.screen.prompt.draft == "")
        await me.press("ctrl+c")
        await me.sees("press Ctrl-C again to leave")
        assert me.screen.app.is_running
        await me.press("ctrl+c")
        await until(lambda: me.screen.app.return_code is not None or not me.screen.app.is_running)

    used(daemon, script)


def test_ctrl_c_clears_what_was_typed_before_it_and_nothing_after_it(daemon: Daemon) -> None:
    async def script(me: Person) -> None:
        await me.presses_at_once(*"before", "ctrl+c", *"after")
        await until(lambda: me.screen.prompt.draft.endswith("after"))
        assert me.screen.prompt.draft == "after"

    used(daemon, script)


def test_what_is_typed_before_ctrl_n_stays_with_the_conversation_that_is_left(daemon: Daemon) -> None:
    async def script(me: Person) -> None:
        await me.asks("[[say=hello]]", "hello")
        before = me.screen.talk.now.chat
        await me.presses_at_once(*"half", "ctrl+n")
        await until(lambda: me.screen.talk.now.chat != before)
        assert me.screen.prompt.draft == ""
        assert chats.draft(daemon, before) == "half"

    used(daemon, script)


def test_while_the_reader_looks_back_nothing_moves_and_a_line_counts_what_has_come(daemon: Daemon) -> None:
    async def script(me: Person) -> None:
        await me.says("[[forever]][[pace=15]]")
        await until(lambda: me.screen.column.max_scroll_y > 10)
        await me.press("pageup")
        place = me.screen.column.scroll_y
        await me.sees("new lines - End shows them")
        before = len(me.texts[-1])
        await until(lambda: len(me.texts[-1]) > before + 60)
        assert me.screen.column.scroll_y == place
        me.screen.action_bottom()
        await until(lambda: me.screen.column.follows)
        await me.screen.talk.stop()

    used(daemon, script)


def test_a_long_conversation_shows_its_end_and_reads_on_when_its_top_is_reached(daemon: Daemon) -> None:
    async def script(me: Person) -> None:
        for number in range(6):
            await me.asks(f"[[say=number_{number}]]", f"number {number}")
        chat = me.screen.talk.now.chat
        me.screen.talk._window = 4
        await me.screen.talk.open(chat)
        await me.sees("8 earlier messages")
        assert me.texts[0] == "[[say=number_4]]"
        await me.press("pageup", "pageup", "pageup")
        await until(lambda: len(me.texts) >= 8)

    used(daemon, script, size=(80, 16))


def test_a_resize_storm_leaves_everything_in_its_place(daemon: Daemon) -> None:
    async def script(me: Person) -> None:
        await me.says(PACE)
        await me.sees("[#] writing")
        for number in range(50):
            size = Size(40 + number * 2, 12 + number // 2)
            me.screen.app.post_message(Resize(size, size))
        await me.pilot.resize_terminal(80, 24)
        await me.screen.talk.stop()
        await me.sees("stopped by you")
        assert me.screen.size == (80, 24)
        assert me.screen.focused is not None
        assert me.screen.column.follows

    used(daemon, script)


def test_an_instruction_a_model_and_a_theme_are_chosen_by_words(daemon: Daemon) -> None:
    async def script(me: Person) -> None:
        await me.says("/system You are brief.")
        await me.sees("follows this instruction")
        await me.asks("[[say=one]]", "one")
        assert chats.show(daemon, me.screen.talk.now.chat).system == "You are brief."
        await me.says("/model nobody")
        await me.sees("[!]")
        await me.press("escape")
        await me.says("/theme light")
        await until(lambda: me.screen.app.theme == "homebox-light")
        await me.says("/theme nowhere")
        await me.sees("there is no theme")

    used(daemon, script)


def test_the_palette_does_what_keys_and_commands_do(daemon: Daemon) -> None:
    async def script(me: Person) -> None:
        await me.asks("[[say=one]]", "one")
        await me.press("ctrl+p", *"answer again")
        await me.sees("beside this answer")
        await me.press("enter")
        await until(lambda: me.quiet and len(me.screen.talk.now.items[-1].message.siblings) == 2)

    used(daemon, script)


def test_who_comes_back_to_a_terminal_sees_what_was_said_at_another(daemon: Daemon, box: Box) -> None:
    async def script(me: Person) -> None:
        await me.asks("[[say=one]]", "one")
        chat = me.screen.talk.now.chat
        turn = await asyncio.to_thread(lambda: box.say(chat, "[[say=two]]", "elsewhere").json()["turn"])
        await asyncio.to_thread(box.events, turn)
        me.screen.app.post_message(AppBlur())
        me.screen.app.post_message(AppFocus())
        await until(lambda: me.texts[-1] == "two")

    used(daemon, script)


def test_keys_that_are_pressed_at_once_go_where_those_before_them_led(daemon: Daemon) -> None:
    async def script(me: Person) -> None:
        await me.asks("[[say=one]]", "one")
        await me.asks("[[say=two]]", "two")
        for key in ("up", "k", "k", "k", "e"):
            me.screen.app.post_message(Key(key, key if len(key) == 1 else None))
        await me.sees("sends it as a branch")
        assert me.screen.prompt.draft == "[[say=one]]"

    used(daemon, script)


def test_a_branch_takes_the_keys_of_the_one_before(daemon: Daemon) -> None:
    async def script(me: Person) -> None:
        await me.asks("[[say=one]]", "one")
        await me.press("up", "r")
        await me.sees("[2/2]")
        await until(lambda: me.quiet)
        await me.press("up", "left_square_bracket")
        await me.sees("[1/2]")
        await me.press("right_square_bracket")
        await me.sees("[2/2]")
        assert isinstance(me.screen.focused, MessageView)
        assert me.screen.prompt.draft == ""

    used(daemon, script)


def test_a_summary_that_takes_long_can_be_given_up(daemon: Daemon) -> None:
    async def script(me: Person) -> None:
        await me.says(PACE)
        await me.sees("[#] writing")
        await me.press("escape")
        await me.sees("stopped by you at")
        await until(lambda: me.quiet)
        await me.says("/summarise")
        await me.sees("Esc gives it up")
        await me.press("escape")
        await me.sees("the summary was given up")
        assert len(me.texts) == 2

    used(daemon, script)


def test_the_palette_offers_the_newest_conversations_by_their_titles(daemon: Daemon) -> None:
    async def script(me: Person) -> None:
        await me.asks("[[say=recent]] zanzibar", "recent")
        chat = me.screen.talk.now.chat
        await me.press("ctrl+n")
        await until(lambda: not me.screen.talk.now.items and me.screen.wishes.shelf.recent)
        await me.press("ctrl+p", *"zanzibar")
        await me.sees("conversation, ")
        await me.press("enter")
        await until(lambda: me.screen.talk.now.chat == chat)

    used(daemon, script)
