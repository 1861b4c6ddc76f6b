"""A screen with nothing but a conversation to cover and the prompt: what comes out of the prompt is written down."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widgets import Static

from homebox.tui.prompt.prompt import Prompt


class PromptApp(App[None]):
    """`seen` has every message of the prompt's contract, in order."""

    CSS = "Screen { layout: vertical; } #above { height: 1fr; }"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "stop", "stop")]

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Message] = []
        self.stopped = 0
        self.prompt = Prompt()

    def compose(self) -> ComposeResult:
        yield Static("the conversation\n" * 100, id="above")
        yield self.prompt

    def on_mount(self) -> None:
        self.prompt.focus()

    @contextmanager
    def suspend(self) -> Iterator[None]:
        yield

    def action_stop(self) -> None:
        self.stopped += 1

    def _note(self, message: Message) -> None:
        self.seen.append(message)

    on_prompt_sent = on_prompt_command = on_prompt_changed = on_prompt_leave = _note
    on_prompt_select_last = on_prompt_drop_queued = _note
