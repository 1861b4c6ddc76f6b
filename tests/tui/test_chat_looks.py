"""How the chat screen looks, in every state and size that people have, line by line."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from homebox.client.connection import Daemon
from homebox.client.settings import Screens
from homebox.errors import Busy
from homebox.tui.app import HomeboxApp
from homebox.tui.chat.screen import ChatScreen
from homebox.wire import events
from homebox.wire.chats import ChatView
from tests.client.fake_daemon import FakeDaemon, numbered

from . import golden
from .fake_house import CHAT, NOON, FakeHouse, message
from .waiting import until

ANSWER = """\
## Day 1 - Belem

- Morning: **Jeronimos** Monastery, arrive before 10:00
- Lunch: Time Out Market (kids' corner upstairs)

```python
def budget(days, kids):
    return days * (120 + 45 * kids)
```

| day | weather |
|---|---|
| 1 | sun |
| 2 | rain |
"""
Q1 = message("q1", "user", "Plan three days in Lisbon with two kids, one rainy day.")
A1 = message("a1", "assistant", ANSWER, model="smollm2-135m", turn="t-0", siblings=["a0", "a1", "a2"])
QUEUED = events.Queued(position=3, waiting=5, ahead=("dad", "leo"), eta_s=8.0)
STARTED = events.Started(queue_ms=120.0)
STATS = events.Stats(tokens=418, tok_s=62.0, ttft_ms=410.0, ctx_used=5012, ctx_max=16384)
THINK = events.Think(text="The person wants three days.\nOne of them is rainy.\nMuseums, then.")
TEXT = events.Text(text=ANSWER, offset=0)
STOPPED = events.Finished(
    reason="cancelled",
    usage=events.Usage(prompt_tokens=31, completion_tokens=418),
    timing=events.Timing(ttft_ms=410.0, total_ms=9200.0, tok_s=62.0),
    detail="stopped by its owner",
)
STATES: dict[str, tuple[list[events.Event], str]] = {
    "waiting": ([QUEUED], "place 3 of 5"),
    "thinking": ([STARTED, THINK, STATS], "thinking  418 tok"),
    "writing": ([STARTED, TEXT, STATS], "writing  418 tok"),
    "engine_restarting": ([STARTED, TEXT, STATS, events.EngineLost(safe_tokens=418)], "engine restarting"),
}


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def house(tmp_path: Path) -> Iterator[FakeHouse]:
    with FakeDaemon(tmp_path / "s") as daemon:
        yield FakeHouse(daemon)


def looks(
    tmp_path: Path,
    size: tuple[int, int],
    ready: Callable[[ChatScreen], object],
    *,
    chat: str | None = CHAT,
    first: str | None = None,
    theme: str = "dark",
    styled: bool = False,
    then: Callable[[ChatScreen], object] = lambda screen: None,
) -> str:
    """The screen once `ready` is true of it and it stands still."""

    async def run() -> str:
        daemon = Daemon(socket_path=tmp_path / "s")
        screen = ChatScreen(daemon, chat=chat, first=first, clock=lambda: NOON)
        screen.me = "anna"
        app = HomeboxApp(daemon, screen, Screens(theme=theme))
        async with app.run_test(size=size) as pilot:
            await until(lambda: screen.is_attached and ready(screen))
            then(screen)
            seen, still = "", 0
            while still < 3:
                await pilot.pause(0.05)
                now = golden.styled(app) if styled else golden.shown(app)
                still = still + 1 if now == seen else 0
                seen = now
            return seen

    return asyncio.run(run())


def told(screen: ChatScreen, words: str) -> bool:
    """The status line says so, the box's figures are there, the lists are filled."""
    shown = golden.shown(screen.app)
    return words in shown and ("GPU 74%" in shown or screen.size.width < 80)


SIZES = [(80, 24), (60, 20), (40, 12), (140, 40)]


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("state", STATES)
def test_an_answer_that_is_made(house: FakeHouse, tmp_path: Path, state: str, size: tuple[int, int]) -> None:
    house.view = ChatView(id=CHAT, title="Trip to Lisbon", created=NOON, updated=NOON, messages=[])
    house.turn, words = numbered(STATES[state][0]), STATES[state][1][: size[0] - 12]
    shown = looks(tmp_path, size, lambda screen: told(screen, words), first=Q1.content)
    golden.check(f"chat/{state}-{size[0]}x{size[1]}", shown)


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def test_a_stopped_answer(house: FakeHouse, tmp_path: Path, size: tuple[int, int]) -> None:
    stopped = message(
        "a1",
        "assistant",
        ANSWER[:90],
        model="smollm2-135m",
        turn="t-0",
        state="stopped",
        detail="stopped by its owner",
    )
    house.view = ChatView(
        id=CHAT,
        title="Trip to Lisbon",
        created=NOON,
        updated=NOON,
        messages=[Q1, stopped],
        ctx_used=500,
        ctx_max=8192,
    )
    shown = looks(tmp_path, size, lambda screen: told(screen, "kept"))
    golden.check(f"chat/stopped-{size[0]}x{size[1]}", shown)


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def test_a_conversation_with_branches(house: FakeHouse, tmp_path: Path, size: tuple[int, int]) -> None:
    house.view = ChatView(
        id=CHAT,
        title="Trip to Lisbon",
        created=NOON,
        updated=NOON,
        messages=[Q1, A1],
        earlier=12,
        ctx_used=2540,
        ctx_max=8192,
    )
    shown = looks(tmp_path, size, lambda screen: told(screen, "day"))
    golden.check(f"chat/branches-{size[0]}x{size[1]}", shown)


@pytest.mark.parametrize("size", [(80, 24), (40, 12)], ids=lambda size: f"{size[0]}x{size[1]}")
def test_a_refused_wish(house: FakeHouse, tmp_path: Path, size: tuple[int, int]) -> None:
    error = Busy("you have 4 requests waiting; the limit is 4", hint="Wait for one of them.")
    shown = looks(
        tmp_path,
        size,
        lambda screen: told(screen, "Lisbon"),
        then=lambda screen: screen.talk.failed(error),
    )
    golden.check(f"chat/error-{size[0]}x{size[1]}", shown)


def test_a_daemon_that_is_not_there(tmp_path: Path) -> None:
    daemon = FakeDaemon(tmp_path / "s")
    daemon.start()
    daemon.stop()
    shown = looks(tmp_path, (80, 24), lambda screen: "no daemon" in golden.shown(screen.app), chat=None)
    assert "no daemon" in shown
    assert str(tmp_path)[:20] in shown or "socket" in shown


def test_a_daemon_that_goes_away_in_mid_answer(house: FakeHouse, tmp_path: Path) -> None:
    house.turn = numbered([STARTED, TEXT, STATS])
    house.breaks_off = True
    shown = looks(
        tmp_path, (80, 24), lambda screen: told(screen, "daemon restarting - 418 tok safe"), first=Q1.content
    )
    assert "[!] daemon restarting - 418 tok safe - retry in" in shown


@pytest.mark.parametrize("theme", ["dark", "light", "ansi"])
def test_the_themes(house: FakeHouse, tmp_path: Path, theme: str) -> None:
    house.view = ChatView(id=CHAT, title="Trip to Lisbon", created=NOON, updated=NOON, messages=[Q1, A1])
    shown = looks(tmp_path, (80, 24), lambda screen: told(screen, "day"), theme=theme, styled=True)
    golden.check(f"chat/theme-{theme}", shown)


def test_without_colours(house: FakeHouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    house.view = ChatView(id=CHAT, title="Trip to Lisbon", created=NOON, updated=NOON, messages=[Q1, A1])
    shown = looks(tmp_path, (80, 24), lambda screen: told(screen, "day"), styled=True)
    golden.check("chat/no-color", shown)
    assert "#" not in shown.split("\n\n", 1)[1].replace("##", "")


@pytest.mark.parametrize("panel", [True, False])
def test_both_sides_can_be_put_away(house: FakeHouse, tmp_path: Path, panel: bool) -> None:
    house.view = ChatView(id=CHAT, title="Trip to Lisbon", created=NOON, updated=NOON, messages=[Q1, A1])
    shown = looks(
        tmp_path,
        (140, 40),
        lambda screen: told(screen, "Sourdough"),
        then=lambda screen: screen.wish(screen.wishes.command("/panel" if panel else "/chats")),
    )
    assert ("HOUSE" in shown) is not panel
    assert ("Sourdough" in shown) is panel
