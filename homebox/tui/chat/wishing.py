"""What do the parts of the chat screen ask for, and which keys ask for something?

Every message of the prompt, a message view, the lists, the search and the palette, and every key of the screen, becomes a
wish of `Wishes`, begun beside whatever else goes on. The screen itself, which puts these parts together and draws them,
is `screen.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, cast

from textual import on
from textual.content import Content
from textual.widgets import Static

from homebox.errors import HomeboxError
from homebox.tui.chat.column import Column
from homebox.tui.chat.growing import GrowingScreen
from homebox.tui.chat.message import MessageView
from homebox.tui.chat.wishes import Wishes
from homebox.tui.lists.chat_list import ChatList
from homebox.tui.lists.search import SearchScreen
from homebox.tui.palette import Everything
from homebox.tui.prompt.prompt import Prompt
from homebox.tui.talk import Talk


class WishingScreen(GrowingScreen):
    """What the chat screen hears. `_keep_draft` and `leave_draft` are its own."""

    talk: Talk
    wishes: Wishes

    @property
    def column(self) -> Column:
        return self.query_one(Column)

    @property
    def prompt(self) -> Prompt:
        return self.query_one(Prompt)

    async def leave_draft(self) -> None:
        raise NotImplementedError

    async def _keep_draft(self, text: str) -> None:
        raise NotImplementedError

    def wish(self, what: Coroutine[Any, Any, None]) -> None:
        """Begin it; what refuses it is said in the status line."""
        self.run_worker(self._guarded(what), exit_on_error=False)

    async def _guarded(self, what: Coroutine[Any, Any, None]) -> None:
        try:
            await what
        except HomeboxError as error:
            self.talk.failed(error)
        except Exception as error:
            self.app._handle_exception(error)  # a worker would keep it to itself

    @on(Prompt.Sent)
    def _said(self, event: Prompt.Sent) -> None:
        self.wish(self.wishes.say(event.text))

    @on(Prompt.Command)
    def _commanded(self, event: Prompt.Command) -> None:
        self.wish(self.wishes.command(event.command.name, event.rest))

    @on(Prompt.Changed)
    def _typed(self, event: Prompt.Changed) -> None:
        self.wish(self._keep_draft(event.text))

    @on(Prompt.DropQueued)
    def _dropped(self) -> None:
        self.talk.withdraw_queued()

    @on(Prompt.Leave)
    async def _left(self) -> None:
        await self.action_leave()

    @on(MessageView.Wanted)
    def _wanted(self, event: MessageView.Wanted) -> None:
        self.wish(self.wishes.of_message(event.view, event.what, event.by))

    @on(Column.OlderWanted)
    def _older(self) -> None:
        self.wish(self.talk.older())

    @on(Column.Behind)
    def _behind(self, event: Column.Behind) -> None:
        pill = self.query_one("#pill", Static)
        pill.display = event.lines > 0
        pill.update(Content(f"{event.lines} new lines - End shows them"))

    @on(ChatList.Said)
    def _listed_wish(self, event: ChatList.Said) -> None:
        shelf = self.wishes.shelf
        match event:
            case ChatList.Opened(chat_id=chat):
                self.wish(shelf.open(chat))
            case ChatList.Renamed(chat_id=chat, title=title):
                self.wish(shelf.rename(chat, title))
            case ChatList.Deleted(chat_id=chat):
                self.wish(shelf.delete_chat(chat))
            case ChatList.Undo(chat_id=chat):
                self.wish(shelf.restore(chat))
            case ChatList.Exported(chat_id=chat):
                self.wish(shelf.export_chat(chat))
            case ChatList.Searched(query=query):
                self.wish(shelf.search(query))
            case ChatList.WantMore(before=before):
                self.wish(shelf.more(before))

    @on(SearchScreen.Asked)
    def _asked(self, event: SearchScreen.Asked) -> None:
        self.wish(self.wishes.shelf.look_for(event.query))

    @on(SearchScreen.Chosen)
    def _chosen(self, event: SearchScreen.Chosen) -> None:
        self.wish(self.wishes.shelf.open(event.chat_id, event.message_id))

    @on(Everything.CommandChosen)
    def _palette_command(self, event: Everything.CommandChosen) -> None:
        if event.command.takes in ("FILE", "TEXT", "WORDS") and event.command.name == "/attach":
            self.prompt.draft = f"{event.command.name} "
        else:
            self.wish(self.wishes.command(event.command.name))

    @on(Everything.ChatChosen)
    def _palette_chat(self, event: Everything.ChatChosen) -> None:
        self.wish(self.wishes.shelf.open(event.chat_id))

    @on(Everything.ThemeChosen)
    def _palette_theme(self, event: Everything.ThemeChosen) -> None:
        self.wish(self.wishes.theme(event.name))

    @on(Everything.ActionChosen)
    def _palette_action(self, event: Everything.ActionChosen) -> None:
        """Of a message, where none is selected: the last one is meant."""
        if views := self.column.views:
            self.run_worker(self.app.run_action(event.key.action, default_namespace=views[-1]))

    def _in_turn(self, what: Callable[[], None]) -> None:
        """Textual looks for these keys before it hands any on: what was typed before may still be on its way."""
        (self.focused or self).call_later(what)

    def action_wish(self, command: str) -> None:
        self._in_turn(lambda: self.wish(self.wishes.command(command)))

    # What moves the focus does so at once: the key that comes next is for what has it then.

    def _select_last(self) -> bool:
        views = self.column.views
        if views:
            self.set_focus(views[-1])
        return bool(views)

    def action_move(self, by: int) -> None:
        """To the message `by` places further; past the last one is the prompt."""
        views = self.column.views
        at = views.index(self.focused) + by if isinstance(self.focused, MessageView) else len(views)
        if at >= len(views) and by == 1:
            self.action_to_prompt()
        elif views:
            self.set_focus(views[max(0, min(len(views) - 1, at))])

    def action_to_prompt(self, begun: str = "") -> None:
        self.prompt.focus()
        self.column.to_bottom()
        if not self.prompt.draft:
            self.prompt.draft = begun

    def action_from_message(self, what: str) -> None:
        """What is done to the selected message, or the last one, and leads to the prompt."""
        if views := self.column.views:
            view = self.focused if isinstance(self.focused, MessageView) else views[-1]
            self.prompt.focus()
            self.wish(self.wishes.of_message(view, what, 0))

    def action_stop(self) -> None:
        if isinstance(self.focused, MessageView) and not self.talk.now.error:
            self.prompt.focus()
        else:
            self.wish(self.wishes.escape())

    def action_interrupt(self) -> None:
        self._in_turn(self.wishes.interrupt)

    def action_bottom(self) -> None:
        self.column.to_bottom()

    def action_page_up(self) -> None:
        self.column.scroll_page_up(animate=False)

    def action_page_down(self) -> None:
        self.column.scroll_page_down(animate=False)

    async def action_leave(self) -> None:
        await self.leave_draft()
        if self.talk.now.growing:
            cast(Any, self.app).last_words = "the answer goes on; homebox chat -c shows it"
        self.app.exit(0)
