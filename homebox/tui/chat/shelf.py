"""What does a person want of their other conversations?

The list beside this one, the search, and what can be done with a whole conversation: open, name, delete and have back,
write to a file, branch off, go on with a summary. Part of `Wishes`; it draws nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from homebox.client import chats, summary
from homebox.client.sanitise import safe_json
from homebox.client.summary import Progress
from homebox.errors import HomeboxError, InvalidRequest, UsageError
from homebox.tui.courier import in_thread
from homebox.tui.dialogs.path import PathDialog, Target, target
from homebox.tui.dialogs.rename import Rename
from homebox.tui.lists.chat_list import ChatListScreen
from homebox.tui.lists.search import SearchScreen
from homebox.wire.chats import ChatRow, ChatView

if TYPE_CHECKING:
    from homebox.tui.chat.screen import ChatScreen


class Shelf:
    def __init__(self, screen: ChatScreen) -> None:
        self._screen = screen
        self.recent: Sequence[ChatRow] = ()
        self._undo: list[Callable[[], Awaitable[None]]] = []
        self._summing: threading.Event | None = None  # set to give up the summary that is being written

    # ---- the list

    async def list(self, rest: str = "") -> None:
        """Beside this conversation where there is room, else over it."""
        screen = self._screen
        if screen.has_class("-full"):
            screen.toggle_class("-no-chats")
            if not screen.has_class("-no-chats"):
                screen.chat_list.focus_rows()
            return
        over = ChatListScreen()
        await screen.app.push_screen(over)
        screen.over = over.chats
        await self.fill()

    async def fill(self) -> None:
        """The newest page, into every list that is shown, and for the palette."""
        try:
            page = await in_thread(chats.page_of, self._screen.daemon)
        except HomeboxError as error:
            for shown in self._screen.shown_lists():
                shown.fail(error)
            return
        self.recent = page.chats
        for shown in self._screen.shown_lists():
            shown.show(page)
            shown.mark(self._screen.talk.now.chat if self._screen.talk.now.known else None)

    async def more(self, before: str) -> None:
        page = await in_thread(chats.page_of, self._screen.daemon, before=before)
        for shown in self._screen.shown_lists():
            shown.add(before, page)

    async def open(self, chat: str, message: str | None = None) -> None:
        await self._screen.leave_draft()
        await self._screen.talk.open(chat, at=message)
        await self._screen.arrive()
        if message is not None:
            self._screen.column.reveal(message)

    # ---- the search

    async def search(self, rest: str = "") -> None:
        await self._screen.app.push_screen(SearchScreen(rest))

    async def look_for(self, query: str) -> None:
        """Answer the search screen."""
        shown = self._screen.app.screen
        if not isinstance(shown, SearchScreen):
            return
        try:
            shown.show(query, await in_thread(chats.search, self._screen.daemon, query))
        except HomeboxError as error:
            shown.fail(query, error)

    # ---- one conversation

    async def title(self, rest: str = "") -> None:
        talk = self._screen.talk
        if not talk.now.known:
            raise InvalidRequest("nothing has been said in this conversation yet")
        words = rest or await self._screen.ask(Rename(talk.now.title))
        if words:
            await self.rename(talk.now.chat, words)

    async def rename(self, chat: str, title: str) -> None:
        await in_thread(chats.change, self._screen.daemon, chat, title=title)
        if chat == self._screen.talk.now.chat:
            await self._screen.talk.refresh()
        await self.fill()

    async def delete(self, rest: str = "") -> None:
        if not self._screen.talk.now.known:
            raise InvalidRequest("nothing has been said in this conversation yet")
        await self.delete_chat(self._screen.talk.now.chat)

    async def delete_chat(self, chat: str) -> None:
        daemon = self._screen.daemon
        await in_thread(chats.delete, daemon, chat)

        async def undo() -> None:
            await self.restore(chat)
            await self.open(chat)

        self._undo.append(undo)
        if chat == self._screen.talk.now.chat:
            self._screen.talk.new()
        await self.fill()
        self._screen.say("deleted - /undo has it back; for seven days so does homebox chats restore")

    async def restore(self, chat: str) -> None:
        await in_thread(chats.undelete, self._screen.daemon, chat)
        await self.fill()

    async def delete_message(self, message: str) -> None:
        talk, daemon = self._screen.talk, self._screen.daemon
        chat = talk.now.chat
        await in_thread(chats.delete_message, daemon, chat, message)

        async def undo() -> None:
            await in_thread(chats.undelete_message, daemon, chat, message)
            if talk.now.chat == chat:
                await talk.refresh()
            else:
                await self.open(chat)

        self._undo.append(undo)
        await talk.refresh()
        self._screen.say("deleted, with what followed it - u or /undo has it back")

    async def undo(self, rest: str = "") -> None:
        if not self._undo:
            raise InvalidRequest(
                "nothing was deleted here", hint="homebox chats list --deleted shows what was before."
            )
        await self._undo.pop()()

    async def export(self, rest: str = "") -> None:
        talk = self._screen.talk
        if not talk.now.known:
            raise InvalidRequest("nothing has been said in this conversation yet")
        await self.export_chat(talk.now.chat, rest)

    async def export_chat(self, chat: str, name: str = "") -> None:
        if name:
            found: Target | None = target(name, Path.cwd())
            if found and found.path.exists():
                raise UsageError(f"{found.path} is there already", hint="Name another file.")
        else:
            view = await in_thread(chats.show, self._screen.daemon, chat, last=1)
            found = await self._screen.ask(PathDialog(view.title))
        if found is None:
            return
        text = await in_thread(chats.export_text, self._screen.daemon, chat, found.form)
        try:
            found.path.write_text(
                text if found.form == "md" else safe_json(text), encoding="utf-8", newline=""
            )
        except OSError as error:
            raise UsageError(f"{found.path}: {error.strerror or error}") from None
        self._screen.say(f"written to {found.path}")

    async def branch_off(self, message: str) -> None:
        made = await in_thread(chats.branch, self._screen.daemon, self._screen.talk.now.chat, message)
        await self.open(made)
        self._screen.say("a conversation of its own; the other one stays as it is")

    async def summarise(self, rest: str = "") -> None:
        """A new conversation whose first message has a summary of this one: shown, to be changed, and sent by the
        person with their next words."""
        screen, now = self._screen, self._screen.talk.now
        if not now.known:
            raise InvalidRequest("nothing has been said in this conversation yet")
        if now.growing:
            raise InvalidRequest("an answer is being written", hint="Esc stops it and keeps what is there.")
        view: ChatView = await in_thread(chats.show, screen.daemon, now.chat)
        if self._summing is not None:
            raise InvalidRequest("a summary is being written", hint="Esc gives it up.")
        screen.say("summarising this conversation ...   Esc gives it up", 3600.0)
        summing = self._summing = threading.Event()
        shown = screen.from_thread(self._progress)

        def on_progress(progress: Progress) -> None:
            if summing.is_set():
                raise InvalidRequest("the summary was given up")
            shown(progress)

        try:
            text = await in_thread(summary.summarise, screen.daemon, view, on_progress=on_progress)
        finally:
            self._summing = None
            screen.say("")
        if screen.talk.now.chat != now.chat:
            raise InvalidRequest("another conversation was opened meanwhile; the summary was let go of")
        await screen.leave_draft()
        screen.talk.new(system=now.system)
        about = now.title or "the conversation"
        screen.prompt.add_chip(f"summary of {about}", summary.first_message(now.title, text))
        screen.prompt.focus()
        screen.say("your next message is sent with the summary; the other conversation stays as it is")

    def gives_up(self) -> bool:
        """End the summary that is being written, if there is one."""
        if self._summing is not None:
            self._summing.set()
        return self._summing is not None

    def _progress(self, progress: Progress) -> None:
        words = len(progress.state.text.split())
        self._screen.say(
            f"summarising: piece {progress.part} of {progress.parts}, {words} words   Esc gives it up", 3600.0
        )
