"""What does a person want to say next?

The text, its chips, its completions and what waits behind it, as one widget. What comes out of it are messages; it
asks nobody and sends nothing. Everything is decided at the key, in the order of the keys; only files are looked for and
read in threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from textual import on
from textual.app import ComposeResult
from textual.message import Message
from textual.reactive import reactive
from textual.timer import Timer
from textual.widgets import OptionList, Static, TextArea

from homebox.client import commands, documents
from homebox.errors import HomeboxError, UsageError
from homebox.tui import external
from homebox.tui.bare import Horizontal, Vertical
from homebox.tui.prompt import composing
from homebox.tui.prompt.chips import Chips
from homebox.tui.prompt.choices import Choice, Choices
from homebox.tui.prompt.composing import Chip, Draft, Kind
from homebox.tui.prompt.editor import Editor
from homebox.tui.prompt.history import History
from homebox.tui.prompt.queued import Note, Queued

DRAFT_AFTER_S = 0.5


class Prompt(Vertical):
    """Mounted once, at the foot of the screen. `busy`: an answer is being written, and a message would wait."""

    DEFAULT_CSS = """
    Prompt {
        height: auto;
        & > Horizontal { height: auto; }
        & .prompt--sign { width: 2; height: 1; color: $text-accent; }
    }
    """

    busy = reactive(False)

    @dataclass
    class Sent(Message):
        """The whole message as it goes out: what is folded unfolded, files below the words."""

        text: str

    @dataclass
    class Command(Message):
        command: commands.Command
        rest: str

    @dataclass
    class Changed(Message):
        """What would go out now, for a draft that is kept elsewhere; at most twice a second."""

        text: str

    @dataclass
    class Leave(Message):
        """Ctrl-D where nothing is typed."""

    @dataclass
    class DropQueued(Message):
        """Esc where nothing is typed: the message that would come last is not to be sent."""

    def __init__(
        self,
        *,
        above: Callable[[], bool] = lambda: False,
        id: str | None = None,
        classes: str | None = None,
    ) -> None:
        """`above`: Up where nothing is typed. It gives the keys to what is above at once, or says that there is nothing."""
        super().__init__(id=id, classes=classes)
        self._above = above
        self._history = History()
        self._folded: dict[str, Chip] = {}
        self._send_once_read = False
        self._told = ""
        self._telling: Timer | None = None
        self._text, self._choices, self._queued = Editor(self), Choices(), Queued()
        self._chips, self._note = Chips(), Note()

    def compose(self) -> ComposeResult:
        yield self._choices
        yield self._queued
        yield self._chips
        with Horizontal():
            yield Static("> ", classes="prompt--sign", markup=False)
            yield self._text
        yield self._note

    # ---- what the screen may ask for

    @property
    def draft(self) -> str:
        """All that would go out now, as text."""
        return self._now().whole

    @draft.setter
    def draft(self, text: str) -> None:
        self._told = text
        self._put(Draft.of(text))

    @property
    def selected(self) -> str:
        """What is selected in it, for copying."""
        return composing.Draft(self._text.selected_text, self._folded).words

    def clear(self) -> None:
        """Empty it; Up has it back."""
        self._history.add(self._now(), cleared=True)
        self._put(Draft())

    def attach(self, path: str) -> None:
        """Send this file's text below the words; why that is not possible is said."""
        self._chips.attach(path, taken_bytes=documents.weight_bytes(self.draft))

    def add_chip(self, label: str, text: str) -> None:
        """Put a text where the cursor is, folded. What is to stand apart from it must be so in the text."""
        mark = composing.new_mark(self._folded)
        self._folded[mark] = Chip(label, composing.tidy(text)[0])
        self._text.replace(mark, *self._text.selection, maintain_selection_offset=False)

    def remember(self, texts: Iterable[str]) -> None:
        """The person's own messages of the conversation that is shown, oldest first."""
        self._history.remember(texts)

    def show_queued(self, texts: Iterable[str]) -> None:
        """The messages that go out once the answer is there."""
        self._queued.show(list(texts))

    def say(self, text: str) -> None:
        """One note below the text, until something is typed."""
        self._note.show(text)

    def focus(self, scroll_visible: bool = True) -> Prompt:
        """At once, so that the next key is typed; textual's own does it later."""
        self.screen.set_focus(self._text, scroll_visible)
        return self

    # ---- what the text asks for

    def edited(self) -> None:
        self._send_once_read = False
        self.say("")
        self._look_for_completions()
        draft = self._now()
        self._chips.show({mark: draft.folded[mark] for mark in draft.marks})
        if self._telling is None:
            self._telling = self.set_timer(DRAFT_AFTER_S, self._tell)

    def entered(self) -> None:
        choices, draft = self._choices, self._now()
        if choices.open and choices.current.value != draft.typed:
            self._choose(choices.current)
        elif self._chips.reading:
            self._send_once_read = True
            self.say(f"reading {self._chips.reading[0]}; it goes out once that is done")
        elif draft.whole.strip() and (command := commands.parse(draft.words, on_screen=True)):
            self._history.add(Draft(draft.typed, draft.folded))
            self._put(Draft(attached=draft.attached))
            self.post_message(self.Command(*command))
        elif near := commands.near(draft.words, on_screen=True):
            self.say(
                f"there is no command {draft.words.strip()}; did you mean {near}? (a space before it sends it as text)"
            )
        elif draft.whole.strip():
            self._send(draft)

    def pasted(self, text: str) -> None:
        text, left_out = composing.tidy(text)
        if composing.folds(text):
            chip = composing.pasted(text)
            self.add_chip(chip.label, chip.text)
            self.say(f"{chip.label}: sent in full. Tab unfolds it, Backspace takes it out")
        elif text:
            self._text.replace(text, *self._text.selection, maintain_selection_offset=False)
            self.call_after_refresh(self._text.scroll_cursor_visible)  # once it has grown
        if left_out:
            self.say(f"{left_out:,} control characters were left out of the paste")

    def takes(self, key: str) -> bool:
        choices = self._choices
        if not choices.open:
            if key == "escape" and self._queued.texts and self._now().empty:
                self.post_message(self.DropQueued())
                return True
            return False
        if key in ("up", "down"):
            choices.move(-1 if key == "up" else 1)
        elif key == "tab":
            self._choose(choices.current)
        elif key == "escape":
            choices.dismiss()
        else:
            return False
        return True

    def at_edge(self, by: int) -> bool:
        now = self._now()
        if by < 0 and now.empty and not self._history.has_cleared and self._above():
            return True
        found = self._history.step(by, now)
        if found is not None:
            self._put(found, at_first_line=by < 0)
        return found is not None

    def erased_at_start(self) -> bool:
        files = self._chips.files
        if files:
            self._leave_out(files[-1].name)
        return bool(files)

    def tab_after(self, mark: str) -> bool:
        if mark in self._folded:
            self._unfold(mark)
        return mark in self._folded

    def edit_outside(self) -> None:
        """The text in the person's own editor; chips are short words there, and chips again afterwards."""
        draft = self._now()
        plain, tokens = draft.as_plain()
        try:
            after, left_out = composing.tidy(external.edit(plain, self.app))
        except UsageError as error:
            self._say_error(error)
            return
        self._put(draft.from_plain(after, tokens))
        if left_out:
            self.say(f"{left_out:,} control characters were left out")

    def leaves(self) -> bool:
        if self._now().empty:
            self.post_message(self.Leave())
            return True
        return False

    # ---- what happens around it

    def watch_busy(self) -> None:
        self._text.invite(busy=self.busy)

    @on(TextArea.SelectionChanged)
    def _cursor_moved(self, event: TextArea.SelectionChanged) -> None:
        event.stop()
        self._look_for_completions()

    @on(TextArea.Changed)
    def _already_seen(self, event: TextArea.Changed) -> None:
        event.stop()

    @on(OptionList.OptionSelected)
    def _clicked_choice(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self._choose(self._choices.current)

    @on(Chips.Clicked)
    def _clicked_chip(self, event: Chips.Clicked) -> None:
        event.stop()
        if event.key not in self._folded:
            self._leave_out(event.key)
        elif event.away:
            self._text.take_out(event.key)
        else:
            self._unfold(event.key)

    @on(Chips.Arrived)
    def _file_arrived(self, event: Chips.Arrived) -> None:
        event.stop()
        sends = self._send_once_read and event.error is None
        self.edited()
        if event.error is not None:
            self._say_error(event.error)
        elif sends:
            self.entered()

    # ---- inside

    def _now(self) -> Draft:
        return Draft(self._text.text, self._folded, self._chips.files)

    def _put(self, draft: Draft, *, at_first_line: bool = False) -> None:
        self._folded = dict(draft.folded)
        self._chips.replace(draft.attached)
        self._text.put(draft.typed, at_first_line=at_first_line)

    def _send(self, draft: Draft) -> None:
        text = draft.whole
        has_bytes = documents.weight_bytes(text)
        if has_bytes > documents.MAX_MESSAGE_BYTES:
            self.say(
                f"this message has {documents.in_words(has_bytes)}; the daemon takes"
                f" {documents.in_words(documents.MAX_MESSAGE_BYTES)}. Take something out of it."
            )
            return
        self._history.add(draft)
        self._put(Draft())
        self.post_message(self.Sent(text))

    def _choose(self, choice: Choice) -> None:
        token = self._choices.token
        assert token is not None
        if token.kind is Kind.COMMAND:
            takes = next(each.takes for each in commands.COMMANDS if each.name == choice.value)
            self._text.replace_before(token.start, choice.value + (" " if takes else ""))
        elif choice.value.endswith("/"):
            at = "@" if self._text.before_cursor[token.start :].startswith("@") else ""
            self._text.replace_before(token.start, at + choice.value)
        else:
            self._text.replace_before(
                0 if self._text.before_cursor.startswith("/attach ") else token.start, ""
            )
            self.attach(choice.value)

    def _look_for_completions(self) -> None:
        row = self._text.cursor_location[0]
        room = self.region.y if self.region.y else self.app.size.height - self.region.height
        self._choices.look(composing.token_at(row, self._text.before_cursor), room=room)

    def _unfold(self, mark: str) -> None:
        chip = self._folded[mark]
        if composing.can_unfold(chip.text):
            self._text.take_out(mark, chip.text)
        else:
            self.say(f"{chip.label}: too long to be edited here. It is sent in full; the x takes it out.")

    def _leave_out(self, name: str) -> None:
        self._chips.leave_out(name)
        self.edited()
        self.say(f"{name} is left out")

    def _say_error(self, error: HomeboxError) -> None:
        self.say(" - ".join(part for part in (error.message, error.hint) if part))

    def _tell(self) -> None:
        self._telling, text = None, self.draft
        if text != self._told:
            self._told = text
            self.post_message(self.Changed(text))
