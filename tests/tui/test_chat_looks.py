"""How the chat screen looks, in every state and size that people have, line by line."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from homebox.client.connection import Daemon
from homebox.client.settings import Screens
from homebox.errors import Busy
from homebox.tui.app import HomeboxApp
from homebox.tui.chat.screen import ChatScreen
from homebox.wire import events
from homebox.wire.chats import ChatView, MessageView
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


Size = tuple[int, int]
SIZES: list[Size] = [(80, 24), (60, 20), (40, 12), (140, 40)]


def looks(
    tmp_path: Path,
    ready: Callable[[ChatScreen], object],
    *,
    sizes: list[Size] = SIZES,
    chat: str | None = CHAT,
    first: str | None = None,
    theme: str = "dark",
    styled: bool = False,
    then: Callable[[ChatScreen], object] = lambda screen: None,
) -> dict[str, str]:
    """The screen in each size, once `ready` is true of it and it stands still."""

    async def run() -> dict[str, str]:
        daemon = Daemon(socket_path=tmp_path / "s")
        screen = ChatScreen(daemon, chat=chat, first=first, clock=lambda: NOON)
        screen.me = "anna"
        app = HomeboxApp(daemon, screen, Screens(theme=theme))
        shown = {}
        async with app.run_test(size=sizes[0]) as pilot:
            await until(lambda: screen.is_attached and ready(screen))
            then(screen)
            for size in sizes:
                await pilot.resize_terminal(*size)
                seen, still = "", 0
                while still < 3:
                    await pilot.pause(0.02)
                    now = golden.styled(app) if styled else golden.shown(app)
                    still = still + 1 if now == seen else 0
                    seen = now
                shown[f"{size[0]}x{size[1]}"] = seen
        return shown

    return asyncio.run(run())


def check(name: str, shown: dict[str, str]) -> None:
    for size, screen in shown.items():
        golden.check(f"chat/{name}-{size}", screen)


def told(screen: ChatScreen, words: str) -> bool:
    """The status line says so, the box's figures are there, the lists are filled."""
    shown = golden.shown(screen.app)
    return words in shown and ("GPU 74%" in shown or screen.size.width < 80)


def view(*messages: MessageView, **fields: Any) -> ChatView:
    return ChatView(
        id=CHAT, title="Trip to Lisbon", created=NOON, updated=NOON, messages=list(messages), **fields
    )


@pytest.mark.parametrize("state", STATES)
def test_an_answer_that_is_made(house: FakeHouse, tmp_path: Path, state: str) -> None:
    house.view = view()
    told_events, words = STATES[state]
    house.turn = numbered(told_events)
    check(state, looks(tmp_path, lambda screen: told(screen, words), first=Q1.content))


def test_a_stopped_answer(house: FakeHouse, tmp_path: Path) -> None:
    stopped = message(
        "a1",
        "assistant",
        ANSWER[:90],
        model="smollm2-135m",
        turn="t-0",
        state="stopped",
        detail="daemon restarted",
    )
    house.view = view(Q1, stopped, ctx_used=500, ctx_max=8192)
    check("stopped", looks(tmp_path, lambda screen: told(screen, "kept")))


def test_a_conversation_with_branches(house: FakeHouse, tmp_path: Path) -> None:
    house.view = view(Q1, A1, earlier=12, ctx_used=2540, ctx_max=8192)
    check("branches", looks(tmp_path, lambda screen: told(screen, "day")))


def test_a_full_context_offers_a_summary(house: FakeHouse, tmp_path: Path) -> None:
    house.view = view(Q1, A1, ctx_used=7800, ctx_max=8192)
    check("full", looks(tmp_path, lambda screen: told(screen, "/summarise")))


def test_a_refused_wish_is_told_in_full(house: FakeHouse, tmp_path: Path) -> None:
    error = Busy("you have 4 requests waiting; the limit is 4", hint="Wait for one of them.")
    shown = looks(
        tmp_path, lambda screen: told(screen, "Ask"), chat=None, then=lambda screen: screen.talk.failed(error)
    )
    check("error", shown)
    assert all("Wait for one of them." in " ".join(each.split()) for each in shown.values())


def test_a_daemon_that_is_not_there(tmp_path: Path) -> None:
    daemon = FakeDaemon(tmp_path / "s")
    daemon.start()
    daemon.stop()
    shown = looks(
        tmp_path, lambda screen: "no daemon" in golden.shown(screen.app), chat=None, sizes=[(80, 24)]
    )
    said = "".join(shown["80x24"].split())
    assert "nodaemonisrunning" in said
    assert "homeboxserve" in said


def test_a_daemon_that_goes_away_in_mid_answer(house: FakeHouse, tmp_path: Path) -> None:
    house.turn = numbered([STARTED, TEXT, STATS])
    house.breaks_off = True
    words = "[!] daemon restarting - 418 tok safe - retry in"
    looks(tmp_path, lambda screen: told(screen, words), first=Q1.content, sizes=[(80, 24)])


@pytest.mark.parametrize("theme", ["dark", "light", "ansi"])
def test_the_themes(house: FakeHouse, tmp_path: Path, theme: str) -> None:
    house.view = view(Q1, A1)
    shown = looks(tmp_path, lambda screen: told(screen, "day"), theme=theme, styled=True, sizes=[(80, 24)])
    check(f"theme-{theme}", shown)


def test_without_colours(house: FakeHouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    house.view = view(Q1, A1)
    shown = looks(tmp_path, lambda screen: told(screen, "day"), styled=True, sizes=[(80, 24)])
    check("no-color", shown)


@pytest.mark.parametrize("command", ["/panel", "/chats"])
def test_both_sides_of_a_wide_screen_can_be_put_away(house: FakeHouse, tmp_path: Path, command: str) -> None:
    house.view = view(Q1, A1)
    shown = looks(
        tmp_path,
        lambda screen: told(screen, "Sourdough"),
        sizes=[(140, 40)],
        then=lambda screen: screen.wish(screen.wishes.command(command)),
    )["140x40"]
    assert ("HOUSE" in shown) is (command != "/panel")
    assert ("Sourdough" in shown) is (command != "/chats")
