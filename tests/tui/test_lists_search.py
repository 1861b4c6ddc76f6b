"""The search as one types: it waits for the fingers, ignores answers to what is not asked any more, sets off words."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from homebox.errors import DaemonUnreachable
from homebox.tui.lists.search import SearchScreen, day, unmarked
from homebox.wire.chats import Found

from . import golden
from .stage import DAY, HARMLESS, HOSTILE, NOW, SIZES, Stage, settled, until

FOUND = [
    Found(chat="a", title="Trip to Lisbon", snippet="A [rainy] day in [Lisbon] with …", updated=NOW, message="m1", role="user"),
    Found(chat="a", title="Trip to Lisbon", snippet="see [1]: the [Lisbon] oceanarium", updated=NOW - DAY, message="m2", role="assistant"),
    Found(chat="b", title=HOSTILE, snippet=f"{HOSTILE} [lisbon]", updated=NOW - 400 * DAY),
]  # fmt: skip


def stage() -> tuple[Stage, SearchScreen]:
    return Stage(hears=(SearchScreen.Asked, SearchScreen.Chosen)), SearchScreen(clock=lambda: NOW)


@pytest.mark.parametrize("size", SIZES)
def test_the_search_at_every_size(size: tuple[int, int]) -> None:
    async def go() -> None:
        app, search = stage()
        async with app.run_test(size=size) as pilot:
            await app.push_screen(search)
            await pilot.press(*"rainy lis")
            await until(pilot, lambda: app.said[-1:] == [SearchScreen.Asked("rainy lis")])
            search.show("rainy lis", FOUND)
            golden.check(f"search-{size[0]}x{size[1]}", await settled(pilot, HARMLESS.split()[0]))

    asyncio.run(go())


def test_typing_asks_once_the_fingers_rest_and_enter_opens_the_message() -> None:
    async def go() -> None:
        app, search = stage()
        async with app.run_test(size=(80, 24)) as pilot:
            await app.push_screen(search)
            await settled(pilot, "type a word of what was said")
            search._line.value = "rainy"
            search._line.value = "rainy l"
            await until(pilot, lambda: app.said)
            await settled(pilot, "looking ...")
            assert app.said == [SearchScreen.Asked("rainy l")]
            search.show("rainy", FOUND[2:])  # an answer that comes late
            assert "sale" not in await settled(pilot, "looking ...")
            search.show("rainy l", FOUND[:1] * 50)
            await settled(pilot, "the best 50; another word finds fewer")
            search.show("rainy l", FOUND)
            await settled(pilot, "3 found")
            await pilot.press("down", "enter")
            await until(pilot, lambda: len(app.said) == 2)
            assert app.said[1] == SearchScreen.Chosen("a", "m2")
            await until(pilot, lambda: app.screen is not search)

    asyncio.run(go())


def test_there_are_words_for_nothing_found_for_no_word_and_for_a_daemon_that_is_away() -> None:
    async def go() -> None:
        app, search = stage()
        async with app.run_test(size=(80, 24)) as pilot:
            await app.push_screen(search)
            await pilot.press(*"?!")
            await settled(pilot, "type a word of what was said")
            await pilot.press(*"zebra")
            asked = "?!zebra"
            await until(pilot, lambda: app.said[-1:] == [SearchScreen.Asked(asked)])
            search.show(asked, [])
            await settled(pilot, "nothing was found for: ?!zebra")
            search.fail("another", DaemonUnreachable("late"))
            search.fail(asked, DaemonUnreachable("nobody answers", hint="Start it with: homebox serve"))
            await settled(pilot, "nobody answers. Start it with: homebox serve")
            await pilot.press("enter", "escape")
            await until(pilot, lambda: app.screen is not search)
            assert not any(isinstance(each, SearchScreen.Chosen) for each in app.said)

    asyncio.run(go())


def test_what_stood_in_the_line_is_asked_for_at_once_when_a_list_leads_here() -> None:
    async def go() -> None:
        app = Stage(hears=(SearchScreen.Asked,))
        async with app.run_test(size=(80, 24)) as pilot:
            await app.push_screen(SearchScreen("lisbon"))
            await until(pilot, lambda: app.said == [SearchScreen.Asked("lisbon")])

    asyncio.run(go())


@pytest.mark.parametrize(
    ("snippet", "query", "text", "words"),
    [
        ("a [rainy] day", "rain", "a rainy day", ["rainy"]),
        ("[Café] au lait", "cafe", "Café au lait", ["Café"]),
        ("an array[0] and [one]", "one", "an array[0] and one", ["one"]),
        ("[red]a[/red] [red]", "red", "reda[/red] red", ["red", "red"]),
        ("no marks", "marks", "no marks", []),
        ("[rainy] [day]", "rainy da", "rainy day", ["rainy", "day"]),
        ("[rain] first", "rain x", "rain first", ["rain"]),
        ("[rainy] first", "rain x", "[rainy] first", []),
    ],
)
def test_only_words_that_were_looked_for_are_set_off(snippet: str, query: str, text: str, words: Any) -> None:
    shown, spans = unmarked(snippet, query)
    assert shown == text
    assert [shown[start:end] for start, end in spans] == words


def test_a_found_word_is_underlined_also_where_the_line_is_narrow() -> None:
    async def go() -> None:
        app, search = stage()
        long = Found(
            chat="a", title="T", snippet=f"{'word ' * 30}[needle] end", updated=NOW, message="m", role="user"
        )
        async with app.run_test(size=(40, 12)) as pilot:
            await app.push_screen(search)
            await pilot.press(*"needle")
            await until(pilot, lambda: app.said[-1:] == [SearchScreen.Asked("needle")])
            search.show("needle", [long])
            await settled(pilot, "needle end")
            drawn = golden.styled(app)
            assert any("underline" in each and "bold" in each for each in drawn.splitlines())

    asyncio.run(go())


def test_the_time_of_today_the_day_of_this_year_else_the_date() -> None:
    assert [day(at, NOW) for at in (NOW, NOW - DAY, NOW - 400 * DAY)] == ["15:30", "17 Mar", "2025-02-11"]
