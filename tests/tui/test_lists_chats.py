"""The list of conversations: days, marks, pages, names, deleting and having back, and titles that are only text."""

from __future__ import annotations

import asyncio
import re
from datetime import date
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widgets import OptionList

from homebox.errors import DaemonUnreachable
from homebox.tui.lines import both_ends, cut, graph
from homebox.tui.lists import rows as looks
from homebox.tui.lists.chat_list import ChatList, ChatListScreen
from homebox.wire.chats import ChatList as Page
from homebox.wire.chats import ChatRow
from tests.client.test_sanitise import FORBIDDEN

from . import golden
from .stage import DAY, HARMLESS, HOSTILE, HOUR, NOW, SIZES, Stage, settled, until


def row(name: str, title: str, ago_s: float = 0.0, state: Any = "done") -> ChatRow:
    return ChatRow(id=name, title=title, created=NOW - ago_s, updated=NOW - ago_s, messages=2, state=state)


CHATS = [
    row("a", "Trip to Lisbon with the children and their grandmother", 60, "growing"),
    row("b", "Fix the printer", HOUR),
    row("c", "料理の手順と買い物リストを作る、それから献立", 2 * HOUR, "error"),
    row("d", "Letter to school", DAY, "stopped"),
    row("e", "Sourdough", 2 * DAY, "length"),
    row("f", "Python club", 10 * DAY),
    row("g", "Car insurance", 60 * DAY),
    row("h", HOSTILE, 70 * DAY),
    row("i", "", 80 * DAY),
]


def stage(chats: ChatList | None = None) -> tuple[Stage, ChatList]:
    chats = chats or ChatList(clock=lambda: NOW)
    return Stage(chats, hears=(ChatList.Said,)), chats


def page(rows: list[ChatRow], after: str | None = None) -> Page:
    return Page(chats=rows, next=after)


def many(count: int, first: int = 0) -> list[ChatRow]:
    return [row(f"n{n}", f"chat number {n}", n * HOUR) for n in range(first, first + count)]


async def opened(pilot: Pilot[None], chats: ChatList, rows: list[ChatRow], after: str | None = None) -> None:
    chats.show(page(rows, after))
    chats.focus_rows()
    await settled(pilot, looks.title(rows[0])[:8])


@pytest.mark.parametrize("size", SIZES)
def test_the_list_beside_the_conversation_and_as_a_screen_of_its_own(size: tuple[int, int]) -> None:
    async def go() -> None:
        app, chats = stage()
        async with app.run_test(size=size) as pilot:
            chats.mark("b")
            await opened(pilot, chats, CHATS)
            golden.check(f"chats-{size[0]}x{size[1]}", await settled(pilot, "Fix the printer"))
            alone = ChatListScreen(ChatList(clock=lambda: NOW))
            await app.push_screen(alone)
            alone.chats.show(page(CHATS))
            golden.check(f"chats-screen-{size[0]}x{size[1]}", await settled(pilot, "x to a file"))

    asyncio.run(go())


@pytest.mark.parametrize(
    ("day", "heading"),
    [
        (date(2026, 3, 18), "Today"),
        (date(2026, 3, 19), "Today"),
        (date(2026, 3, 17), "Yesterday"),
        (date(2026, 3, 16), "This week"),
        (date(2026, 3, 15), "This month"),
        (date(2026, 3, 1), "This month"),
        (date(2026, 2, 28), "Earlier"),
        (date(2025, 3, 18), "Earlier"),
    ],
)
def test_a_day_stands_under_its_heading(day: date, heading: str) -> None:
    assert looks.period(day, date(2026, 3, 18)) == heading


def test_a_title_is_text_without_control_characters_however_it_was_written() -> None:
    assert looks.title(row("x", HOSTILE)) == HARMLESS

    async def go() -> None:
        app, chats = stage(ChatList(clock=lambda: NOW))
        async with app.run_test(size=(80, 24)) as pilot:
            chats.styles.width = 60
            await opened(pilot, chats, [row("x", HOSTILE)])
            shown = await settled(pilot, HARMLESS)
            await pilot.press("d")
            shown += await settled(pilot, "deleted: [red]sale[/red]")
            await pilot.press("u", "r")
            shown += await settled(pilot, "name of the conversation")
        assert not FORBIDDEN.search(shown.replace("\n", ""))

    asyncio.run(go())


def test_of_five_thousand_chats_only_the_titles_that_are_seen_are_drawn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drawn: list[str] = []
    title = looks.title
    monkeypatch.setattr(looks, "title", lambda each: drawn.append(each.id) or title(each))

    async def go() -> None:
        app, chats = stage()
        async with app.run_test(size=(80, 24)) as pilot:
            await opened(pilot, chats, many(5000))
            await pilot.press("end")
            await settled(pilot, "chat number 4999")
        assert len(set(drawn)) < 100

    asyncio.run(go())


