"""What does a person do with the conversation that is open, and what comes of it?

Between the screen and the daemon: each wish (say, stop, answer again, go on, another branch) is a coroutine that makes
the calls in threads and leads the frozen `Conversation` from one state to the next; `changed` is told after every one.
It draws nothing and knows no keys.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from homebox.client import chats, conversation, stream
from homebox.client.connection import Daemon
from homebox.client.conversation import ANSWERING, Conversation, Item
from homebox.client.state import ChatState, ConnectionLost
from homebox.errors import HomeboxError, InvalidRequest
from homebox.tui import courier
from homebox.wire.chats import ContinueRequest, RegenerateRequest
from homebox.wire.requests import Options, TurnCreated, TurnRequest

WINDOW = 40  # messages that are read at once: 20 turns


class _GivenUp(Exception):
    """The person no longer waits for a daemon that does not answer."""


class Talk:
    """One conversation at a time. `now` is what there is; `away`: the daemon does not answer a wish, and when it is
    asked again."""

    def __init__(
        self,
        daemon: Daemon,
        changed: Callable[[], None],
        *,
        unsent: Callable[[str], None] = lambda text: None,
        options: Options | None = None,
        system: str | None = None,
        window: int = WINDOW,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`unsent` gets a message back that did not go out."""
        self._daemon = daemon
        self._changed = changed
        self._unsent = unsent
        self.options = options or Options()
        self._system = system
        self._window = window
        self._clock = clock
        self._reader: courier.Newest[ChatState] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._given_up = threading.Event()  # what could not be sent yet
        self._looked = 0  # how often the daemon was asked for the whole path
        self._generation = 0  # of opened conversations: what belongs to an earlier one is dropped
        self.now = _new(system)
        self.away: ConnectionLost | None = None
        self.served: str | None = None  # the model that answers where none is chosen
        self.stopped: set[str] = set()  # turns that were stopped from here

    # ---- which conversation

    def new(self, system: str | None = None) -> None:
        """A fresh one. What is written in the one before goes on in the daemon."""
        self._leave()
        self._set(_new(system or self._system))

    async def open(self, chat: str, *, at: str | None = None) -> None:
        """Another one, shown at its end, or with the message `at` on its path. Raises NotFound, DaemonUnreachable."""
        if at is not None:
            await self._call(chats.change, chat, head=at)
        view = await self._call(chats.show, chat, last=self._window)
        self._leave()
        self._set(conversation.opened(Conversation(chat=chat), view))
        self._follow_what_grows()

    async def older(self) -> None:
        """Read more of what came before."""
        now = self.now
        if now.earlier and now.items:
            first = now.items[0].message.id
            view = await self._call(chats.show, now.chat, last=self._window, before=first)
            if self.now.items and self.now.items[0].message.id == first:
                self._set(conversation.older(self.now, view))

    async def refresh(self) -> None:
        """What the daemon says of this conversation now."""
        if self.now.known:
            self._looked += 1
            generation, looked = self._generation, self._looked
            view = await self._call(chats.show, self.now.chat, last=max(self._window, len(self.now.items)))
            if (generation, looked) == (
                self._generation,
                self._looked,
            ):  # not what was so before another wish
                self._set(conversation.opened(self.now, view))
                self._follow_what_grows()

    # ---- wishes

    def say(self, text: str, *, parent: str | None = None) -> None:
        """Send a message, or queue it behind the answer that is being written. `parent`: the message it follows, for a
        branch; `"root"` begins the conversation anew."""
        now = self.now
        if now.growing and parent is None:
            self._set(_with(now, queued=(*now.queued, text)))
            return
        request = TurnRequest(
            key=_key(),
            text=text,
            system=None if now.known else now.system,
            parent=parent,
            options=self.options,
        )
        wanted = conversation.asked(now, text, self._clock(), parent=parent, model=self.model or self.served)
        self._begin(wanted, chats.path(now.chat, "turns"), request, unsent=text)

    def regenerate(self, message: str) -> None:
        """Another answer beside `message`, or to the question it is."""
        self._need_quiet()
        request = RegenerateRequest(key=_key(), message=message, options=self.options)
        wanted = conversation.answered_again(
            self.now, message, self._clock(), model=self.model or self.served
        )
        self._begin(wanted, chats.path(self.now.chat, "regenerate"), request)

    def go_on(self) -> None:
        """Let the last answer grow further. Raises InvalidRequest where there is none."""
        self._need_quiet()
        last = self.now.items[-1] if self.now.items else None
        if last is None or last.message.turn is None:
            raise InvalidRequest("there is no answer to go on with")
        request = ContinueRequest(key=_key(), options=self.options)
        self._begin(
            conversation.goes_on(self.now, self._clock()),
            f"/homebox/turns/{last.message.turn}/continue",
            request,
            have=last,
        )

    async def stop(self) -> None:
        """Stop the answer that is written, and keep it. Returns once its memory is free."""
        growing = self.now.growing
        if growing is None:
            return
        if growing.message.turn is None:
            self.stopped.add("")  # as soon as it has an id
            self._given_up.set()  # or not at all, where the daemon is away
            return
        self.stopped.add(growing.message.turn)
        with contextlib.suppress(
            HomeboxError
        ):  # it ended by itself, or the daemon is away: the reader sees which
            await self._call(stream.cancel, growing.message.turn)

    def withdraw_queued(self) -> str | None:
        """The last message that waits to be sent, taken back."""
        *rest, last = self.now.queued or (None,)
        if last is not None:
            self._set(_with(self.now, queued=tuple(each for each in rest if each is not None)))
        return last

    async def branch(self, message: str, by: int) -> None:
        """The path through the sibling `by` places further."""
        self._need_quiet()
        item = self.now.item(message)
        siblings = item.message.siblings if item else []
        if message in siblings and 0 <= (at := siblings.index(message) + by) < len(siblings):
            await self._call(chats.change, self.now.chat, head=siblings[at])
            await self.refresh()

    async def title(self, title: str) -> None:
        self._need_words()
        await self._call(chats.change, self.now.chat, title=title)
        await self.refresh()

    async def instruct(self, system: str | None) -> None:
        """Another instruction, from the next answer on."""
        if self.now.known:
            await self._call(chats.change, self.now.chat, system=system)
        self._set(_with(self.now, system=system))

    def choose_model(self, model: str | None) -> None:
        self.options = msgspec.structs.replace(self.options, model=model)
        self._changed()

    @property
    def model(self) -> str | None:
        """The one that was chosen here."""
        return self.options.model

    def forget_error(self) -> None:
        if self.now.error:
            self._set(_with(self.now, error=None))

    def failed(self, error: HomeboxError) -> None:
        """Say it where the person looks."""
        self._set(_with(self.now, error=error))

    def close(self) -> None:
        """Read nothing more; what is written goes on in the daemon."""
        self._leave()

    # ---- how

    def _begin(
        self,
        wanted: Conversation,
        path: str,
        request: TurnRequest | RegenerateRequest | ContinueRequest,
        *,
        unsent: str = "",
        have: Item | None = None,
    ) -> None:
        before, generation = self.now, self._generation
        self._given_up = threading.Event()
        self._set(wanted)

        async def begin() -> None:
            try:
                created = await self._send(path, request)
            except (HomeboxError, _GivenUp) as error:
                if generation == self._generation:
                    self.away = None
                    self.stopped.discard("")
                    why = error if isinstance(error, HomeboxError) else None
                    self._set(conversation.refused(self.now, before, why))
                    self._unsent(unsent)
                return
            if generation != self._generation:
                return  # another conversation is open; this one goes on in the daemon
            self.away = None
            self._set(conversation.begun(self.now, created))
            if "" in self.stopped:
                self.stopped.discard("")
                self._start(self.stop())
            answer = created.answer or ANSWERING
            state = ChatState(text=have.text, think=have.think) if have else ChatState()
            await self._read(created.turn, answer, state)

        self._start(begin())

    async def _send(
        self, path: str, request: TurnRequest | RegenerateRequest | ContinueRequest
    ) -> TurnCreated:
        loop, given_up = asyncio.get_running_loop(), self._given_up

        def on_retry(lost: ConnectionLost) -> None:
            loop.call_soon_threadsafe(self._is_away, lost)

        def pause(seconds: float) -> None:
            if given_up.wait(seconds):
                raise _GivenUp

        return await self._call(stream.begin, path, request, on_retry=on_retry, pause=pause)

    def _is_away(self, lost: ConnectionLost) -> None:
        self.away = lost
        self._changed()

    def _follow_what_grows(self) -> None:
        """An answer that was being written when this conversation was opened."""
        growing = self.now.growing
        if growing and growing.message.turn and self._reader is None:
            # From its first event on: what it said so far is part of that.
            self._start(self._read(growing.message.turn, growing.message.id, ChatState()))

    async def _read(self, turn: str, answer: str, begun: ChatState) -> None:
        generation = self._generation
        self._reader = courier.answer(self._daemon, turn, begun)
        away = False
        try:
            async for state in self._reader:
                if generation != self._generation:
                    return
                self._set(conversation.heard(self.now, answer, state))
                back, away = away and not state.connection_lost, state.connection_lost is not None
                if back and not state.done and turn in self.stopped:
                    self._start(self.stop())  # it was wanted while nobody heard it
        except HomeboxError as error:
            if generation == self._generation:
                self._set(conversation.left(self.now, answer))
                self.failed(error)
                return
        finally:
            if generation == self._generation:
                self._reader = None
        if generation == self._generation:
            await self._ended()

    async def _ended(self) -> None:
        with contextlib.suppress(
            HomeboxError
        ):  # the text is here; its place among branches comes with the next wish
            await self.refresh()
        queued = self.now.queued
        if queued and not self.now.growing:
            self._set(_with(self.now, queued=queued[1:]))
            self.say(queued[0])

    def _leave(self) -> None:
        self._generation += 1
        self.away = None
        self.stopped.clear()
        if self._reader:
            self._reader.leave()
            self._reader = None

    def _need_quiet(self) -> None:
        if self.now.growing:
            raise InvalidRequest("an answer is being written", hint="Esc stops it and keeps what is there.")
        self._need_words()

    def _need_words(self) -> None:
        if not self.now.known:
            raise InvalidRequest("nothing has been said in this conversation yet")

    def _set(self, now: Conversation) -> None:
        self.now = now
        self._changed()

    def _start(self, what: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(what)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _call(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return await courier.in_thread(call, self._daemon, *args, **kwargs)


def _new(system: str | None) -> Conversation:
    return Conversation(chat=secrets.token_hex(8), system=system)


def _key() -> str:
    return secrets.token_hex(16)


def _with(now: Conversation, **changes: Any) -> Conversation:
    return msgspec.structs.replace(now, **changes)
