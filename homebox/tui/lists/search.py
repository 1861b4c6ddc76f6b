"""Where did we speak of this?

A line to type into and what was found below it. Typing asks once the fingers rest; an answer to something that no
longer stands in the line is ignored. Which of the found words are set off follows from what was typed: the marks that
come with a snippet are brackets, and a text may have brackets of its own. It speaks with nobody.
"""

from __future__ import annotations

import re
import time
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

from rich.cells import cell_len
from textual import on
from textual.binding import Binding, BindingType
from textual.content import Content, Span
from textual.css.styles import RulesMap
from textual.message import Message
from textual.strip import Strip
from textual.style import Style
from textual.timer import Timer
from textual.visual import RenderOptions, Visual
from textual.widget import Widget
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from homebox.client.sanitise import clean
from homebox.errors import HomeboxError
from homebox.tui.dialogs.box import Box
from homebox.tui.lines import both_ends, cut, line
from homebox.tui.lists.filter import Line
from homebox.tui.lists.rows import UNTITLED
from homebox.wire.chats import Found

REST_S = 0.15
_MARKED = re.compile(r"\[(\w(?:[^\[\]]{0,200}\w)?)\]")
_SAID_BY = {"user": "you: ", "assistant": "answer: "}
_MOST = 50  # the daemon gives the best so many
_NO_WORD = "type a word of what was said"


def words_of(text: str) -> list[str]:
    """The words in it as the search sees them: without case and accents."""
    plain = "".join(c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c))
    return re.findall(r"\w+", plain.casefold())


def unmarked(snippet: str, query: str) -> tuple[str, list[tuple[int, int]]]:
    """The snippet without its marks, and where the words that were looked for stand in it."""
    *whole, beginning = words_of(query) or [""]
    text, spans, at = "", [], 0
    for found in _MARKED.finditer(snippet):
        inner = words_of(found[1])
        if inner and all(word in whole or (beginning and word.startswith(beginning)) for word in inner):
            text += snippet[at : found.start()]
            spans.append((len(text), len(text) + len(found[1])))
            text += found[1]
            at = found.end()
    return text + snippet[at:], spans


@dataclass(frozen=True)
class Hit(Visual):
    """Two lines: whose conversation of which day, and the words around what was found."""

    found: Found
    query: str
    now: float

    def render_strips(
        self, width: int, height: int | None, style: Style, options: RenderOptions
    ) -> list[Strip]:
        before = "  " + _SAID_BY.get(self.found.role or "", "title: ")
        text, spans = unmarked(line(self.found.snippet), self.query)
        hidden = _out_of_sight(text, spans, width - len(before))
        shown = cut(before + ("…" if hidden else "") + text[hidden:], width)
        shift = len(before) + bool(hidden) - hidden
        marks = [
            Span(start + shift, min(end + shift, len(shown)), Style(bold=True, underline=True))
            for start, end in spans
            if start + shift < len(shown)
        ]
        head = both_ends(line(self.found.title) or UNTITLED, day(self.found.updated, self.now), width)
        lines = (Content(head), Content(shown, marks))
        return [strip for each in lines for strip in each.render_strips(width, 1, style, options)]

    def get_optimal_width(self, rules: RulesMap, container_width: int) -> int:
        return container_width

    def get_height(self, rules: RulesMap, width: int) -> int:
        return 2


def _out_of_sight(text: str, spans: Sequence[tuple[int, int]], cells: int) -> int:
    """How many characters are left out at the beginning, so that the first found word can be seen."""
    if not spans or cell_len(text[: spans[0][1]]) < cells:
        return 0
    return max(0, spans[0][0] - cells // 4)


def day(at: float, now: float) -> str:
    """The time of today, the day of this year, else the whole date."""
    when, today = datetime.fromtimestamp(at), datetime.fromtimestamp(now)
    if when.date() == today.date():
        return when.strftime("%H:%M")
    return when.strftime("%d %b" if when.year == today.year else "%Y-%m-%d")


class SearchScreen(Box[None]):
    """Says `Asked` and `Chosen` to the screen below. `show` and `fail` answer what was asked."""

    DEFAULT_CSS = """
    SearchScreen { align: center top; }
    SearchScreen > .box { width: 90; height: 100%; }
    SearchScreen OptionList { height: 1fr; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+r", "close", "close", id="search", priority=True)  # what opened it
    ]

    @dataclass
    class Asked(Message):
        query: str

    @dataclass
    class Chosen(Message):
        """`message_id` is None where the words are in the title."""

        chat_id: str
        message_id: str | None

    def __init__(self, query: str = "", *, clock: Callable[[], float] = time.time) -> None:
        super().__init__("search all conversations")
        self._clock = clock
        self._line = Line(query, placeholder="words; the last may be a beginning", compact=True)
        self._said = Static(_NO_WORD, markup=False, classes="hint")
        self._list = OptionList(markup=False, compact=True)
        self._found: list[Found] = []
        self._resting: Timer | None = None
        self._asked: str | None = None

    def content(self) -> Iterable[Widget]:
        return self._line, self._said, self._list

    def on_mount(self) -> None:
        self._list.can_focus = False  # arrows work from the line
        self._line.focus()

    @property
    def query_text(self) -> str:
        return self._line.value.strip()

    def show(self, query: str, found: Sequence[Found]) -> None:
        """What was found for `query`; nothing happens if something else is typed by now."""
        if query != self.query_text:
            return
        self._found = list(found)
        now = self._clock()
        self._list.set_options(Option(Hit(each, query, now), id=str(n)) for n, each in enumerate(found))
        self._list.highlighted = 0 if found else None
        if len(found) >= _MOST:
            self._say(f"the best {len(found)}; another word finds fewer")
        else:
            self._say(f"{len(found)} found" if found else f"nothing was found for: {query}")

    def fail(self, query: str, error: HomeboxError) -> None:
        """Why there is no answer to `query`."""
        if query == self.query_text:
            self._clear(f"{error.message}. {error.hint or ''}".rstrip())

    def _say(self, words: str) -> None:
        self._said.update(clean(words))

    def _clear(self, words: str) -> None:
        self._found = []
        self._list.clear_options()
        self._say(words)

    def _tell(self, message: Message) -> None:
        stack = self.app.screen_stack
        stack[stack.index(self) - 1].post_message(message)

    @on(Input.Changed)
    def _typed(self, event: Input.Changed) -> None:
        event.stop()
        if self._resting:
            self._resting.stop()
        if not words_of(self.query_text):
            self._asked = None
            self._clear(_NO_WORD)
        elif self.query_text != self._asked:
            self._resting = self.set_timer(REST_S, self._ask)

    def _ask(self) -> None:
        self._asked = self.query_text
        self._say("looking ...")
        self._tell(self.Asked(self._asked))

    @on(Line.Moved)
    def _moved(self, event: Line.Moved) -> None:
        event.stop()
        (self._list.action_cursor_down if event.by > 0 else self._list.action_cursor_up)()

    @on(Input.Submitted)
    def _entered(self, event: Input.Submitted) -> None:
        event.stop()
        self._list.action_select()

    @on(OptionList.OptionSelected)
    def _selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        chosen = self._found[event.option_index]
        self._tell(self.Chosen(chosen.chat, chosen.message))
        self.dismiss(None)
