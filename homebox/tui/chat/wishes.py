"""What does each wish of a person at the chat screen do?

One method a wish; keys, slash commands, the palette and the mouse all end here. A wish that cannot be raises a
HomeboxError, which the screen says. What concerns other conversations is in `Shelf`. It draws nothing.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from homebox.client import chats, models
from homebox.client.phrases import stats_line
from homebox.errors import InvalidRequest
from homebox.tui import clipboard, themes
from homebox.tui.chat.message import MessageView
from homebox.tui.chat.shelf import Shelf
from homebox.tui.courier import in_thread
from homebox.tui.dialogs.help import Help
from homebox.tui.dialogs.system import SystemPrompt
from homebox.tui.lists.model_picker import ModelPicker
from homebox.tui.monitor.screen import MonitorScreen

if TYPE_CHECKING:
    from homebox.tui.chat.screen import ChatScreen

PANEL_FROM = 100  # columns
QUIT_WITHIN_S = 3.0  # between the two Ctrl-C that leave
Wish = Callable[[str], Awaitable[None]]


class Wishes:
    def __init__(self, screen: ChatScreen) -> None:
        self._screen = screen
        self.shelf = Shelf(screen)
        self._editing: str | None = None  # the message that a changed question follows
        self._interrupted_at = 0.0
        self._commands: dict[str, Wish] = {
            "/help": self.help,
            "/new": self.new,
            "/chats": self.shelf.list,
            "/search": self.shelf.search,
            "/title": self.shelf.title,
            "/system": self.system,
            "/model": self.model,
            "/regenerate": self.regenerate,
            "/continue": self.go_on,
            "/stop": self.stop,
            "/edit": self.edit,
            "/branch": self.branch_off,
            "/summarise": self.shelf.summarise,
            "/attach": self.attach,
            "/editor": self.editor,
            "/copy": self.copy_last,
            "/export": self.shelf.export,
            "/delete": self.shelf.delete,
            "/undo": self.shelf.undo,
            "/thinking": self.thinking,
            "/stats": self.stats,
            "/top": self.monitor,
            "/panel": self.panel,
            "/theme": self.theme,
            "/quit": self.leave,
        }

    async def command(self, name: str, rest: str = "") -> None:
        await self._commands[name](rest)

    # ---- saying

    async def say(self, text: str) -> None:
        self._screen.column.to_bottom()
        parent, self._editing = self._editing, None
        self._screen.say("")  # a note about what was typed
        self._screen.talk.say(text, parent=parent)

    async def escape(self) -> None:
        """The nearest thing that can be left: an error, an edit, an answer, a summary."""
        screen, talk = self._screen, self._screen.talk
        if talk.now.error:
            talk.forget_error()
        elif self._editing is not None:
            self._editing = None
            screen.prompt.clear()
            screen.say("the question stays as it was")
        elif talk.now.growing:
            await talk.stop()
        elif not self.shelf.gives_up():
            screen.prompt.focus()

    def interrupt(self) -> None:
        """Ctrl-C: copy what is selected, else stop, else clear, else leave at the second time. Decided at once: what is
        typed next is not cleared."""
        screen = self._screen
        if selected := screen.prompt.selected or screen.get_selected_text():
            screen.wish(self.copy(selected))
        elif screen.talk.now.growing:
            screen.wish(screen.talk.stop())
        elif self.shelf.gives_up():
            return
        elif screen.prompt.draft:
            screen.prompt.clear()
        elif time.monotonic() - self._interrupted_at < QUIT_WITHIN_S:
            screen.wish(screen.action_leave())
        else:
            self._interrupted_at = time.monotonic()
            screen.say("press Ctrl-C again to leave; what is being written goes on", QUIT_WITHIN_S)

    async def attach(self, rest: str) -> None:
        if not rest:
            raise InvalidRequest("which file?", hint="/attach FILE, or @ while you type.")
        self._screen.prompt.attach(rest)

    async def editor(self, rest: str = "") -> None:
        self._screen.prompt.edit_outside()

    # ---- the answer

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
        self._screen.say(stats_line(last.answer), 15.0)

    async def thinking(self, rest: str = "") -> None:
        for view in self._screen.column.views:
            view.fold()

    async def copy_last(self, rest: str = "") -> None:
        last = self._screen.talk.now.last_answer
        view = self._screen.column.view(last.message.id) if last else None
        if view is None:
            raise InvalidRequest("nothing has been answered yet")
        await self.copy(view.text)

    async def copy(self, text: str) -> None:
        self._screen.say(await clipboard.copy(text, self._screen.write))

    # ---- the conversation and the box

    async def new(self, rest: str = "") -> None:
        self._editing = None
        await self._screen.leave_draft()
        self._screen.talk.new()
        await self._screen.arrive()

    async def system(self, rest: str = "") -> None:
        now = self._screen.talk.now
        words: str | None = rest
        if not rest:
            words = await self._screen.ask(SystemPrompt(now.system or "", begun=bool(now.items)))
        if words is not None:
            await self._screen.talk.instruct(words or None)
            self._screen.say(
                "the next answer follows this instruction" if words else "no instruction any more"
            )

    async def model(self, rest: str = "") -> None:
        talk, daemon = self._screen.talk, self._screen.daemon
        name: str | None = rest
        if not rest:
            served = await in_thread(models.served, daemon)
            current = talk.now.model or talk.model or self._screen.model
            name = await self._screen.ask(ModelPicker(served, current))
        if name:
            if talk.now.known:
                await in_thread(chats.set_model, daemon, talk.now.chat, name)
                await talk.refresh()
            talk.choose_model(name)
            self._screen.say(f"{name} gives the next answer")

    async def branch_off(self, rest: str = "") -> None:
        items = self._screen.talk.now.items
        if not items or self._screen.talk.now.growing:
            raise InvalidRequest("there is nothing to branch off from yet")
        await self.shelf.branch_off(items[-1].message.id)

    async def theme(self, rest: str = "") -> None:
        if not rest:
            self._screen.say(f"/theme NAME: {', '.join(themes.names()[:5])} ...")
            return
        self._screen.app.theme = themes.named(rest)

    async def help(self, rest: str = "") -> None:
        await self._screen.app.push_screen(Help(self._screen.remaps))

    async def monitor(self, rest: str = "") -> None:
        await self._screen.app.push_screen(MonitorScreen(self._screen.daemon, ascii=self._screen.ascii))

    async def panel(self, rest: str = "") -> None:
        if self._screen.size.width < PANEL_FROM:
            raise InvalidRequest(
                f"the panel needs {PANEL_FROM} columns; this terminal has {self._screen.size.width}",
                hint="/stats has the figures of the answer, F3 those of the box.",
            )
        self._screen.toggle_class("-no-panel" if self._screen.has_class("-full") else "-panel")

    async def leave(self, rest: str = "") -> None:
        await self._screen.action_leave()

    # ---- one message

    async def of_message(self, view: MessageView, what: str, by: int) -> None:
        message = view.item.message.id
        wishes: dict[str, Callable[[], Awaitable[None]]] = {
            "copy": lambda: self.copy(view.text),
            "copy_code": lambda: self._copy_code(view),
            "edit": lambda: self._edit(message),
            "regenerate": lambda: self._again(message),
            "continue": lambda: self.go_on(),
            "branch": lambda: self._screen.talk.branch(message, by),
            "delete": lambda: self._delete(view),
            "undo": lambda: self.shelf.undo(),
            "export": lambda: self.shelf.export(),
            "branch_off": lambda: self.shelf.branch_off(message),
        }
        await wishes[what]()

    async def edit(self, rest: str = "") -> None:
        """The last question."""
        items = self._screen.talk.now.items
        await self._edit(items[-1].message.id if items else "")

    async def _again(self, message: str) -> None:
        self._screen.talk.regenerate(message)

    async def _edit(self, message: str) -> None:
        question = self._screen.talk.now.question_of(message)
        if question is None:
            raise InvalidRequest("there is no question to change")
        if self._screen.talk.now.growing:
            raise InvalidRequest("an answer is being written", hint="Esc stops it and keeps what is there.")
        self._editing = question.message.parent or "root"
        self._screen.prompt.draft = question.text
        self._screen.prompt.focus()
        self._screen.say("Enter sends it as a branch of its own, Esc leaves it as it was", 60.0)

    async def _delete(self, view: MessageView) -> None:
        if view.item.growing:
            raise InvalidRequest("this answer is being written", hint="Esc stops it.")
        await self.shelf.delete_message(view.item.message.id)

    async def _copy_code(self, view: MessageView) -> None:
        code = view.next_code()
        if code is None:
            raise InvalidRequest("there is no code in this message")
        await self.copy(code)
