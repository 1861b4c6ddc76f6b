"""Views in a real app without a terminal, and waiting until what they hold is on its screen."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from textual.app import App
from textual.pilot import Pilot

from homebox.tui.answer.lines import Lines
from tests.tui import golden

Story = Callable[[Pilot[None]], Awaitable[None]]


def run(app: App[None], story: Story, size: tuple[int, int] = (60, 30)) -> None:
    async def go() -> None:
        async with app.run_test(size=size) as pilot:
            await story(pilot)

    asyncio.run(go())


async def until(pilot: Pilot[None], condition: Callable[[], bool], within_s: float = 20) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come to be"
        await pilot.pause(0.01)


async def painted(pilot: Pilot[None], *views: Lines) -> None:
    """Every view has the place it needs, and what is seen of it is what it holds."""

    def is_painted() -> bool:
        screen = golden.lines(pilot.app)
        for view in views:
            seen = screen[view.region.y : view.region.bottom]
            rows = [view.render_line(y).text.rstrip() for y in range(view.height)]
            if view.size.height != view.height or any(
                row not in line for line, row in zip(seen, rows, strict=False)
            ):
                return False
        return True

    await until(pilot, is_painted)
