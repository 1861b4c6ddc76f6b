"""What the monitor's keys do: choose, sort, filter, stop, hold, open, leave."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from msgspec.structs import replace
from textual.pilot import Pilot

from homebox import errors
from homebox.tui.keys import TABLE
from homebox.tui.monitor.question import Question
from homebox.tui.monitor.screen import MonitorScreen
from tests.client.fake_daemon import FakeDaemon
from tests.tui import golden
from tests.tui.monitor_house import NOW, STREAMS, House, sees, until, watching

Script = Callable[[Pilot[Any]], Awaitable[None]]


def play(fake: FakeDaemon, script: Script, size: tuple[int, int] = (80, 24), **options: Any) -> None:
    async def run() -> None:
        async with watching(fake, size, **options) as pilot:
            await until(pilot, lambda: screen(pilot).board.me)
            await script(pilot)

    asyncio.run(run())


def screen(pilot: Pilot[Any]) -> MonitorScreen:
    found = next(each for each in pilot.app.screen_stack if isinstance(each, MonitorScreen))
    assert isinstance(found, MonitorScreen)
    return found


def order(pilot: Pilot[Any]) -> list[str]:
    """The short ids of the rows, as they stand."""
    ids = {row.id[2:8] for row in (*STREAMS, *NOW.ended)}
    words = [line.split() for line in golden.lines(pilot.app)]
    return [each[-1] for each in words if each and each[-1] in ids]


def test_every_key_of_the_table_is_an_action_of_the_screen() -> None:
    for key in TABLE["monitor"]:
        assert hasattr(MonitorScreen, f"action_{key.action.partition('(')[0]}"), key.id


def test_the_chosen_stream_stays_chosen_while_the_rows_move(fake: FakeDaemon) -> None:
    house = House(fake)

    async def script(pilot: Pilot[Any]) -> None:
        board = screen(pilot).board
        await pilot.press("j", "down", "k")
        await until(pilot, lambda: board.chosen == "t-91c4d0aa")
        older = tuple(replace(row, age_s=row.age_s + 60 * row.mine) for row in STREAMS)
        house.tell(replace(NOW, at=NOW.at + 2, streams=older))
        await until(pilot, lambda: order(pilot)[0] == "91c4d0")
        assert board.row().id == "t-91c4d0aa"  # type: ignore[union-attr]
        house.tell(replace(NOW, at=NOW.at + 4, streams=STREAMS[1:]))
        await until(pilot, lambda: "91c4d0" not in order(pilot))
        assert board.row() is not None
        await pilot.press("end")
        await until(pilot, lambda: board.chosen == "t-917abcde")

    play(fake, script)


def test_a_row_that_is_clicked_is_chosen(fake: FakeDaemon) -> None:
    House(fake)

    async def script(pilot: Pilot[Any]) -> None:
        await pilot.click("Rows", offset=(3, 2))
        await until(pilot, lambda: screen(pilot).board.chosen == "t-92055512")

    play(fake, script)


def test_sorting_goes_through_the_columns_and_round(fake: FakeDaemon) -> None:
    House(fake)

    async def script(pilot: Pilot[Any]) -> None:
        assert order(pilot)[:3] == ["919f00", "91c4d0", "920555"]  # by age, the oldest first
        await pilot.press("S")
        await until(pilot, lambda: order(pilot)[:3] == ["91fabc", "921777", "91d112"])
        await pilot.press("S", "s", "s")  # id, user
        await sees(pilot, "sorted by user")
        assert order(pilot)[0] == "91c4d0"
        assert order(pilot)[-1] == "917abc"  # what has ended stays below

    play(fake, script)


def test_a_filter_holds_while_it_is_typed_and_what_is_wrong_is_said_with_its_place(fake: FakeDaemon) -> None:
    House(fake)

    async def script(pilot: Pilot[Any]) -> None:
        await pilot.press("slash", *"user=dad")
        await until(pilot, lambda: order(pilot) == ["919f00", "91d112"])
        await pilot.press("space", *"tok_s<q")
        await sees(pilot, "filter, character 16: 'q' is not a number")
        await pilot.press("backspace", *"59")
        await until(pilot, lambda: order(pilot) == ["919f00"])
        await pilot.press("enter")
        await sees(pilot, "filter: user=dad tok_s<59")
        await pilot.press("j", "escape")
        await until(pilot, lambda: len(order(pilot)) == 7)

    play(fake, script)


def test_escape_while_a_filter_is_typed_takes_back_what_was_typed(fake: FakeDaemon) -> None:
    House(fake)

    async def script(pilot: Pilot[Any]) -> None:
        await pilot.press("slash", *"leo")
        await until(pilot, lambda: order(pilot) == ["91fabc"])
        await pilot.press("escape")
        await until(pilot, lambda: len(order(pilot)) == 7)
        await pilot.press("u")
        await sees(pilot, "only mine")
        assert order(pilot) == ["91c4d0", "917abc"]
        await pilot.press("slash", *"nobody", "enter")
        await sees(pilot, "no stream fits")

    play(fake, script)


def test_ones_own_stream_is_stopped_after_a_yes_and_not_without(fake: FakeDaemon) -> None:
    house = House(fake)

    async def script(pilot: Pilot[Any]) -> None:
        await pilot.press("j", "x")
        await until(pilot, lambda: isinstance(pilot.app.screen, Question))
        await sees(pilot, "Stop your 91c4d0?")
        await pilot.press("n")
        await until(pilot, lambda: pilot.app.screen is screen(pilot))
        assert house.cancelled == []
        await pilot.press("x", "y")
        await sees(pilot, "91c4d0 stopped")
        assert house.cancelled == ["t-91c4d0aa"]

    play(fake, script)


def test_somebody_elses_stream_is_refused_with_words_to_who_is_no_administrator(fake: FakeDaemon) -> None:
    house = House(fake)

    async def script(pilot: Pilot[Any]) -> None:
        await pilot.press("x")
        await sees(pilot, "919f00 is dad's; only administrators may stop")
        await pilot.press("end", "x")
        await sees(pilot, "917abc has ended")
        assert house.cancelled == [] and pilot.app.screen is screen(pilot)

    play(fake, script)


def test_an_administrator_stops_anybodys_after_a_question_that_names_them(fake: FakeDaemon) -> None:
    house = House(fake, admin=True)

    async def script(pilot: Pilot[Any]) -> None:
        assert "anna (admin)" in golden.shown(pilot.app)
        await pilot.press("x")
        await until(pilot, lambda: "Stop dad's 919f00?" in golden.shown(pilot.app))
        await pilot.press("y")
        await until(pilot, lambda: house.cancelled == ["t-919f00aa"])

    play(fake, script)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (errors.NotFound("no turn"), "91c4d0 had already ended"),
        (errors.NotAllowed("turn t-91c4d0aa is not yours"), "turn t-91c4d0aa is not yours"),
    ],
)
def test_what_the_daemon_says_to_a_stop_is_said_on(
    fake: FakeDaemon, error: errors.HomeboxError, said: str
) -> None:
    House(fake)
    fake.when("DELETE", "/homebox/turns/", lambda exchange: exchange.error(error))

    async def script(pilot: Pilot[Any]) -> None:
        await pilot.press("j", "x", "y")
        await sees(pilot, said)

    play(fake, script)


def test_who_only_looks_stops_nothing(fake: FakeDaemon) -> None:
    house = House(fake, admin=True)

    async def script(pilot: Pilot[Any]) -> None:
        await pilot.press("x")
        await sees(pilot, "this monitor only looks (--readonly)")
        assert house.cancelled == []

    play(fake, script, readonly=True)


def test_a_held_picture_stands_still_while_the_box_goes_on(fake: FakeDaemon) -> None:
    house = House(fake)

    async def script(pilot: Pilot[Any]) -> None:
        await pilot.press("p")
        await sees(pilot, "paused at ")
        house.tell(replace(NOW, at=NOW.at + 2, streams=(), uptime_s=60.0))
        await until(pilot, lambda: screen(pilot).board.latest.at > NOW.at)  # type: ignore[union-attr]
        assert "up 3d04h" in golden.shown(pilot.app) and len(order(pilot)) == 7
        await pilot.press("p")
        await sees(pilot, "up 1m00s")

    play(fake, script)


def test_another_interval_is_asked_of_the_daemon_and_the_old_connection_is_closed(fake: FakeDaemon) -> None:
    House(fake)

    async def script(pilot: Pilot[Any]) -> None:
        await pilot.press("plus")
        await sees(pilot, "every 5 s")
        await until(pilot, lambda: fake.requests("/homebox/monitor?interval=5&"))
        assert fake.requests("/homebox/monitor?interval=2&")[0].hung_up.wait(10)
        await pilot.press("minus", "minus")
        await until(pilot, lambda: fake.requests("/homebox/monitor?interval=1&"))

    play(fake, script)


def test_leaving_closes_the_connection(fake: FakeDaemon) -> None:
    House(fake)

    async def script(pilot: Pilot[Any]) -> None:
        await pilot.press("m", "q")  # q closes what is open first
        assert screen(pilot).is_current
        await pilot.press("q")
        await until(pilot, lambda: not pilot.app.is_running or len(pilot.app.screen_stack) < 2)
        assert fake.requests("/homebox/monitor?")[0].hung_up.wait(10)

    play(fake, script)


def test_a_key_that_was_given_to_something_else_is_shown_where_keys_are_shown(fake: FakeDaemon) -> None:
    House(fake)

    async def script(pilot: Pilot[Any]) -> None:
        pilot.app.set_keymap({"monitor-pause": "f9"})
        await pilot.press("f9")
        await sees(pilot, "paused at ")
        assert "F9 pause" in golden.shown(pilot.app)

    play(fake, script)


def test_any_number_of_sizes_one_after_the_other_ends_in_a_whole_picture(fake: FakeDaemon) -> None:
    House(fake)

    async def script(pilot: Pilot[Any]) -> None:
        for size in [(140, 40), (38, 9), (40, 12), (200, 60), (60, 20)] * 4:
            await pilot.resize_terminal(*size)
        await until(pilot, lambda: golden.lines(pilot.app)[-1].startswith(" q back"))
        assert len(golden.lines(pilot.app)) == 20 and order(pilot)

    play(fake, script)
