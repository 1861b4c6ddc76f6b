"""Which completions are offered above the prompt, and which of them is pointed at?

A list that floats over the conversation and moves nothing. It never has the focus: keys stay with the text, and the
prompt moves the highlight. Commands are looked up at once; files in a thread, whose findings count only while they are
still asked for. It does not know what choosing does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from textual import work
from textual.content import Content
from textual.message import Message
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from homebox.client import commands
from homebox.client.sanitise import clean
from homebox.tui.prompt import files
from homebox.tui.prompt.composing import Kind, Token

MAX_ROWS = 8


@dataclass(frozen=True)
class Choice:
    """`value` is what is chosen; `about` stands beside it."""

    value: str
    about: str = ""


class Choices(OptionList):
    """Hidden while there is nothing to choose."""

    can_focus = False
    DEFAULT_CSS = """
    Choices {
        display: none;
        overlay: screen;
        constrain: inside;
        max-height: 100vh;
        width: 1fr;
        border: none;
        padding: 0 1;
        background: $panel;
        scrollbar-size-vertical: 1;
        & > .option-list--option { padding: 0; }
        & > .option-list--option-highlighted { background: $primary; color: $foreground; text-style: bold; }
    }
    """

    @dataclass
    class Found(Message):
        """From the thread: `names` is the walk it used, to be used again for the same word."""

        token: Token
        names: tuple[str, ...]
        values: list[str]

    def __init__(self) -> None:
        super().__init__(markup=False)
        self._rows: Sequence[Choice] = ()
        self._token: Token | None = None
        self._dismissed: Token | None = None
        self._names: tuple[str, ...] | None = None
        self._room = 1

    @property
    def open(self) -> bool:
        return bool(self._rows)

    @property
    def token(self) -> Token | None:
        """What is being completed."""
        return self._token

    @property
    def current(self) -> Choice:
        """The highlighted one. Only while it is open."""
        return self._rows[self.highlighted or 0]

    def look(self, token: Token | None, *, room: int) -> None:
        """Offer what completes this, in at most `room` lines. A list that was closed stays so for the same word."""
        if token == self._token:
            return
        self._token, self._room = token, room
        if token is None or not (self._dismissed and _same_word(token, self._dismissed)):
            self._dismissed = None
        if token is None or self._dismissed:
            self._offer(())
            self._names = None
        elif token.kind is Kind.COMMAND:
            self._offer(_commands(token.query))
        else:
            self._find(token, self._names)

    def dismiss(self) -> None:
        """Closed by the person."""
        self._dismissed = self._token
        self._offer(())

    @work(thread=True, exclusive=True, exit_on_error=False, group="files")
    def _find(self, token: Token, names: tuple[str, ...] | None) -> None:
        if names is None:
            names, _ = files.walk(Path.cwd())
        self.post_message(self.Found(token, names, files.find(token.query, names)))

    def on_choices_found(self, found: Found) -> None:
        found.stop()
        if self._token is not None and found.token.start == self._token.start:
            self._names = found.names
        if found.token == self._token and not self._dismissed:
            self._offer([Choice(value) for value in found.values])

    def _offer(self, rows: Sequence[Choice]) -> None:
        if rows == self._rows:
            return
        self._rows = rows
        height = min(len(rows), MAX_ROWS, max(self._room, 1))
        wide = max((Content(clean(row.value)).cell_length for row in rows), default=0)
        width = max(self.app.size.width - 4, 10)  # the rest is padding and scrollbar
        self.set_options(Option(_line(row, wide).truncate(width, ellipsis=True)) for row in rows)
        self.styles.height, self.styles.offset = height, (0, -height)
        self.highlighted = 0 if rows else None
        self.display = bool(rows)

    def move(self, by: int) -> None:
        """To another one; past the end to the beginning."""
        self.highlighted = ((self.highlighted or 0) + by) % len(self._rows)


def _line(row: Choice, wide: int) -> Content:
    name = Content(clean(row.value).replace("\n", " "))
    if not row.about:
        return name
    return Content.assemble(name, " " * (wide - name.cell_length + 2), (row.about, "dim"))


def _commands(word: str) -> list[Choice]:
    known = commands.known(on_screen=True)
    meant = [each for each in known if each.name.startswith(word)]
    meant = meant or [each for each in known if len(word) > 2 and word[1:] in each.name]
    return [Choice(each.name, f"{each.takes}  {each.about}" if each.takes else each.about) for each in meant]


def _same_word(one: Token, other: Token) -> bool:
    return (one.kind, one.start) == (other.kind, other.start)
