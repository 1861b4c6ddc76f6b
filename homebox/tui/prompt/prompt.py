from dataclasses import dataclass

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.message import Message
from textual.widgets import TextArea

from homebox.client.commands import Command, parse


class _Area(TextArea):
    async def _on_key(self, event):
        if event.key == "enter":
            event.stop()
            event.prevent_default()
            self.parent.send()
        else:
            await super()._on_key(event)


class Prompt(Vertical):
    DEFAULT_CSS = "Prompt { height: auto; } Prompt TextArea { height: 3; }"

    @dataclass
    class Sent(Message):
        text: str

    @dataclass
    class Command(Message):
        command: Command
        rest: str

    @dataclass
    class Changed(Message):
        text: str

    class Leave(Message):
        pass

    class SelectLast(Message):
        pass

    class DropQueued(Message):
        pass

    def compose(self) -> ComposeResult:
        yield _Area()

    busy = False

    @property
    def draft(self):
        return self.query_one(TextArea).text

    @draft.setter
    def draft(self, text):
        self.query_one(TextArea).text = text

    def clear(self):
        self.draft = ""

    def remember(self, texts):
        pass

    def show_queued(self, texts):
        pass

    def add_chip(self, label, text):
        pass

    async def attach(self, path):
        pass

    def send(self):
        text = self.draft
        if found := parse(text, on_screen=True):
            self.post_message(self.Command(*found))
        elif text.strip():
            self.post_message(self.Sent(text))
        self.clear()

    def focus(self, scroll_visible=True):
        self.query_one(TextArea).focus()
        return self
