"""What is on the chat screen, and who is told of what a person does there?

Puts the title, the column of messages, the status line and the prompt together, draws what `Talk` says has changed, and
hands every wish, whether it came by key, slash command, palette or mouse, to `Wishes`. It holds nothing of a
conversation itself.
"""

from __future__ import annotations

import time
from collections.abc import Coroutine
from typing import Any

from textual import on, work
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.screen import Screen
from textual.timer import Timer
from textual.widgets import Footer, Static

from homebox.client import chats
from homebox.client.connection import Daemon, own_name
from homebox.client.state import Phase
from homebox.errors import HomeboxError
from homebox.tui import courier
from homebox.tui.chat.column import Column
from homebox.tui.chat.message import MessageView
from homebox.tui.chat.status import StatusLine, line
from homebox.tui.chat.title import TitleLine
from homebox.tui.chat.wishes import Wishes
from homebox.tui.keys import bindings
from homebox.tui.prompt.prompt import Prompt
from homebox.tui.talk import Talk
from homebox.wire.events import Snapshot
from homebox.wire.requests import Options

WELCOME = "Ask something. What you say stays yours: others see that you use the box, and never your words."
TICK_S = 0.25
NOTE_S = 5.0
PATIENCE_S = 1.5  # nothing came: the daemon is asked why


