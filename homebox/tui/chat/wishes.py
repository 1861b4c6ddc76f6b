"""What does each wish of a person at the chat screen do?

One method a wish; keys, slash commands, the palette and the mouse all end here. A wish that cannot be raises a
HomeboxError, which the screen says. It draws nothing.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from homebox.client.words import stats_line
from homebox.errors import InvalidRequest
from homebox.tui.chat.message import MessageView

if TYPE_CHECKING:
    from homebox.tui.chat.screen import ChatScreen

QUIT_WITHIN_S = 3.0  # between the two Ctrl-C that leave


class Wishes:
    def __init__(self, screen: ChatScreen) -> None:
        self._screen = screen
        self._editing: str | None = None  # the message that a changed question follows
        self._interrupted_at = 0.0

    async def command(self, name: str, rest: str) -> None:
        await self._commands()[name](rest)

    def _commands(self) -> dict[str, Callable[[str], Awaitable[None]]]:
        return {
            "/new": self.new,
            "/title": self.title,
            "/system": self.system,
            "/regenerate": self.regenerate,
            "/continue": self.go_on,
            "/stop": self.stop,
            "/stats": self.stats,
            "/thinking": self.thinking,
            "/quit": self.leave,
        }

    # ---- saying

    async def say(self, text: str) -> None:
        self._screen.column.to_bottom()
        parent, self._editing = self._editing, None
        self._screen.talk.say(text, parent=parent)

    async def escape(self) -> None:
        """The nearest thing that can be left: an edit, a message, an answer, an error."""
        screen, talk = self._screen, self._screen.talk
        if talk.now.error:
            talk.forget_error()
        elif isinstance(screen.focused, MessageView):
            screen.prompt.focus()
        elif self._editing is not None:
            self._editing = None
            screen.prompt.clear()
            screen.say("the question stays as it was")
        else:
            await talk.stop()

    async def interrupt(self) -> None:
        """Ctrl-C: copy what is selected, else stop, else clear, else leave at the second time."""
        screen = self._screen
        if selected := screen.get_selected_text():
            await self._copy(selected)
        elif screen.talk.now.growing:
            await screen.talk.stop()
        elif screen.prompt.draft:
            screen.prompt.clear()
        elif time.monotonic() - self._interrupted_at < QUIT_WITHIN_S:
            await screen.action_leave()
        else:
            self._interrupted_at = time.monotonic()
            screen.say("press Ctrl-C again to leave; an answer that is being written goes on", QUIT_WITHIN_S)

    async def stop(self, rest: str = "") -> None:
        await self._screen.talk.stop()

    async def regenerate(self, rest: str = "") -> None:
        last = self._screen.talk.now.last_answer
        if last is None:
            raise InvalidRequest("nothing has been answered yet")
        self._screen.talk.regenerate(last.message.id)

    async def go_on(self, rest: str = "") -> None:
        self._screen.talk.go_on()

    async def stats(self, rest: str = "") -> None:
        last = self._screen.talk.now.last_answer
        if last is None or last.answer is None:
            raise InvalidRequest("nothing has been answered here yet")
        self._screen.say(stats_line(last.answer))

    async def thinking(self, rest: str = "") -> None:
        for view in self._screen.column.views:
            view.fold()

    # ---- the conversation

    async def new(self, rest: str = "") -> None:
        self._editing = None
        self._screen.talk.new()
        self._screen.prompt.focus()

    async def title(self, rest: str) -> None:
        await self._screen.talk.title(rest)

    async def system(self, rest: str) -> None:
        await self._screen.talk.instruct(rest or None)
        self._screen.say("the next answer follows this instruction" if rest else "no instruction any more")

    async def leave(self, rest: str = "") -> None:
        await self._screen.action_leave()

    # ---- one message

    async def of_message(self, view: MessageView, what: str, by: int) -> None:
        steps = {"step": by, "first": -len(self._screen.column.views), "last": len(self._screen.column.views)}
        if what in steps:
            self._move(view, steps[what])
            return
        wishes: dict[str, Callable[[MessageView], Awaitable[None]]] = {
            "copy": lambda view: self._copy(view.text),
            "edit": self._edit,
            "regenerate": self._again,
            "continue": lambda view: self.go_on(),
            "branch": lambda view: self._screen.talk.branch(view.item.message.id, by),
        }
        await wishes[what](view)

    def _move(self, view: MessageView, by: int) -> None:
        views = self._screen.column.views
        at = views.index(view) + by
        if at >= len(views) and by == 1:
            self._screen.prompt.focus()  # past the last message is the prompt
            self._screen.column.to_bottom()
            return
        views[max(0, min(len(views) - 1, at))].focus()

    async def _again(self, view: MessageView) -> None:
        self._screen.talk.regenerate(view.item.message.id)
        self._screen.prompt.focus()

    async def _edit(self, view: MessageView) -> None:
        question = self._screen.talk.now.question_of(view.item.message.id)
        if question is None:
            raise InvalidRequest("there is no question to change")
        self._editing = question.message.parent or "root"
        self._screen.prompt.draft = question.text
        self._screen.prompt.focus()
        self._screen.say("Enter sends it as a branch of its own, Esc leaves it as it was")

    async def _copy(self, text: str) -> None:
        self._screen.app.copy_to_clipboard(text)
