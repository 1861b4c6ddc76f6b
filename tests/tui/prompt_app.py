"""A screen with nothing but a conversation to cover and the prompt: what comes out of the prompt is written down."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import ClassVar

from textual import events
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.pilot import Pilot
from textual.widgets import Static

from homebox.tui import pasted
from homebox.tui.prompt.chips import Chips
from homebox.tui.prompt.editor import Editor
from homebox.tui.prompt.prompt import Prompt
from homebox.tui.prompt.queued import Note

DEADLINE_S = 20.0


class PromptApp(App[None]):
    """`seen` has every message of the prompt's contract, in order."""

    CSS = "Screen { layout: vertical; } #above { height: 1fr; }"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "stop", "stop")]

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Message] = []
        self.stopped = 0
        self.went_up = 0
        self.prompt = Prompt(above=self._above)
        self.pilot: Pilot[None]

    def compose(self) -> ComposeResult:
        yield Static("\n".join(f"line {each} of the conversation" for each in range(100)), id="above")
        yield self.prompt

    def on_mount(self) -> None:
        self.prompt.focus()

    @contextmanager
    def suspend(self) -> Iterator[None]:
        yield

    def action_stop(self) -> None:
        self.stopped += 1

    def _above(self) -> bool:
        self.went_up += 1
        return True

    def _note(self, message: Message) -> None:
        self.seen.append(message)

    on_prompt_sent = on_prompt_command = on_prompt_changed = on_prompt_leave = _note
    on_prompt_drop_queued = _note

    # ---- what a test does

    def type(self, text: str) -> None:
        """Keys as they come from a terminal: all at once, whether the screen keeps up or not."""
        for character in text:
            named = {"\r": "enter", "\n": "ctrl+j", "\t": "tab", " ": "space"}
            self.post_message(events.Key(named.get(character, character), character))

    def press(self, *keys: str) -> None:
        for key in keys:
            self.post_message(events.Key(key, None))

    def paste(self, text: str) -> None:
        self.post_message(events.Paste(text))

    def sent(self) -> list[str]:
        return [each.text for each in self.seen if isinstance(each, Prompt.Sent)]

    def kinds(self) -> list[str]:
        """Everything but the drafts, by name."""
        return [type(each).__name__ for each in self.seen if not isinstance(each, Prompt.Changed)]

    def note(self) -> str:
        note = self.prompt.query_one(Note)
        return str(note.content) if note.display else ""

    def chips(self) -> str:
        chips = self.prompt.query_one(Chips)
        return str(chips.content) if chips.display else ""

    async def until(self, holds: Callable[[], object]) -> None:
        """Wait for a condition, with everything that was typed before it."""
        deadline = time.monotonic() + DEADLINE_S
        while not holds():
            assert time.monotonic() < deadline, (
                f"it did not come; seen: {self.seen}, typed: {self.prompt.draft!r}"
            )
            await asyncio.sleep(0.005)

    async def settle(self) -> None:
        """Until the prompt has had every key that was posted so far."""
        marker = asyncio.Event()
        self.call_later(lambda: self.prompt.query_one(Editor).call_later(marker.set))
        await asyncio.wait_for(marker.wait(), DEADLINE_S)


@asynccontextmanager
async def showing(width: int = 80, height: int = 24) -> AsyncIterator[PromptApp]:
    app = PromptApp()
    async with app.run_test(size=(width, height)) as pilot:
        app.pilot = pilot
        yield app


class InTerminal(PromptApp):
    """The same on a real terminal: leaving it writes what was sent, as JSON."""

    suspend = App.suspend

    def on_prompt_leave(self, message: Prompt.Leave) -> None:
        self.exit()


if __name__ == "__main__":
    pasted.install()
    app = InTerminal()
    app.run()
    print(json.dumps({"sent": app.sent()}))