class ChatScreen(Screen[None]):
    BINDINGS = bindings("screen")
    DEFAULT_CSS = """
    ChatScreen > Horizontal { height: 1fr; }
    ChatScreen #middle { width: 1fr; }
    ChatScreen #pill { height: 1; width: auto; display: none; background: $accent; color: $text; padding: 0 1; }
    ChatScreen StatusLine { border-top: none; }
    ChatScreen.-low Footer { display: none; }
    """

    def __init__(
        self,
        daemon: Daemon,
        *,
        chat: str | None = None,
        first: str | None = None,
        system: str | None = None,
        options: Options | None = None,
    ) -> None:
        """`chat` is opened, `first` is said at once."""
        super().__init__()
        self.daemon = daemon
        self.me = own_name()
        self.talk = Talk(daemon, self._changed, options=options, system=system)
        self.talk.unsent = self._unsent  # type: ignore[method-assign]
        self.wishes = Wishes(self)
        self.box: Snapshot | None = None
        self.health: dict[str, Any] | None = None
        self._first_chat, self._first_words = chat, first
        self._model = ""
        self._dirty = False
        self._boxes: courier.Newest[Any] | None = None
        self._tick_timer: Timer | None = None
        self._draft = ""  # as the daemon has it
        self._note, self._note_until = "", 0.0

    def compose(self) -> ComposeResult:
        yield TitleLine()
        with Horizontal(), Vertical(id="middle"):
            yield Column(me=self.me, welcome=WELCOME)
            yield Static(id="pill", markup=False)
            yield StatusLine()
            yield Prompt()
        yield Footer(show_command_palette=False)

    @property
    def column(self) -> Column:
        return self.query_one(Column)

    @property
    def prompt(self) -> Prompt:
        return self.query_one(Prompt)

    def on_mount(self) -> None:
        self._tick_timer = self.set_interval(TICK_S, self._draw_lines, pause=True)
        self.prompt.focus()
        self._watch_box()
        self._begin()

    def on_unmount(self) -> None:
        self.talk.close()
        if self._boxes:
            self._boxes.leave()

    @work(exit_on_error=False)
    async def _begin(self) -> None:
        await self._ask_health()
        if self._first_chat:
            await self._guarded(self.talk.open(self._first_chat))
            self.prompt.remember([item.text for item in self.talk.now.items if item.message.role == "user"])
        await self._guarded(self._fetch_draft())
        if self._first_words:
            self.talk.say(self._first_words)
        self._changed()

    # ---- drawing

    def _changed(self) -> None:
        """Something is new; drawn once, however often it is said before the loop comes round."""
        if not self._dirty and self.is_attached:
            self._dirty = True
            self.call_later(self._draw)

    async def _draw(self) -> None:
        self._dirty = False
        now = self.talk.now
        await self.column.show(now)
        self.prompt.show_queued(now.queued)
        self.prompt.busy = now.growing is not None
        assert self._tick_timer is not None
        if now.growing or self.talk.away:
            self._tick_timer.resume()
        else:
            self._tick_timer.pause()
            self.health = None
        if now.growing is None or now.error:
            self._draw_lines()

    def _draw_lines(self) -> None:
        """The lines that go with the clock: at most four times a second."""
        now, at = self.talk.now, time.time()
        last = now.items[-1].message.turn if now.items else None
        self.query_one(StatusLine).show(
            line(
                now,
                away=self.talk.away,
                stopped=last in self.talk.stopped,
                me=self.me,
                health=self.health,
                note=self._note if at < self._note_until else "",
                at=at,
            )
        )
        self.query_one(TitleLine).show(
            now, self.box, model=now.model or self.talk.model or self._model, me=self.me
        )
        growing = now.growing
        if growing and growing.answer and growing.answer.phase in (Phase.SENT, Phase.WAITING):
            if at - growing.message.created > PATIENCE_S:
                self._why_so_long()
        else:
            self.health = None

    def say(self, words: str, seconds: float = NOTE_S) -> None:
        """What came of a wish, in the status line for a moment."""
        self._note, self._note_until = words, time.time() + seconds
        self._draw_lines()
        self.set_timer(seconds + 0.05, self._draw_lines)

    def on_resize(self) -> None:
        self.call_after_refresh(self._draw_lines)

    @work(exclusive=True, group="health", exit_on_error=False)
    async def _why_so_long(self) -> None:
        await self._ask_health()

    async def _ask_health(self) -> None:
        try:
            self.health = await courier.in_thread(
                self.daemon.json, "GET", "/health", timeout_s=5.0, accept=(503,)
            )
            self._model = str((self.health or {}).get("model") or self._model)
        except HomeboxError as error:
            if not self.talk.now.items:
                self.talk.failed(error)

    @work(group="box", exit_on_error=False)
    async def _watch_box(self) -> None:
        """The box's figures, now and then: for the title and the panel."""
        self._boxes = courier.box(self.daemon, 2.0)
        async for picture in self._boxes:
            self.box = picture if isinstance(picture, Snapshot) else None
            if isinstance(picture, Snapshot):
                self._model = picture.model or self._model
            self._draw_lines()

    # ---- wishes

    def wish(self, what: Coroutine[Any, Any, None]) -> None:
        """Begin it; what refuses it is said in the status line."""
        self.run_worker(self._guarded(what), exit_on_error=False)

    async def _guarded(self, what: Coroutine[Any, Any, None]) -> None:
        try:
            await what
        except HomeboxError as error:
            self.talk.failed(error)

    @on(Prompt.Sent)
    def _on_sent(self, event: Prompt.Sent) -> None:
        self.wish(self.wishes.say(event.text))

    @on(Prompt.Command)
    def _on_command(self, event: Prompt.Command) -> None:
        self.wish(self.wishes.command(event.command.name, event.rest))

    @on(Prompt.Changed)
    def _on_typed(self, event: Prompt.Changed) -> None:
        self.wish(self._keep_draft(event.text))

    @on(Prompt.SelectLast)
    def _on_select_last(self) -> None:
        if views := self.column.views:
            views[-1].focus()

    @on(Prompt.DropQueued)
    def _on_drop_queued(self) -> None:
        self.talk.withdraw_queued()

    @on(Prompt.Leave)
    async def _on_prompt_left(self) -> None:
        await self.action_leave()

    @on(MessageView.Wanted)
    def _on_wanted(self, event: MessageView.Wanted) -> None:
        self.wish(self.wishes.of_message(event.view, event.what, event.by))

    @on(Column.OlderWanted)
    def _on_older(self) -> None:
        self.wish(self.talk.older())

    @on(Column.Behind)
    def _on_behind(self, event: Column.Behind) -> None:
        pill = self.query_one("#pill", Static)
        pill.display = event.lines > 0
        pill.update(Content(f"{event.lines} new lines - End shows them"))

    def action_new(self) -> None:
        self.wish(self.wishes.command("/new", ""))

    def action_stop(self) -> None:
        self.wish(self.wishes.escape())

    async def action_interrupt(self) -> None:
        await self.wishes.interrupt()

    def action_bottom(self) -> None:
        self.column.to_bottom()

    def action_page_up(self) -> None:
        self.column.scroll_page_up(animate=False)

    def action_page_down(self) -> None:
        self.column.scroll_page_down(animate=False)

    async def action_leave(self) -> None:
        await self._guarded(self._keep_draft(self.prompt.draft))
        if self.talk.now.growing:
            self.app.words = "the answer goes on; homebox chat -c shows it"  # type: ignore[attr-defined]
        self.app.exit(0)

    # ---- drafts

    async def _fetch_draft(self) -> None:
        chat = self.talk.now.chat if self.talk.now.known else None
        self._draft = await courier.in_thread(chats.draft, self.daemon, chat)
        if self._draft and not self.prompt.draft:
            self.prompt.draft = self._draft

    async def _keep_draft(self, text: str) -> None:
        if text != self._draft:
            self._draft = text
            chat = self.talk.now.chat if self.talk.now.known else None
            await courier.in_thread(chats.put_draft, self.daemon, chat, text)

    def _unsent(self, text: str) -> None:
        """A message that did not go out is typed again, unless something else is there by now."""
        if text and not self.prompt.draft:
            self.prompt.draft = text
