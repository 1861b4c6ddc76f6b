"""Which files go out with the message, and what is folded in it?

Keeps the attached files, reads a new one in a thread, and shows a chip for each and for each folded text. It knows
nothing of the text that is typed but what it is told to show.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from textual import events, work
from textual.content import Content
from textual.message import Message
from textual.style import Style
from textual.widgets import Static

from homebox.client import documents
from homebox.client.documents import Document
from homebox.client.sanitise import clean
from homebox.errors import HomeboxError
from homebox.tui.prompt.composing import Chip, glyph


class Chips(Static):
    """`[1 pasted 214 lines x] [notes.md 12.3 kB x]`: the x takes it away, the rest unfolds what can be unfolded."""

    DEFAULT_CSS = (
        "Chips { display: none; height: auto; max-height: 3; padding: 0 0 0 2; color: $text-accent; }"
    )

    @dataclass
    class Clicked(Message):
        """`key` is the mark of a folded text, or the name of a file."""

        key: str
        away: bool

    @dataclass
    class Read(Message):
        """From the thread that read a file."""

        name: str
        found: Document | HomeboxError

    @dataclass
    class Arrived(Message):
        """A file is attached, or `error` says why not."""

        error: HomeboxError | None

    def __init__(self) -> None:
        super().__init__()
        self.files: tuple[Document, ...] = ()
        self.reading: list[str] = []
        self._asked: list[
            str
        ] = []  # names in the order in which they go out, however long each takes to be read

    def attach(self, name: str, *, taken_bytes: int) -> None:
        self.reading.append(name)
        self._asked = [each for each in self._asked if each != name] + [name]
        self._read(name, taken_bytes)

    def leave_out(self, name: str) -> None:
        self.files = tuple(each for each in self.files if each.name != name)

    def replace(self, files: tuple[Document, ...]) -> None:
        """Other files; what is still being read belongs to what was there before."""
        self.files = files
        self.reading.clear()
        self._asked = [each.name for each in files]

    def show(self, folded: Mapping[str, Chip]) -> None:
        """Draw them all, with these folded texts."""
        chips = [_chip(mark, f"{glyph(mark)} {chip.label}", opens=True) for mark, chip in folded.items()]
        chips += [
            _chip(each.name, f"{Path(each.name).name} {documents.in_words(each.size_bytes)}", opens=False)
            for each in self.files
        ]
        if chips or self.display:  # at every key; to update a text lays the whole screen out
            self.display = bool(chips)
            self.update(Content(" ").join(chips))

    @work(thread=True, exit_on_error=False, group="reading")
    def _read(self, name: str, taken_bytes: int) -> None:
        try:
            found: Document | HomeboxError = documents.attach(name, taken_bytes=taken_bytes)
        except HomeboxError as error:
            found = error
        self.post_message(self.Read(name, found))

    def on_chips_read(self, event: Read) -> None:
        event.stop()
        if event.name not in self.reading:
            return
        self.reading.remove(event.name)
        if isinstance(event.found, HomeboxError):
            self.post_message(self.Arrived(event.found))
            return
        self.leave_out(event.name)  # read again, it is the newer one
        self.files = tuple(sorted((*self.files, event.found), key=lambda each: self._asked.index(each.name)))
        self.post_message(self.Arrived(None))

    def on_click(self, event: events.Click) -> None:
        meta = event.style.meta
        if "chip" in meta:
            event.stop()
            self.post_message(self.Clicked(meta["chip"], meta["away"]))


def _chip(key: str, label: str, *, opens: bool) -> Content:
    shown = Content(f"[{clean(label)}").stylize(Style.from_meta({"chip": key, "away": not opens}))
    return shown + Content(" x]").stylize(Style.from_meta({"chip": key, "away": True}))
