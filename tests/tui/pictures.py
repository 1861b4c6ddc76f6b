"""What do the screens look like to somebody who has not started them? The pictures of docs/
and the page of keys, made anew.

The real screens, drawn by the real application, of a house that says the same on every run: so a picture changes only
where a screen has changed. Figures and words are that house's, not a measurement. `scripts/pictures` runs it.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from textual.app import App
from textual.pilot import Pilot

from homebox.client.commands import COMMANDS
from homebox.client.connection import Daemon
from homebox.client.settings import Screens
from homebox.tui.app import HomeboxApp
from homebox.tui.chat.screen import ChatScreen
from homebox.tui.dialogs.help import PLACES
from homebox.tui.keys import TABLE, in_words
from homebox.tui.monitor.screen import MonitorScreen
from homebox.wire import events
from homebox.wire.chats import ChatView
from tests.client.fake_daemon import FakeDaemon, numbered
from tests.tui import fake_house, golden, monitor_house
from tests.tui.fake_house import CHAT, NOON, FakeHouse

MOST_BYTES = 80_000
KEYS_PAGE = Path(__file__).parents[2] / "docs" / "keys.md"
QUESTION = "Plan three days in Lisbon with two kids, one of them rainy. And what will it cost?"
ANSWER = """\
## Day 1: Belém

- Morning: **Jerónimos** Monastery, before the queues at 10:00
- Lunch at the Time Out Market, with a kids' corner upstairs
- Ferry to Cacilhas, back at sunset

## Day 2: rain

The Oceanário is dry for four hours. What it costs:

```python
def budget(days: int, kids: int) -> int:
    return days * (120 + 45 * kids)
```

| day | for all of you |
|-----|----------------|
| 1   | 210            |
| 2   | 247            |
"""
THOUGHT = "Two kids and one rainy day. The Oceanário is indoors, and the market has something for everybody."
WRITING = [
    events.Started(queue_ms=120.0),
    events.Think(text=THOUGHT),
    events.Stats(tokens=96, tok_s=62.0, ttft_ms=410.0, ctx_used=4690, ctx_max=16384),
    events.Text(text=ANSWER, offset=0),
    events.Stats(tokens=418, tok_s=62.0, ttft_ms=410.0, ctx_used=5012, ctx_max=16384),
]
WAITING = [events.Queued(position=3, waiting=5, ahead=("dad", "leo"), eta_s=8.0)]


def still(app: App[Any], ready: Callable[[str], bool]) -> Callable[[Pilot[Any]], Any]:
    """Wait until the screen says what it should, and does not change any more."""

    async def wait(pilot: Pilot[Any]) -> None:
        deadline, seen, same = time.monotonic() + 20.0, "", 0
        while same < 5:
            assert time.monotonic() < deadline, f"the screen does not come to rest:\n{seen}"
            await asyncio.sleep(0.05)
            now = golden.styled(app)
            same = same + 1 if now == seen and ready(now) else 0
            seen = now

    return wait


async def picture(app: HomeboxApp, size: tuple[int, int], ready: Callable[[str], bool], *keys: str) -> str:
    async with app.run_test(size=size) as pilot:
        wait = still(app, ready)
        await wait(pilot)
        await pilot.press(*keys)
        await wait(pilot)
        return tidied(app.export_screenshot(title="homebox"))


def tidied(svg: str) -> str:
    """Small, and without the addresses of fonts: a picture fetches nothing from anywhere."""
    svg = re.sub(r"\s*@font-face \{.*?\}\n", "\n", svg, flags=re.DOTALL)
    svg = re.sub(r"terminal-\d+-", "t", svg).replace("&#160;", "\u00a0")
    svg = svg.replace("<svg ", '<svg xml:space="preserve" ', 1)  # some programs drop the blanks of columns
    return "\n".join(line.strip() for line in svg.splitlines() if line.strip()) + "\n"


def chat(folder: Path, size: tuple[int, int], turn: list[events.Event], ready: str, *keys: str) -> str:
    with FakeDaemon(folder / "s") as daemon:
        house = FakeHouse(daemon)
        house.view = ChatView(id=CHAT, title="Trip to Lisbon", created=NOON, updated=NOON, messages=[])
        house.turn = numbered(turn)
        client = Daemon(socket_path=folder / "s")
        at = [NOON]
        screen = ChatScreen(client, chat=CHAT, first=QUESTION, clock=lambda: at[0])
        screen.me = "anna"
        app = HomeboxApp(client, screen, Screens(theme="dark"))

        def is_ready(shown: str) -> bool:
            if ready not in shown or "GPU 74%" not in shown:
                return False
            at[0] = NOON + 9.2
            return turn is not WRITING or "9.2 s" in shown

        return asyncio.run(picture(app, size, is_ready, *keys))


def monitor(folder: Path, size: tuple[int, int], *keys: str) -> str:
    with FakeDaemon(folder / "s") as daemon:
        monitor_house.House(daemon, replace(monitor_house.NOW, model=fake_house.SNAPSHOT.model))
        client = Daemon(socket_path=folder / "s")
        app = HomeboxApp(client, MonitorScreen(client), Screens(theme="dark"))
        return asyncio.run(picture(app, size, lambda shown: "6 streams" in shown and "anna" in shown, *keys))


PICTURES: dict[str, Callable[[Path], str]] = {
    "chat": lambda folder: chat(folder, (80, 31), WRITING, "writing"),
    "chat-wide": lambda folder: chat(folder, (140, 40), WRITING, "writing"),
    "waiting": lambda folder: chat(folder, (80, 12), WAITING, "place 3 of 5"),
    "monitor": lambda folder: monitor(folder, (80, 24)),
    "monitor-wide": lambda folder: monitor(folder, (140, 40)),
    "monitor-map": lambda folder: monitor(folder, (100, 24), "m"),
}


def keys_page() -> str:
    """Every key with the name by which `[keys]` calls it."""
    page = [
        "# Keys",
        "",
        "Written by `scripts/pictures` from the table that the screens work by. `?` shows them as you have them. A row of",
        'your own in `[keys]` of `~/.config/homebox/config.toml` begins with the name: `monitor = "f5"`; several keys are',
        "separated by commas.",
    ]
    for where, heading in PLACES.items():
        page += ["", f"## {heading}", "", "| keys | what they do | name |", "|---|---|---|"]
        for key in TABLE[where]:
            pressed = ", ".join(f"`{in_words(each)}`" for each in key.keys.split(","))
            page.append(f"| {pressed} | {key.about} | `{key.id}` |")
    page += ["", "## Commands", "", "| | |", "|---|---|"]
    page += [f"| `{f'{each.name} {each.takes}'.strip()}` | {each.about} |" for each in COMMANDS]
    return "\n".join(page) + "\n"


def main(target: str) -> None:
    os.environ["TZ"] = "UTC"
    os.environ.pop("NO_COLOR", None)
    time.tzset()
    folder = Path(target)
    folder.mkdir(parents=True, exist_ok=True)
    for name, draw in PICTURES.items():
        with tempfile.TemporaryDirectory() as place:
            svg = draw(Path(place))
        assert len(svg.encode()) < MOST_BYTES, f"{name} is too large: {len(svg.encode()):,} bytes"
        (folder / f"{name}.svg").write_text(svg)
        print(f"{folder / name}.svg  {len(svg.encode()):,} bytes")
    KEYS_PAGE.write_text(keys_page())


if __name__ == "__main__":
    main(sys.argv[1])
