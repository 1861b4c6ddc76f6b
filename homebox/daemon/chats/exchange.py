"""How does what a person says in a chat become a turn of the engine, and the turn an answer in the chat?

One thing at a time in a chat: find the place, make the prompt, queue it, store it. A turn that cannot be stored is
withdrawn before anybody has heard of it; one that is stored has a `Saver` to its end. The same key gives the same turn,
however often and whenever it comes. It knows people by name, and no HTTP.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

import msgspec

from homebox.daemon.chats import deleting, history, tree
from homebox.daemon.chats.looking import timing_of, usage_of
from homebox.daemon.chats.saver import Saver
from homebox.daemon.chats.store import Chats
from homebox.daemon.chats.tokens import common, computed, unpack
from homebox.daemon.chats.tree import Place, Said, Submission
from homebox.daemon.identity import Person
from homebox.daemon.policy import check_instruction, messages_for
from homebox.daemon.prompting import Prompts
from homebox.daemon.turnbook import Ask, TurnBook
from homebox.errors import Busy, InvalidRequest
from homebox.wire import events
from homebox.wire.chats import ChatView, ContinueRequest, RegenerateRequest
from homebox.wire.requests import Options, TurnCreated, TurnRequest

MAX_KEY_CHARACTERS = 200
SETTLE_S = 2.0  # how long the next message waits for the last answer to reach the disk
_REASONS = {
    "done": "stop",
    "length": "length",
    "stopped": "cancelled",
    "error": "error",
    "growing": "cancelled",
}

AskFor = Callable[[Person, Options, list[int], int], Ask]


@dataclass(frozen=True, kw_only=True)
class _Prompt:
    """What the engine reads: `ids`, of which the first `kept` are those of the answer `base`, then `own`, the part of
    the answer that is there already."""

    ids: list[int]
    base: str | None = None
    kept: int = 0
    own: list[int]


class Exchange:
    """`ask_for` makes what the turn book takes of a person, options, a prompt, and how much of it is the answer's."""

    def __init__(self, chats: Chats, book: TurnBook, prompts: Prompts, ask_for: AskFor) -> None:
        self._chats, self._book, self._prompts, self._ask_for = chats, book, prompts, ask_for
        self._savers: dict[
            tuple[str, str], Saver
        ] = {}  # of answers not wholly on disk, by person and message
        self._doors: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()
        self._beginning: set[asyncio.Task[TurnCreated]] = set()

    # ---- what a person wants

    async def say(self, person: Person, chat: str, body: TurnRequest) -> TurnCreated:
        """Store words and queue an answer. Raises what refuses it; nothing is stored or queued then."""

        async def begin(place: Place) -> TurnCreated:
            prompt = await self._prompt(person, place, body.text)
            return await self._begin(person, place, body.key, prompt, body.options, text=body.text)

        check_instruction(person, body.system)
        find = (tree.place_to_say, chat, body.key, body.system, body.parent)
        return await self._once(person.name, chat, body.key, find, begin)

    async def regenerate(self, person: Person, chat: str, body: RegenerateRequest) -> TurnCreated:
        """Another answer to a question that has one."""

        async def begin(place: Place) -> TurnCreated:
            return await self._begin(person, place, body.key, await self._prompt(person, place), body.options)

        find = (tree.place_to_answer, chat, body.key, body.message)
        return await self._once(person.name, chat, body.key, find, begin)

    async def go_on(self, person: Person, turn: str, body: ContinueRequest) -> TurnCreated:
        """Let the answer of a turn grow further."""

        async def begin(place: Place) -> TurnCreated:
            prompt = await self._unfinished(person, place)
            return await self._begin(person, place, body.key, prompt, body.options)

        row = await self._chats.read(person.name, tree.turn_row, turn)
        find = (tree.place_to_continue, turn, body.key)
        return await self._once(person.name, row["chat"], body.key, find, begin)

    async def delete(self, person: Person, chat: str) -> None:
        """What is being written for it is stopped and kept with it. Raises NotFound."""
        async with self._door(person.name, chat):
            growing = await self._chats.write(person.name, deleting.delete, chat)
        self._stop(person.name, growing, "its chat was deleted")

    async def delete_message(self, person: Person, chat: str, message: str) -> None:
        """With all that was said after it; what is being written there is stopped and kept with it. Raises NotFound."""
        async with self._door(person.name, chat):
            growing = await self._chats.write(person.name, deleting.delete_message, chat, message)
        self._stop(person.name, growing, "its message was deleted")

    def _stop(self, person: str, growing: list[str], why: str) -> None:
        for message in growing:
            if saver := self._savers.get((person, message)):
                saver.turn.cancel(why)

    # ---- what is there

    def overlay(self, person: str, shown: ChatView) -> ChatView:
        """The chat with what its growing answers have in memory, which may be newer than the disk, and with the room
        that a conversation has today."""
        fresh, used = [], shown.ctx_used
        for each in shown.messages:
            if saver := self._savers.get((person, each.id)):
                answer = saver.turn.choices[0].answer
                each = msgspec.structs.replace(each, content=answer.text, think=answer.think)
            fresh.append(each)
        if saver := self._savers.get((person, shown.head or "")):
            used = saver.turn.tokens_in + saver.turn.tokens_out
        return msgspec.structs.replace(
            shown, messages=fresh, ctx_used=used, ctx_max=self._book.limits.context
        )

    async def ended(self, person: str, turn: str, after: int) -> list[events.Event]:
        """A turn that is no longer told event by event: its answer as it is kept, numbered above `after`. Raises
        NotFound."""
        row = await self._chats.read(person, tree.turn_row, turn)
        read, written = row["kept"] + len(unpack(row["prompt"])), len(unpack(row["tokens"]))
        return [
            events.Resync(seq=after + 1, text=row["text"], think=row["think"]),
            events.Finished(
                seq=after + 2,
                reason=_REASONS[row["state"]],
                usage=usage_of(row) or events.Usage(read, written),
                timing=timing_of(row) or events.Timing(),
                detail="it goes on in another turn" if row["state"] == "growing" else row["detail"],
                error={"code": "engine_failed", "message": row["detail"]}
                if row["state"] == "error"
                else None,
            ),
        ]

    async def close(self) -> None:
        """The daemon stops: wait until what was answered is on disk, as far as the disk takes it."""
        await asyncio.gather(*self._beginning, return_exceptions=True)
        await asyncio.gather(*(saver.leave() for saver in tuple(self._savers.values())))

    # ---- one turn

    async def _once(
        self,
        person: str,
        chat: str,
        key: str,
        find: tuple[Any, ...],
        begin: Callable[[Place], Awaitable[TurnCreated]],
    ) -> TurnCreated:
        """The turn of this key: the one there is, or a new one at the place that `find` finds. Goes on when whoever
        asked has left, so that asking again finds it."""
        if not 0 < len(key) <= MAX_KEY_CHARACTERS:
            raise InvalidRequest(f"key must have 1 to {MAX_KEY_CHARACTERS} characters", param="key")

        async def alone() -> TurnCreated:
            async with self._door(person, chat):
                place = await self._place(person, find)
                if place.turn is None:
                    return await begin(place)
                return TurnCreated(
                    turn=place.turn, chat=place.chat, question=place.question, answer=place.answer
                )

        task = asyncio.create_task(alone())
        self._beginning.add(task)
        task.add_done_callback(self._begun)
        return await asyncio.shield(task)

    def _begun(self, task: asyncio.Task[TurnCreated]) -> None:
        self._beginning.discard(task)
        if not task.cancelled():
            task.exception()  # told to whoever asked, if they are still there

    def _door(self, person: str, chat: str) -> asyncio.Lock:
        return self._doors.setdefault((person, chat), asyncio.Lock())

    async def _place(self, person: str, find: tuple[Any, ...]) -> Place:
        """Raises what `find` raises, Busy while the answer there is being written, and why it cannot be saved."""
        place: Place = await self._chats.read(person, *find)
        ends = {place.head, place.path[-1].id if place.path else None}
        savers = [saver for end in ends if (saver := self._savers.get((person, end or "")))]
        if place.turn is not None or not savers:
            return place
        if any(saver.running for saver in savers):
            raise Busy(
                "this chat is still being answered", hint="Stop that answer first, or wait.", retry_after_s=2
            )
        for saver in savers:
            await saver.settle(SETTLE_S)
        again: Place = await self._chats.read(person, *find)
        return again

    async def _prompt(self, person: Person, place: Place, text: str | None = None) -> _Prompt:
        base, before = history.known(place.path, self._book.manifest.name)
        said = messages_for(person, history.messages(place.system, place.path, text), kept=True)
        ids = await self._prompts.of_chat(said, before)
        kept = common(ids, before.ids) if before else 0
        return _Prompt(ids=ids, base=base if kept else None, kept=kept, own=[])

    async def _unfinished(self, person: Person, place: Place) -> _Prompt:
        """The prompt of an answer that is to go on, and what there is of it: the very tokens, if this model made them.
        Raises InvalidRequest where it cannot go on."""
        last = place.path[-1]
        if last.state == "done":
            raise InvalidRequest(
                "this answer ended by itself: there is nothing to go on with",
                hint="Ask for more in the chat, or answer the question again.",
            )
        if last.ids and last.model == self._book.manifest.name:
            prompt, own = computed({each.id: each.ids for each in place.path if each.ids}, last.id)
            if (
                prompt
                and await self._says(prompt, own, last)
                and await self._may_still(person, place, prompt)
            ):
                return _Prompt(ids=prompt, base=last.ids.base, kept=last.ids.kept, own=own)
        before = await self._before(person, place)
        own = self._book.tokenizer.words(last.text)
        if not await self._says(before.ids, own, last):
            raise InvalidRequest(
                "this answer cannot go on: the model that is loaded cannot take it up where it ended",
                hint="Answer the question again instead.",
            )
        return _Prompt(ids=before.ids, base=before.base, kept=before.kept, own=own)

    async def _before(self, person: Person, place: Place) -> _Prompt:
        """What the model reads today before the last answer of the path."""
        asked = Place(chat=place.chat, system=place.system, head=place.head, path=place.path[:-1])
        return await self._prompt(person, asked)

    async def _may_still(self, person: Person, place: Place, prompt: list[int]) -> bool:
        """Whether what the model read then may be read again. Who has become a kid since has a preamble now, and no
        instructions of their own: raises NotAllowed for those."""
        return person.role != "kid" or (await self._before(person, place)).ids == prompt

    async def _says(self, prompt: list[int], own: list[int], last: Said) -> bool:
        # In a thread: thousands of tokens take so long that everybody's answers would stand still.
        said = await asyncio.to_thread(self._book.said_so_far, prompt, own)
        return (said.text, said.think) == (last.text, last.think)

    async def _begin(
        self,
        person: Person,
        place: Place,
        key: str,
        prompt: _Prompt,
        options: Options,
        text: str | None = None,
    ) -> TurnCreated:
        """Queue it, then store it; the engine reads the prompt while the disk turns."""
        answer = place.answer or tree.new_id()
        question = tree.new_id() if text is not None else place.question or place.path[-1].id
        saver = Saver(self._chats, person.name, answer, list(prompt.own))
        ask = self._ask_for(person, options, [*prompt.ids, *prompt.own], len(prompt.own))
        kept = self._book.open_story(ask, saver)
        new = Submission(
            chat=place.chat,
            key=key,
            turn=kept.turn.id,
            system=place.system,
            model=self._book.manifest.name,
            parent=place.path[-1].id if place.path else None,
            question=question,
            text=text,
            answer=answer,
            goes_on=place.answer is not None,
            base=prompt.base,
            kept=prompt.kept,
            prompt=prompt.ids[prompt.kept :],
            own=prompt.own,
        )
        size = len((text or "").encode("utf-8", "surrogatepass")) + 4 * len(new.prompt) + 1
        try:
            await self._chats.write(person.name, tree.submit, new, needs_bytes=size)
        except BaseException:
            self._book.withdraw(kept, "it could not be stored")
            saver.give_up()
            raise
        self._savers[person.name, answer] = saver
        saver.begin(kept.turn, kept.narrator.notice, lambda: self._savers.pop((person.name, answer), None))
        return TurnCreated(turn=kept.turn.id, chat=place.chat, question=question, answer=answer)