def test_the_next_page_is_asked_for_once_near_the_end_and_only_its_answer_is_taken() -> None:
    async def go() -> None:
        app, chats = stage()
        async with app.run_test(size=(80, 24)) as pilot:
            await opened(pilot, chats, many(100), "p2")
            assert app.said == []
            await pilot.press("end", "up", "up", "down")
            await until(pilot, lambda: app.said)
            assert app.said == [ChatList.WantMore("p2")]
            chats.add("p1", page(many(1, 900)))
            chats.add("p2", page([*many(1, 99), *many(100, 100)], "p3"))  # one was in the first page, too
            await pilot.press("end")
            await until(pilot, lambda: len(app.said) == 2)
            chats.add("p3", page([]))
            assert app.said[1] == ChatList.WantMore("p3")
            await settled(pilot, "chat number 199")
            shown = [option.id for option in chats.query_one(OptionList).options if option.id]
            assert shown == [f"n{n}" for n in range(200)]

    asyncio.run(go())


def test_enter_opens_and_the_letters_of_the_table_name_delete_undo_and_export() -> None:
    async def go() -> None:
        app, chats = stage()
        async with app.run_test(size=(80, 24)) as pilot:
            await opened(pilot, chats, CHATS)
            await pilot.press("j", "enter", "x", "r")
            await settled(pilot, "name of the conversation")
            await pilot.press("end", *"!", "enter")
            await settled(pilot, "Fix the printer!")
            await pilot.press("d")
            await settled(pilot, "u has")
            assert "Fix the printer!" not in golden.shown(app).partition("deleted")[0]
            await pilot.press("u")
            await until(pilot, lambda: len(app.said) == 5)
            await settled(pilot, "Fix the printer!")
            assert app.said == [
                ChatList.Opened("b"),
                ChatList.Exported("b"),
                ChatList.Renamed("b", "Fix the printer!"),
                ChatList.Deleted("b"),
                ChatList.Undo("b"),
            ]
            await pilot.press("u")
            await settled(pilot, "nothing was deleted here")
            assert len(app.said) == 5

    asyncio.run(go())


def test_what_the_daemon_sees_otherwise_is_put_right() -> None:
    async def go() -> None:
        app, chats = stage()
        async with app.run_test(size=(80, 24)) as pilot:
            await opened(pilot, chats, CHATS)
            await pilot.press("d")  # and the daemon refuses
            chats.update(CHATS[0])
            chats.fail(DaemonUnreachable("nobody answers", hint="homebox serve"))
            shown = await settled(pilot, "nobody answers. homebox serve")
            assert "Trip to Lisbon" in shown
            chats.update(row("new", "A new one", -5, "growing"))
            lines = (await settled(pilot, "A new one")).splitlines()
            assert re.search(r"A new one +\*", lines[2])

    asyncio.run(go())


def test_a_filter_shows_titles_with_these_letters_and_leads_to_the_search() -> None:
    async def go() -> None:
        app, chats = stage()
        async with app.run_test(size=(80, 24)) as pilot:
            await opened(pilot, chats, CHATS)
            await pilot.press("slash", *"rint")  # r and x are letters here, not keys
            shown = await settled(pilot, "search all words: rint")
            assert "Fix the printer" in shown
            assert "Sourdough" not in shown
            await pilot.press("enter")
            await pilot.press("down", "enter")
            await until(pilot, lambda: len(app.said) == 2)
            assert app.said == [ChatList.Opened("b"), ChatList.Searched("rint")]
            await pilot.press("escape")
            await settled(pilot, "Sourdough")

    asyncio.run(go())


def test_a_remapped_key_works_and_the_old_one_does_not() -> None:
    async def go() -> None:
        app, chats = stage()
        app.set_keymap({"chats-delete": "f7", "chats-undo": "f8"})
        async with app.run_test(size=(80, 24)) as pilot:
            await opened(pilot, chats, CHATS)
            await pilot.press("d", "f7")
            await settled(pilot, "F8 has it")
            assert app.said == [ChatList.Deleted("a")]

    asyncio.run(go())


def test_the_screen_of_its_own_speaks_to_the_screen_below_and_closes_on_a_choice() -> None:
    async def go() -> None:
        app = Stage(hears=(ChatList.Said,))
        async with app.run_test(size=(40, 12)) as pilot:
            alone = ChatListScreen()
            await app.push_screen(alone)
            alone.chats.show(page(CHATS))
            await settled(pilot, "Trip")
            await pilot.press("d", "enter")
            await until(pilot, lambda: app.screen is not alone and len(app.said) == 2)
            assert app.said == [ChatList.Deleted("a"), ChatList.Opened("b")]

    asyncio.run(go())


def test_an_empty_list_says_whether_it_is_read_or_there_is_none() -> None:
    async def go() -> None:
        app, chats = stage()
        async with app.run_test(size=(80, 24)) as pilot:
            await settled(pilot, "reading ...")
            chats.show(page([]))
            await settled(pilot, "no conversation yet")
            chats.focus_rows()
            await pilot.press("enter", "d", "r", "x")
            chats.update(CHATS[1])
            assert "no conversation" not in await settled(pilot, "Fix the printer")
            assert app.said == []

    asyncio.run(go())


def test_lines_are_cut_by_cells() -> None:
    assert cut("日本語", 6) == "日本語"
    assert cut("日本語", 5) == "日本…"
    assert cut("日本語", 4) == "日…"
    assert cut("abc", 0) == ""
    assert both_ends("日本語", "*", 6) == "日…  *"
    assert both_ends("abc", "12:00", 4) == "12:…"
    assert graph([None, 0.0, 50.0, 100.0], 10, 100.0) == " ▁▅█"
    assert graph([None, None], 10) == "  "
