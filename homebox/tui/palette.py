"""What can be done here, found by typing a few letters of it?

One source for textual's command palette: every action of the key table with the key that this person has for it, every
command, every theme, the newest conversations. An action runs where it is defined, as if its key had been pressed
before the palette opened; what no widget there can do, and everything else, goes to the screen below as a message.
Titles are somebody's words: they are text here, never markup.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, cast, runtime_checkable

from textual.binding import Binding
from textual.command import DiscoveryHit, Hit, Hits, Provider
from textual.content import Content
from textual.dom import DOMNode
from textual.message import Message

from homebox.client.commands import COMMANDS, Command
from homebox.tui import themes
from homebox.tui.keys import TABLE, Key, in_words
from homebox.tui.lists import rows as looks
from homebox.tui.lists.search import day
from homebox.wire.chats import ChatRow

RECENT = 20
_OWN = "palette"  # the key that opened it is not offered again


@dataclass(frozen=True)
class Source:
    """What a screen has to offer besides the tables."""

    remaps: Mapping[str, str] = field(default_factory=dict)
    chats: Sequence[ChatRow] = ()


@runtime_checkable
class Offers(Protocol):
    """What the screen below the palette may be. One that is not has the tables alone."""

    def palette_source(self) -> Source: ...


@dataclass(frozen=True)
class Entry:
    """`name` is what is shown and searched, `about` stands below it."""

    name: str
    about: str
    run: Callable[[], object]


class Everything(Provider):
    """Put it into `App.COMMANDS`, alone: textual's own commands are not the product's."""

    @dataclass
    class ActionChosen(Message):
        """An action that nothing with the focus can do, such as one of a message where none is selected."""

        key: Key

    @dataclass
    class CommandChosen(Message):
        command: Command

    @dataclass
    class ChatChosen(Message):
        chat_id: str

    @dataclass
    class ThemeChosen(Message):
        """A name that `themes.named` knows."""

        name: str

    async def discover(self) -> Hits:
        for entry in self.entries():
            yield DiscoveryHit(_plain(entry.name), entry.run, entry.name, _plain(entry.about))

    async def search(self, query: str) -> Hits:
        words = query.casefold().split()
        for entry in self.entries():
            if score := rank(entry, words):
                shown = Content(entry.name)
                if self.match_style:
                    shown = shown.highlight_regex(_any_of(words), style=self.match_style)
                yield Hit(score, shown, entry.run, entry.name, _plain(entry.about))

    def entries(self) -> Iterator[Entry]:
        """All of it; what is meant most often comes first."""
        source = self.screen.palette_source() if isinstance(self.screen, Offers) else Source()
        for place, keys in (("", TABLE["screen"]), (", on a message", TABLE["message"])):
            for key in keys:
                if key.id != _OWN:
                    pressed = in_words(source.remaps.get(key.id, key.keys))
                    yield Entry(key.about, f"{pressed}{place}", partial(self._act, key))
        for command in COMMANDS:
            yield Entry(f"{command.name} {command.takes}".strip(), command.about, self._say(command))
        now = time.time()
        for row in source.chats[:RECENT]:
            at = day(row.updated, now)
            yield Entry(looks.title(row), f"conversation, {at}", self._tell(self.ChatChosen(row.id)))
        for name in themes.names():
            yield Entry(f"theme {name}", "how the screen looks", self._tell(self.ThemeChosen(name)))

    def _say(self, command: Command) -> Callable[[], object]:
        return self._tell(self.CommandChosen(command))

    def _tell(self, message: Message) -> Callable[[], object]:
        return partial(self.screen.post_message, message)

    async def _act(self, key: Key) -> None:
        """Run it where its key is bound, from what has the focus outward. A method of that name is not enough: an
        editor has a `copy` of its own."""
        for node in self.focused.ancestors_with_self if self.focused else (self.screen, self.app):
            if _binds(node, key):
                await self.app.run_action(key.action, default_namespace=node)
                return
        self.screen.post_message(self.ActionChosen(key))


def _binds(node: DOMNode, key: Key) -> bool:
    own = (each for cls in type(node).__mro__ for each in cls.__dict__.get("BINDINGS", ()))
    return any(isinstance(each, Binding) and each.id == key.id for each in own)


def rank(entry: Entry, words: Sequence[str]) -> float:
    """How well these words fit, 0 where one is missing: at the beginning of the name, in it, or in what is said of it."""
    name, about = entry.name.casefold(), entry.about.casefold()
    if not words or not all(word in name or word in about for word in words):
        return 0.0
    if name.lstrip("/").startswith(words[0].lstrip("/")):
        return 1.0
    return 0.7 if all(word in name for word in words) else 0.4


def _plain(words: str) -> str:
    """What textual would read as markup, as the text that it is."""
    return cast(str, Content(words))


def _any_of(words: Sequence[str]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, words)), re.IGNORECASE)
