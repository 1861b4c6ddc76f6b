"""What is on the chat screen, and who is told of what a person does there?

Puts the title, the column of messages, the status line, the prompt and the lists beside them together, and draws what
`Talk` says has changed. What its parts and its keys ask for is in `wishing.py`. It holds nothing of a conversation
itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, TypeVar, cast

from textual import work
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.screen import Screen
from textual.timer import Timer
from textual.widgets import Footer, Static

from homebox.client import chats
from homebox.client.connection import Daemon, own_name
from homebox.client.state import Phase
from homebox.errors import HomeboxError
from homebox.tui import courier
from homebox.tui.answer.rows import Look
from homebox.tui.bare import Container, Horizontal, Vertical
from homebox.tui.chat.column import Column
from homebox.tui.chat.message import MessageView
from homebox.tui.chat.status import StatusLine, line
from homebox.tui.chat.title import TitleLine
from homebox.tui.chat.wishes import Wishes
from homebox.tui.chat.wishing import WishingScreen
from homebox.tui.keys import TABLE, bindings, in_words
from homebox.tui.lists.chat_list import ChatList
from homebox.tui.palette import Source
from homebox.tui.panel import SidePanel
from homebox.tui.prompt.prompt import Prompt
from homebox.tui.talk import Talk
from homebox.wire.events import Snapshot
from homebox.wire.requests import Options

Answer = TypeVar("Answer")

WELCOME = """\
Ask something. Others see that you use the box, and never your words.

