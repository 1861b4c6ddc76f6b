"""How does a growing answer get to disk, quickly enough to lose nothing and slowly enough to hold up nobody?

One `Saver` an answer hears each piece from the narrator and has at most one write under way. A disk that takes nothing
is told to the reader once, tried again every second, and holds up neither the answer nor its end: everything stays in
memory until there is room. It knows no HTTP.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from homebox.daemon.answer import Delta
from homebox.daemon.bell import Bell, to_beat
from homebox.daemon.chats import growing
from homebox.daemon.chats.growing import Ending, Piece
from homebox.daemon.chats.store import Chats
from homebox.daemon.turns import Turn
from homebox.errors import Busy, HomeboxError, NoSpace
from homebox.wire.chats import State

log = logging.getLogger("homebox.chats")

EVERY_S = 0.1  # with the narrator's own 0.05 s a piece is at most 150 ms old when it is written
EVERY_TOKENS = 64
RETRY_S = 1.0
LEAVE_S = 5.0  # at the end of the daemon, for a disk that says nothing
_STATES: dict[str, State] = {"stop": "done", "length": "length", "cancelled": "stopped", "error": "error"}


class Saver:
    """`begin` once the answer's message is on its way to the file; `give_up` where it never got there."""

    def __init__(self, chats: Chats, person: str, message: str, tokens: list[int]) -> None:
        self.message = message
        self.trouble: HomeboxError | None = None  # why what is here is not on disk
        self.kept = asyncio.Event()  # all of it is there, for good
        self._chats, self._person = chats, person
        self._tokens = tokens  # of the whole answer
        self._new = Piece()
        self._news = asyncio.Event()
        self._hurry = Bell()  # enough tokens, the end, or somebody waits
        self._told = False
        self._turn: Turn | None = None
        self._notice: Callable[[str, str], None] = lambda code, message: None
        self._task: asyncio.Task[None] | None = None
        self._end: Callable[[], None] | None = None
        self._leaving = False

    def begin(self, turn: Turn, notice: Callable[[str, str], None], on_over: Callable[[], object]) -> None:
        """`on_over` is called when there is nothing more to do."""
        self._turn, self._notice = turn, notice
        self._task = asyncio.create_task(self._run(), name=f"save {self.message}")
        self._task.add_done_callback(lambda task: on_over())

    def give_up(self) -> None:
        self._tell()

    @property
    def running(self) -> bool:
        """The answer is still being made."""
        return self._end is None

    @property
    def turn(self) -> Turn:
        assert self._turn is not None, "only asked after `begin`"
        return self._turn

    async def settle(self, within_s: float) -> None:
        """Try now. Raises what stands in the way if the answer has ended and is not on disk in time."""
        self._hurry.ring()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.kept.wait(), within_s)
        if not self.kept.is_set():
            raise self.trouble or Busy("the last answer is still on its way to the disk", retry_after_s=2)

    async def leave(self) -> None:
        """The daemon stops: one last try."""
        self._leaving = True
        self._hurry.ring()
        if self._task:
            await asyncio.wait([self._task], timeout=LEAVE_S)

    # ---- Keeper

    def grew(self, delta: Delta) -> None:
        ids = [one.token for one in delta.spoken]
        self._tokens += ids
        self._new.text += delta.text
        self._new.think += delta.think
        self._new.tokens += ids
        self._news.set()
        if len(self._new.tokens) >= EVERY_TOKENS:
            self._hurry.ring()

    def ended(self, tell: Callable[[], None]) -> None:
        self._end = tell
        self._news.set()
        self._hurry.ring()

    # ---- to the disk

    async def _run(self) -> None:
        try:
            while self._end is None:
                await self._news.wait()
                await self._hurry.rung(RETRY_S if self.trouble else to_beat(EVERY_S))
                if self._end is None:
                    await self._append()
            while not await self._try(growing.fold, self._ending(), durable=True):
                self._tell()
                if self._leaving:
                    log.error("an answer could not be saved", extra={"fields": {"person": self._person}})
                    return
                await self._hurry.rung(RETRY_S)
            self.kept.set()
        finally:
            self._tell()

    async def _append(self) -> None:
        piece, self._new = self._new, Piece()
        self._news.clear()
        if not piece or await self._try(growing.append, piece, durable=False):
            return
        newer = self._new
        self._new = Piece(piece.text + newer.text, piece.think + newer.think, piece.tokens + newer.tokens)
        self._news.set()

    async def _try(self, what: Callable[..., None], *args: object, durable: bool) -> bool:
        try:
            await self._chats.write(self._person, what, self.message, *args, durable=durable)
        except HomeboxError as error:
            if self.trouble is None:
                self._notice(error.code, _unsaved(error))
            self.trouble = error
            return False
        if self.trouble is not None:
            self._notice("saved", "everything is saved again")
        self.trouble = None
        return True

    def _tell(self) -> None:
        if self._end and not self._told:
            self._told = True
            self._end()

    def _ending(self) -> Ending:
        choice = self.turn.choices[0]
        answer = choice.answer
        return Ending(
            text=answer.text,
            think=answer.think,
            tokens=tuple(self._tokens),
            state=_STATES[choice.finish or "error"],
            detail=choice.error.message if choice.finish == "error" and choice.error else choice.detail,
            usage=self.turn.usage,
            timing=self.turn.timing,
        )


def _unsaved(error: HomeboxError) -> str:
    if isinstance(error, NoSpace):
        return f"the answer goes on, but cannot be saved: {error.message}"
    return f"the answer goes on, but is not saved: {error.message}"
