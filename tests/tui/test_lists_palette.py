"""The palette offers everything, with the keys that this person has, and a title is never markup."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

from textual.binding import BindingType
from textual.command import CommandPalette
from textual.screen import Screen
from textual.widgets import Input, OptionList, TextArea

from homebox.client.commands import COMMANDS
from homebox.tui import themes
from homebox.tui.keys import TABLE, bindings
from homebox.tui.palette import Entry, Everything, Source, rank
from homebox.wire.chats import ChatRow

from .stage import HARMLESS, HOSTILE, NOW, Stage, settled, until

CHATS = [ChatRow(id="a", title=HOSTILE, created=NOW, updated=NOW, messages=2)]
HEARS = (Everything.ActionChosen, Everything.CommandChosen, Everything.ChatChosen, Everything.ThemeChosen)


class Conversation(Screen[None]):
    BINDINGS: ClassVar[list[BindingType]] = [*bindings("screen")]

    def __init__(self, remaps: dict[str, str]) -> None:
        super().__init__()
        self.remaps = remaps
        self.done: list[str] = []

    def compose(self) -> Any:
        yield TextArea()

    def palette_source(self) -> Source:
        return Source(self.remaps, CHATS)

    def action_wish(self, command: str) -> None:
        self.done.append(command)


class Whole(Stage):
    COMMANDS = {Everything}  # noqa: RUF012

    def __init__(self, **remaps: str) -> None:
        super().__init__(hears=HEARS)
        self.below = Conversation(remaps)
        self.set_keymap(remaps)

    async def on_mount(self) -> None:
        await self.push_screen(self.below)


def listed(app: Whole) -> list[str]:
    """What the palette has, seen or not."""
    return [str(option.prompt) for option in app.screen.query_one(OptionList).options]


async def choose(app: Whole, pilot: Any, typed: str, shows: str, *, opened_by: str = "ctrl+p") -> None:
    await settled(pilot, "")
    await pilot.press(opened_by)
    await until(pilot, lambda: CommandPalette.is_open(app))
    app.screen.query_one(Input).value = typed
    await settled(pilot, shows)
    await pilot.press("enter")
    await until(pilot, lambda: not CommandPalette.is_open(app))


def test_every_action_command_theme_and_recent_chat_is_offered_with_its_key() -> None:
    async def go() -> None:
        app = Whole(search="f9")
        async with app.run_test(size=(80, 24)) as pilot:
            await until(pilot, lambda: app.screen is app.below)
            offered = list(Everything(app.below).entries())
        names = {entry.name for entry in offered}
        wanted = [key for where in ("screen", "message") for key in TABLE[where] if key.id != "palette"]
        assert {key.about for key in wanted} <= names
        assert {f"{each.name} {each.takes}".strip() for each in COMMANDS} <= names
        assert {f"theme {name}" for name in themes.names()} <= names
        assert HARMLESS in names
        assert next(each.about for each in offered if each.name == "search all conversations") == "F9"

    asyncio.run(go())


def test_an_action_runs_where_its_key_is_bound_and_the_rest_is_told_to_the_screen() -> None:
    async def go() -> None:
        app = Whole()
        async with app.run_test(size=(80, 24)) as pilot:
            await until(pilot, lambda: app.screen is app.below)
            await choose(app, pilot, "watch", "F3")
            await until(pilot, lambda: app.below.done == ["/top"])
            await choose(app, pilot, "copy the m", "y, on a message")  # the editor has a copy of its own
            await until(pilot, lambda: len(app.said) == 1)
            await choose(app, pilot, "/exp", "/export FILE")
            await until(pilot, lambda: len(app.said) == 2)
            await choose(app, pilot, "theme li", "theme light")
            await until(pilot, lambda: len(app.said) == 3)
        assert app.said[0].key.id == "copy"
        assert app.said[1].command.name == "/export"
        assert app.said[2].name == "light"

    asyncio.run(go())


def test_it_opens_with_a_remapped_key_and_a_hostile_title_is_text_that_opens_its_chat() -> None:
    async def go() -> None:
        app = Whole(palette="f6")
        async with app.run_test(size=(80, 24)) as pilot:
            await until(pilot, lambda: app.screen is app.below)
            await choose(app, pilot, "sale", HARMLESS, opened_by="f6")
            await pilot.press("f6")
            await until(pilot, lambda: CommandPalette.is_open(app) and listed(app))
            assert any(HARMLESS in each for each in listed(app))  # also where nothing is typed
            assert any(each.endswith("[, on a message") for each in listed(app))
            await until(pilot, lambda: app.said == [Everything.ChatChosen("a")])

    asyncio.run(go())


def test_words_at_the_beginning_of_a_name_rank_first() -> None:
    def entry(name: str, about: str = "") -> Entry:
        return Entry(name, about, lambda: None)

    fits = [
        rank(each, ["new"])
        for each in (entry("/new"), entry("a new one"), entry("x", "what is new"), entry("x"))
    ]
    assert fits == sorted(fits, reverse=True)
    assert fits[-1] == 0
    assert rank(entry("/new"), ["new", "zzz"]) == 0
