"""How the monitor looks: at every size, in every state, and with every kind of terminal."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from msgspec.structs import replace

from homebox.tui.monitor import feed
from homebox.wire.events import Snapshot
from tests.client.fake_daemon import FakeDaemon
from tests.tui import golden
from tests.tui.monitor_house import IDLE, NOW, STREAMS, House, sees, settled, until, watching, without_engine


@pytest.fixture(autouse=True)
def noon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times of day are said as in Greenwich."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()


def look(
    fake: FakeDaemon,
    now: Snapshot = NOW,
    size: tuple[int, int] = (80, 24),
    *keys: str,
    shows: str = "help",
    styles: bool = False,
    admin: bool = False,
    **options: Any,
) -> str:
    """The screen after these keys, once it says `shows`."""
    House(fake, now, admin=admin)

    async def run() -> str:
        async with watching(fake, size, until_shown="homebox top", **options) as pilot:
            board = pilot.app.screen.board  # type: ignore[attr-defined]

            def whole() -> bool:
                lines = golden.lines(pilot.app)
                return board.latest == now and "anna" in lines[0] and "help" in "".join(lines[-3:])

            await until(pilot, whole)
            await settled(pilot)
            await pilot.press(*keys)
            await sees(pilot, shows)
            await settled(pilot)
            return golden.styled(pilot.app) if styles else golden.shown(pilot.app)

    return asyncio.run(run())


@pytest.mark.parametrize(
    "size", [(80, 24), (60, 20), (40, 12), (140, 40), (100, 30)], ids=lambda s: f"{s[0]}x{s[1]}"
)
def test_at_every_size(fake: FakeDaemon, size: tuple[int, int]) -> None:
    golden.check(f"monitor-{size[0]}x{size[1]}", look(fake, size=size))


@pytest.mark.parametrize("size", [(80, 24), (140, 40)], ids=lambda s: f"{s[0]}x{s[1]}")
def test_in_ascii_no_character_is_beyond_it(fake: FakeDaemon, size: tuple[int, int]) -> None:
    shown = look(fake, size=size, ascii=True)
    assert shown.isascii()
    golden.check(f"monitor-ascii-{size[0]}x{size[1]}", shown)


@pytest.mark.parametrize("size", [(39, 24), (80, 9)])
def test_a_terminal_that_is_too_small_is_told_what_to_do(fake: FakeDaemon, size: tuple[int, int]) -> None:
    House(fake)

    async def run() -> str:
        async with watching(fake, size, until_shown="too small") as pilot:
            return golden.shown(pilot.app)

    assert "Use: homebox top --once" in asyncio.run(run())


STATES = {
    "loading": without_engine("loading", "weights 3/4"),
    "restarting": replace(without_engine("restarting", "killed by SIGKILL"), engine_restarts=1),
    "paused": without_engine("paused", "by dad since 20:14: playing a game"),
    "idle": IDLE,
}


@pytest.mark.parametrize("state", STATES)
def test_in_every_state(fake: FakeDaemon, state: str) -> None:
    golden.check(f"monitor-{state}", look(fake, STATES[state]))


@pytest.mark.parametrize("theme", ["light", "ansi"])
def test_with_every_kind_of_theme(fake: FakeDaemon, theme: str) -> None:
    golden.check(f"monitor-theme-{theme}", look(fake, styles=True, theme=theme))


def test_without_colours_nothing_is_coloured(fake: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    shown = look(fake, styles=True)
    golden.check("monitor-no-color", shown)


PANES = {
    "detail": ("enter", "came by"),
    "map": ("m", "blocks of 16"),
    "graphs": ("g", "last 5 min"),
    "help": ("question_mark", "every key"),
}


@pytest.mark.parametrize("pane", PANES)
def test_what_can_be_opened(fake: FakeDaemon, pane: str) -> None:
    key, shows = PANES[pane]
    golden.check(f"monitor-{pane}", look(fake, NOW, (80, 24), key, shows=shows))


def test_where_there_is_room_a_pane_stands_below_the_table(fake: FakeDaemon) -> None:
    shown = look(fake, NOW, (140, 40), "enter", shows="came by chat")
    assert " USER " in shown and "919f00 " not in shown.split("stream ")[1]


def test_a_daemon_that_goes_away_leaves_its_last_picture_and_that_is_said(
    fake: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "RETRY_S", (0.2,))
    house = House(fake)

    async def run() -> None:
        async with watching(fake) as pilot:
            fake.when("GET", "/homebox/me", lambda exchange: exchange.break_off())
            house.break_off()
            await sees(pilot, "AWAY: again in 0.2 s; this is from ")
            assert "91c4d0" in golden.shown(pilot.app) and pilot.app.screen.has_class("-old")
            House(fake, replace(NOW, at=NOW.at + 60, uptime_s=300.0))
            await sees(pilot, "up 5m00s")
            assert "AWAY" not in golden.shown(pilot.app) and not pilot.app.screen.has_class("-old")

    asyncio.run(run())


def test_without_a_daemon_it_says_so_and_waits_for_one(
    fake: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "RETRY_S", (0.05,))
    fake.stop()

    async def run() -> None:
        async with watching(fake, until_shown="Start it with") as pilot:
            assert "no daemon is running" in golden.shown(pilot.app)
            fake.start()
            House(fake)
            await sees(pilot, "up 3d04h")

    asyncio.run(run())


def test_no_name_can_drive_the_terminal(fake: FakeDaemon) -> None:
    hostile = "x\x1b]52;c;aGk=\x07[b]y\u202e"
    now = replace(
        NOW,
        model=hostile,
        engine="restarting",
        engine_detail=hostile,
        devices=(replace(NOW.devices[0], name=hostile, driver=hostile),),
        streams=tuple(replace(row, person=hostile, model=hostile, id=f"t-{hostile}{i}") for i, row in enumerate(STREAMS)),
    )  # fmt: skip
    for size, key, shows in (
        ((140, 40), "enter", "came by"),
        ((80, 24), "m", "blocks"),
        ((80, 24), "x", "y yes"),
    ):
        shown = look(fake, now, size, key, shows=shows, admin=True)
        assert not any(char in shown for char in "\x1b\x07\u202e") and "52;c" not in shown
        assert "x[b]y" in shown  # as it is, and not read as markup
