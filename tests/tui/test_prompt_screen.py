"""How the prompt looks at 80, 60 and 40 columns: a golden for each state."""

from __future__ import annotations

import asyncio

import pytest

from homebox.tui.prompt.choices import Choices
from tests.tui import golden
from tests.tui.prompt_app import PromptApp, showing

ROWS = 14  # above them there is only conversation
SIZES = ((80, 24), (60, 20), (40, 12))


async def _state(app: PromptApp, name: str) -> None:
    """Bring the prompt into one state, from the one before."""
    prompt = app.prompt
    match name:
        case "multiline":
            app.type("dear all,\nthe 漢字 are wide 👋, שלום goes the other way,\n" + "word " * 20)
            app.paste("\na\ttab")
        case "chips":
            prompt.draft = ""
            app.type("compare ")
            app.paste("line\n" * 214)
            app.type(" with ")
            app.paste("x" * 5000)
        case "commands":
            prompt.draft = ""
            app.type("/")
            await app.until(lambda: prompt.query_one(Choices).region.height)
        case "queued":
            prompt.draft = ""
            prompt.busy = True
            prompt.show_queued(["and on the second day?", "with\nlines " * 20, "third", "fourth", "fifth"])
        case "near":
            prompt.show_queued([])
            app.type("/regenrate\r")


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def test_every_state_at_every_size(size: tuple[int, int]) -> None:
    async def show() -> None:
        async with showing(*size) as app:
            await app.until(lambda: app.prompt.region.height)
            for name in ("empty", "multiline", "chips", "commands", "queued", "near"):
                await _state(app, name)
                await app.settle()
                await drawn(app)
                golden.check(f"prompt-{name}-{size[0]}", "\n".join(golden.lines(app)[-ROWS:]) + "\n")

    asyncio.run(show())


async def drawn(app: PromptApp) -> None:
    """Until two looks at the screen are the same, with everything that was asked for laid out."""
    before: list[str] = []
    while (now := golden.lines(app)) != before:
        before = now
        await app.pilot.pause()


def test_it_grows_to_ten_lines_and_to_three_on_a_small_screen() -> None:
    async def talk() -> None:
        async with showing(80, 24) as app:
            heights = []
            for _ in range(12):
                app.type("x\n")
                await app.settle()
                await drawn(app)
                heights.append(app.prompt.region.height)
            assert heights == [2, 3, 4, 5, 6, 7, 8, 9, 10, 10, 10, 10]
            await app.pilot.resize_terminal(80, 19)
            await app.until(lambda: app.prompt.region.height == 3)
            app.type("the last line")
            await app.until(lambda: golden.lines(app)[-1] == "  the last line")

    asyncio.run(talk())


def test_a_busy_prompt_says_that_the_next_message_waits() -> None:
    async def talk() -> None:
        async with showing() as app:
            app.prompt.busy = True
            await app.until(
                lambda: golden.lines(app)[-1].startswith("> the next message...  (Enter queues it")
            )
            app.prompt.busy = False
            await app.until(
                lambda: golden.lines(app)[-1].startswith("> ask something...  (Enter send, Ctrl+J")
            )

    asyncio.run(talk())