/ commands   @ attach a file   {chats} your conversations   {monitor} who runs what   {palette} everything"""
TICK_S = 0.25
NOTE_S = 5.0
PATIENCE_S = 1.5  # nothing came: the daemon is asked why


class ChatScreen(WishingScreen):
    BLANK = True
    BINDINGS: ClassVar[list[BindingType]] = [*bindings("screen")]
    DEFAULT_CSS = """
    ChatScreen > Horizontal { height: 1fr; }
    ChatScreen #middle { width: 1fr; }
    ChatScreen #stage { height: 1fr; layers: below above; }
    ChatScreen #pill {
        layer: above; dock: bottom; height: 1; width: auto; display: none; padding: 0 1;
        background: $accent; color: $background;
    }
    ChatScreen ChatList { display: none; border-right: vkey $border-blurred; }
    ChatScreen SidePanel { display: none; border-left: vkey $border-blurred; }
    ChatScreen.-full ChatList, ChatScreen.-full SidePanel { display: block; }
    ChatScreen.-full.-no-chats ChatList, ChatScreen.-full.-no-panel SidePanel { display: none; }
    ChatScreen.-wide.-panel SidePanel { display: block; }
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
        ascii: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`chat` is opened, `first` is said at once. `ascii`: no characters beyond it in frames and marks."""
        super().__init__()
        self._clock, self._ascii = clock, ascii
        self.daemon = daemon
        self.me = own_name()
        self.model = ""  # the one that the box serves
        self.talk = Talk(
            daemon, self._changed, unsent=self._unsent, options=options, system=system, clock=clock
        )
        self.wishes = Wishes(self)
        self.chat_list = ChatList(clock=clock)
        self.over: ChatList | None = None  # the list on a narrow screen, while it is open
        self._first_chat, self._first_words = chat, first
        self._box: Snapshot | None = None
        self._boxes: courier.Newest[Any] | None = None
        self._health: dict[str, Any] | None = None
        self._dirty = False
        self._ticks: Timer | None = None
        self._draft = ""  # as the daemon has it
        self._note, self._note_until = "", 0.0
        self._panel_for: tuple[Any, ...] = ()  # the answer that it was filled for
        self._listed: tuple[Any, ...] = ()  # what the lists were filled for

    def compose(self) -> ComposeResult:
        yield TitleLine()
        with Horizontal():
            yield self.chat_list
            with Vertical(id="middle"):
                with Container(id="stage"):
                    yield Column(welcome=self._welcome(), look=self._look(), clock=self._clock)
                    yield Static(id="pill", markup=False)
                yield StatusLine()
                yield Prompt(above=self._select_last)
            yield SidePanel()
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        self._ticks = self.set_interval(TICK_S, self._draw_lines, pause=True)
        self.prompt.focus()
        self._watch_box()
        self._begin()
        self.watch(self.app, "app_focus", self._looked_at, init=False)

    def _looked_at(self, focus: bool) -> None:
        """The person is back at this terminal: what they said at another one is here, too."""
        if focus and not self.talk.now.growing:
            self.wish(self.talk.refresh())
            self.wish(self.wishes.shelf.fill())

    def on_unmount(self) -> None:
        self.talk.close()
        if self._boxes:
            self._boxes.leave()

    @work(exit_on_error=False)
    async def _begin(self) -> None:
        await self._ask_health()
        if self._first_chat:
            await self._guarded(self.talk.open(self._first_chat))
        await self.arrive()
        if self._first_words:
            self.talk.say(self._first_words)

    async def arrive(self) -> None:
        """Another conversation is open: its draft, its earlier messages for the prompt, its place in the lists."""
        self.column.to_bottom()
        self.prompt.remember(item.text for item in self.talk.now.items if item.message.role == "user")
        await self._guarded(self._fetch_draft())
        await self.wishes.shelf.fill()
        self.prompt.focus()
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
        assert self._ticks is not None
        if now.growing or self.talk.away:
            self._ticks.resume()
        else:
            self._ticks.pause()
            self._health = None
            self._draw_lines()
            self._fill_lists_if_new()
        if now.error:
            self._draw_lines()

    def _fill_lists_if_new(self) -> None:
        now = self.talk.now
        listed = (now.chat, now.title, len(now.items), now.items[-1].message.state if now.items else None)
        if listed != self._listed:
            self._listed = listed
            self.wish(self.wishes.shelf.fill())

    def _draw_lines(self) -> None:
        """The lines that go with the clock, at most four times a second."""
        if not self.is_attached:
            return
        now, at = self.talk.now, self._clock()
        turn = now.items[-1].message.turn if now.items else None
        self.query_one(StatusLine).show(
            line(
                now,
                away=self.talk.away,
                stopped=turn in self.talk.stopped,
                me=self.me,
                health=self._health,
                note=self._note if at < self._note_until else "",
                selected=isinstance(self.focused, MessageView),
                at=at,
            )
        )
        model = now.model or self.talk.model or self.model
        self.query_one(TitleLine).show(now, self._box, model=model, me=self.me)
        self._draw_panel(model)
        growing = now.growing.answer if now.growing else None
        if growing is None or growing.phase not in (Phase.SENT, Phase.WAITING):
            self._health = None
        elif now.growing and at - now.growing.since > PATIENCE_S:
            self._why_so_long()

    def _draw_panel(self, model: str) -> None:
        panel, now = self.query_one(SidePanel), self.talk.now
        if panel.display:
            last = now.last_answer
            usage = last.message.usage if last else None
            which = (
                now.chat,
                last and last.message.id,
                model,
                now.system,
                self.talk.options,
                usage,
                now.ctx_max,
            )
            if which != self._panel_for:  # it forgets the answer that it shows
                self._panel_for = which
                panel.show_chat(
                    model=model or None,
                    system=now.system,
                    options=self.talk.options,
                    usage=usage,
                    context=now.ctx_max,
                )
            if last and last.answer:
                panel.show_answer(last.answer)

    def say(self, words: str, seconds: float = NOTE_S) -> None:
        """What came of a wish, in the status line for a moment."""
        self._note, self._note_until = words, self._clock() + seconds
        self._draw_lines()
        self.set_timer(seconds + 0.05, self._draw_lines)

    async def ask(self, box: Screen[Answer | None]) -> Answer | None:
        """What a person answers in a box over this screen; None where they closed it."""
        return cast(Answer | None, await self.app.push_screen_wait(box))

    def write(self, sequence: str) -> None:
        """Send the terminal what is no picture, such as a text for its clipboard."""
        if self.app._driver:
            self.app._driver.write(sequence)
            self.app._driver.flush()

    def from_thread(self, call: Callable[..., None]) -> Callable[..., None]:
        """`call`, to be called from another thread."""
        return lambda *args: self.app.call_from_thread(call, *args)

    @property
    def ascii(self) -> bool:
        return self._ascii

    def shown_lists(self) -> Iterator[ChatList]:
        if self.chat_list.display:
            yield self.chat_list
        if self.over and self.over.is_attached:
            yield self.over

    def _welcome(self) -> str:
        keys = {key.id: in_words(self.remaps.get(key.id, key.keys)) for key in TABLE["screen"]}
        return WELCOME.format_map(keys)

    def _look(self) -> Look:
        """How answers are drawn; what a key does is said with the key that this person has for it."""
        copy, fold = (
            in_words(self.remaps.get(name, key)) for name, key in (("copy-code", "Y"), ("fold", "space"))
        )
        return Look(ascii=self._ascii, copy_hint=f"{copy}: copy code", fold_hint=f"{fold}: unfold")

    @property
    def remaps(self) -> dict[str, str]:
        return dict(cast(Any, self.app).wanted.keys)

    def palette_source(self) -> Source:
        return Source(remaps=self.remaps, chats=self.wishes.shelf.recent)

    def on_descendant_focus(self) -> None:
        self._draw_lines()  # what Esc and the letters do depends on it

    def on_resize(self) -> None:
        self.call_after_refresh(self._draw_lines)

    # ---- the box

    @work(exclusive=True, group="health", exit_on_error=False)
    async def _why_so_long(self) -> None:
        await self._ask_health()

    async def _ask_health(self) -> None:
        try:
            self._health = await courier.in_thread(
                self.daemon.json, "GET", "/health", timeout_s=5.0, accept=(503,)
            )
            self._serves((self._health or {}).get("model"))
        except HomeboxError as error:
            if not self.talk.now.items:
                self.talk.failed(error)

    def _serves(self, model: str | None) -> None:
        if model:
            self.model = self.talk.served = str(model)

    @work(group="box", exit_on_error=False)
    async def _watch_box(self) -> None:
        """The box's figures, for the title and the panel."""
        self._boxes = courier.box(self.daemon, 2.0)
        async for picture in self._boxes:
            self._box = picture if isinstance(picture, Snapshot) else None
            if self._box:
                self._serves(self._box.model)
            self.query_one(SidePanel).show_house(self._box)
            self._draw_lines()

    # ---- drafts

    async def leave_draft(self) -> None:
        """What is typed stays with the conversation that is left."""
        await self._guarded(self._keep_draft(self.prompt.draft))
        self._draft = ""
        self.prompt.clear()

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
        if not text:
            return
        if self.prompt.draft:
            self.say("your message was not sent; Up has it")
        else:
            self.prompt.draft = text
            self.say("your message was not sent; here it is again")
