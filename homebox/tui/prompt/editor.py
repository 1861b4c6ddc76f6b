"""What does a key do to the text that is being typed?

A TextArea that knows chips as single marks and asks the prompt, at once and in order, what the keys mean that are not
text: a key that is handled later would meet text that was typed after it. It knows no files, commands and messages.
"""

from __future__ import annotations

from typing import ClassVar, Protocol

from rich.text import Text
from textual import events
from textual.binding import BindingType
from textual.geometry import Size
from textual.screen import Screen
from textual.widgets import TextArea

from homebox.client.sanitise import clean
from homebox.tui.keys import bindings
from homebox.tui.prompt.composing import glyph, is_mark

MAX_LINES, MAX_LINES_IN_SMALL, SMALL_ROWS = 10, 3, 20
_INVITATIONS = {
    False: (
        "ask something...  (Enter send, Ctrl+J newline, / commands, @ file)",
        "ask something...  (Enter send, / commands)",
        "ask something...",
    ),
    True: (
        "the next message...  (Enter queues it, Esc stops the answer)",
        "the next message...  (Enter queues)",
        "the next message...",
    ),
}


class Hands(Protocol):
    """What the text asks of the prompt around it. Those that return a truth say whether that was all the key does."""

    def edited(self) -> None: ...
    def entered(self) -> None: ...
    def pasted(self, text: str) -> None: ...
    def takes(self, key: str) -> bool: ...
    def at_edge(self, by: int) -> bool: ...
    def erased_at_start(self) -> bool: ...
    def tab_after(self, mark: str) -> bool: ...
    def edit_outside(self) -> None: ...
    def leaves(self) -> bool: ...


class Editor(TextArea):
    """Grows with its text, to ten lines; to three on a small terminal."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings("prompt")]
    DEFAULT_CSS = """
    Editor {
        width: 1fr;
        height: auto;
        border: none;
        padding: 0;
        background: transparent;
        scrollbar-size-vertical: 1;
        &:focus { border: none; }
        & .text-area--placeholder { color: $text-muted; }
    }
    """

    def __init__(self, hands: Hands) -> None:
        self._hands, self._busy, self._in_small = hands, False, False
        super().__init__(compact=True, highlight_cursor_line=False, tab_behavior="focus")
        self.cursor_blink, self.match_cursor_bracket = False, False

    # ---- drawing

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        most = MAX_LINES_IN_SMALL if self._in_small else MAX_LINES
        return min(super().get_content_height(container, viewport, width), most)

    def on_mount(self) -> None:
        # A terminal that only gets lower changes nothing of ours, so nobody asks for our height again.
        self.screen.screen_layout_refresh_signal.subscribe(self, self._fit, immediate=True)

    def _fit(self, screen: Screen[object]) -> None:
        in_small = self.app.size.height < SMALL_ROWS
        if in_small != self._in_small:
            self._in_small = in_small
            self.refresh(layout=True)
            self.call_after_refresh(self.scroll_cursor_visible)

    def get_line(self, line_index: int) -> Text:
        line = super().get_line(line_index)
        for at, character in enumerate(line.plain):
            if is_mark(character):
                chip = Text(glyph(character), "reverse bold")
                line = Text.assemble(line[:at], chip, line[at + 1 :], end="", no_wrap=True)
        return line

    def invite(self, *, busy: bool) -> None:
        """What stands there while nothing is typed, as much of it as there is room for."""
        self._busy = busy
        width, lines = self.content_size.width, _INVITATIONS[busy]
        self.placeholder = next((line for line in lines if len(line) < width), lines[-1])

    def on_resize(self) -> None:
        self.invite(busy=self._busy)
        self.call_after_refresh(self.scroll_cursor_visible)

    # ---- text that comes in

    def update_suggestion(self) -> None:
        self._hands.edited()

    async def _on_paste(self, event: events.Paste) -> None:
        event.prevent_default()
        event.stop()
        self._hands.pasted(event.text)

    async def _on_key(self, event: events.Key) -> None:
        focused = self.screen.focused
        if focused is not None and focused is not self:  # a key before this one has led elsewhere
            event.prevent_default()
            event.stop()
            again = events.Key(event.key, event.character)
            again._set_forwarded()
            focused.post_message(again)
        elif await self._is_handled(event):
            event.prevent_default()
            event.stop()
        elif event.key == "enter":
            event.prevent_default()  # not a line break, whatever key sends

    async def _is_handled(self, event: events.Key) -> bool:
        if self._hands.takes(event.key):
            return True
        if event.key == "backspace" and self.selection.end == (0, 0) and self.selection.is_empty:
            return self._hands.erased_at_start()
        if event.key == "tab":
            return self._hands.tab_after(self.before_cursor[-1:])
        if not event.is_printable:
            return await self._is_bound(event.key) or self._insert_unprintable(event.character)
        return False

    async def _is_bound(self, key: str) -> bool:
        """Keys of the text are carried out here and now: by way of the app they would come after what is typed next."""
        found = self.screen.active_bindings.get(key)
        if found is None or found.node is not self:
            return False
        await self.run_action(found.binding.action)
        return True

    def _insert_unprintable(self, character: str | None) -> bool:
        """Joiners of emoji and Persian, wide spaces: Python calls them unprintable, people type them."""
        if not character or character in "\t\n" or not clean(character) or is_mark(character):
            return False
        self._replace_via_keyboard(character, *self.selection)
        return True

    @property
    def before_cursor(self) -> str:
        """The line up to the cursor."""
        row, column = self.cursor_location
        return self.document.get_line(row)[:column]

    def put(self, typed: str, *, at_first_line: bool = False) -> None:
        """Another text, with the cursor at its end, or at the end of its first line."""
        self.load_text(typed)
        self.move_cursor((0, len(self.document.get_line(0))) if at_first_line else self.document.end)

    def replace_before(self, start: int, text: str) -> None:
        """Put `text` where the line has had something since column `start`."""
        row, column = self.cursor_location
        self.replace(text, (row, start), (row, column), maintain_selection_offset=False)

    def take_out(self, mark: str, instead: str = "") -> None:
        """Every place of a mark in the text."""
        for row in reversed(range(self.document.line_count)):
            line = self.document.get_line(row)
            while (at := line.rfind(mark)) >= 0:
                self.replace(instead, (row, at), (row, at + 1))
                line = line[:at]

    # ---- keys

    def action_send(self) -> None:
        self._hands.entered()

    def action_newline(self) -> None:
        self._replace_via_keyboard("\n", *self.selection)

    def action_editor(self) -> None:
        self._hands.edit_outside()

    def action_leave_if_empty(self) -> None:
        if not self._hands.leaves():
            self.action_delete_right()

    def action_cursor_up(self, select: bool = False) -> None:
        if select or not self._is_at_edge(-1):
            super().action_cursor_up(select)

    def action_cursor_down(self, select: bool = False) -> None:
        if select or not self._is_at_edge(1):
            super().action_cursor_down(select)

    def _is_at_edge(self, by: int) -> bool:
        where = self.navigator
        at_edge = where.is_first_wrapped_line if by < 0 else where.is_last_wrapped_line
        return at_edge(self.cursor_location) and self._hands.at_edge(by)
