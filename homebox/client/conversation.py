"""What is in the conversation that a person has open, and what is happening to it?

A frozen value and the functions that lead from one to the next, beside `client/state.py`, which does the same for one
answer. The messages of the current path as the daemon has them, what it says of those being written, and what this
person has said that the daemon does not know yet. The chat screen draws it; it knows no sockets, clocks or screens.
"""

from __future__ import annotations

from typing import Any

import msgspec

from homebox.client.state import ChatState
from homebox.errors import HomeboxError
from homebox.wire.chats import ChatView, MessageView
from homebox.wire.requests import TurnCreated

SAID, ANSWERING = "said", "answering"  # ids of what the daemon has not confirmed yet


class Item(msgspec.Struct, frozen=True):
    """A message, and what is known of its making: `answer` while it is written and as long as it stays open. `resumed`:
    when it was asked to go on, in unix seconds."""

    message: MessageView
    answer: ChatState | None = None
    resumed: float = 0.0

    @property
    def growing(self) -> bool:
        return self.answer is not None and not self.answer.done

    @property
    def since(self) -> float:
        """When its answer was asked for, in unix seconds."""
        return self.resumed or self.message.created

    @property
    def text(self) -> str:
        return self.answer.text if self.answer else self.message.content

    @property
    def think(self) -> str:
        return self.answer.think if self.answer else self.message.think


class Conversation(msgspec.Struct, frozen=True, kw_only=True):
    """`known`: the daemon has it. `earlier`: messages of the path before the first of `items`. `queued`: said while an
    answer is written, sent after it. `error`: why the last wish failed. `ctx_used` of `ctx_max` tokens are in use, as
    far as is known."""

    chat: str
    known: bool = False
    title: str = ""
    system: str | None = None
    model: str | None = None
    items: tuple[Item, ...] = ()
    earlier: int = 0
    queued: tuple[str, ...] = ()
    error: HomeboxError | None = None
    ctx_used: int | None = None
    ctx_max: int | None = None

    @property
    def growing(self) -> Item | None:
        """The answer that is being written, or asked for."""
        return self.items[-1] if self.items and self.items[-1].growing else None

    @property
    def last_answer(self) -> Item | None:
        return next((item for item in reversed(self.items) if item.message.role == "assistant"), None)

    def item(self, message: str) -> Item | None:
        return next((item for item in self.items if item.message.id == message), None)

    def question_of(self, message: str) -> Item | None:
        """The question that this message is or answers."""
        found = None
        for item in self.items:
            if item.message.role == "user":
                found = item
            if item.message.id == message:
                return found
        return None


def opened(now: Conversation, view: ChatView) -> Conversation:
    """The daemon's word on the whole path. What is known of answers that are still the same is kept."""
    known = {item.message.id: item.answer for item in now.items if item.answer}
    resumed = {item.message.id: item.resumed for item in now.items}
    items = []
    for message in view.messages:
        answer = known.get(message.id)
        if message.id in view.turns and (answer is None or answer.done):
            # It goes on elsewhere: from a restart, another screen, or before this one was opened.
            answer = ChatState(text=message.content, think=message.think)
        elif answer and answer.done and answer.text != message.content:
            answer = None
        items.append(Item(message, answer, resumed.get(message.id, 0.0)))
    return _with(
        now,
        chat=view.id,
        known=True,
        title=view.title,
        system=view.system,
        model=view.model,
        items=tuple(items),
        earlier=view.earlier,
        ctx_used=view.ctx_used if view.ctx_used is not None else now.ctx_used,
        ctx_max=view.ctx_max if view.ctx_max is not None else now.ctx_max,
    )


def older(now: Conversation, view: ChatView) -> Conversation:
    """More of the path, before what is there."""
    return _with(now, items=(*(Item(message) for message in view.messages), *now.items), earlier=view.earlier)


def asked(
    now: Conversation, text: str, at: float, *, parent: str | None = None, model: str | None = None
) -> Conversation:
    """A person has said something; the daemon does not know it yet. `parent`: it takes the place of what followed.
    `model`: the one that will answer, where the conversation has none of its own."""
    kept = now.items
    if parent is not None:
        ids = [item.message.id for item in kept]
        kept = kept[: ids.index(parent) + 1] if parent in ids else ()
    siblings = _beside(now, len(kept), SAID)
    question = MessageView(id=SAID, role="user", content=text, created=at, siblings=siblings)
    return _answering(_with(now, items=(*kept, Item(question))), at, model, [])


def answered_again(now: Conversation, message: str, at: float, *, model: str | None = None) -> Conversation:
    """Another answer is asked for in the place of `message` and what follows it, or to a question."""
    ids = [item.message.id for item in now.items]
    at_message = ids.index(message)
    end = at_message if now.items[at_message].message.role == "assistant" else at_message + 1
    siblings = _beside(now, end, ANSWERING)
    return _answering(_with(now, items=now.items[:end]), at, model, siblings)


def goes_on(now: Conversation, at: float) -> Conversation:
    """The last answer is asked to grow further."""
    *before, last = now.items
    begun = ChatState(text=last.text, think=last.think)
    return _with(now, items=(*before, Item(last.message, begun, at)), error=None)


def begun(now: Conversation, created: TurnCreated) -> Conversation:
    """The daemon has stored it and knows it by these ids."""
    names = {SAID: created.question, ANSWERING: created.answer}
    items = []
    for item in now.items:
        name = names.get(item.message.id) or item.message.id
        turn = created.turn if name == created.answer else item.message.turn
        siblings = [names.get(each) or each for each in item.message.siblings]
        message = msgspec.structs.replace(item.message, id=name, turn=turn, siblings=siblings)
        items.append(msgspec.structs.replace(item, message=message))
    return _with(now, chat=created.chat or now.chat, known=True, items=tuple(items))


def heard(now: Conversation, message: str, answer: ChatState) -> Conversation:
    """What the reducer says of the answer `message`."""
    items = tuple(
        msgspec.structs.replace(item, answer=answer) if item.message.id == message else item
        for item in now.items
    )
    changes: dict[str, Any] = {"items": items}
    if answer.stats:
        changes |= {"ctx_used": answer.stats.ctx_used, "ctx_max": answer.stats.ctx_max}
    return _with(now, **changes)


def left(now: Conversation, message: str) -> Conversation:
    """Nothing more is heard of an answer that is perhaps still written: what arrived stays, and one may go on."""
    items = tuple(
        Item(msgspec.structs.replace(item.message, content=item.text, think=item.think))
        if item.message.id == message
        else item
        for item in now.items
    )
    return _with(now, items=items)


def refused(now: Conversation, before: Conversation, error: HomeboxError | None) -> Conversation:
    """What was wanted did not begin: everything is as it was `before`, and why is said, if it was not given up."""
    return _with(before, queued=now.queued, error=error)


def _answering(now: Conversation, at: float, model: str | None, siblings: list[str]) -> Conversation:
    answer = MessageView(
        id=ANSWERING,
        role="assistant",
        content="",
        state="growing",
        created=at,
        model=now.model or model,
        siblings=siblings,
    )
    return _with(now, items=(*now.items, Item(answer, ChatState())), error=None)


def _beside(now: Conversation, place: int, name: str) -> list[str]:
    """The siblings of a new message that stands in this place of the path."""
    if place >= len(now.items):
        return []
    message = now.items[place].message
    return [*(message.siblings or [message.id]), name]


def _with(now: Conversation, **changes: Any) -> Conversation:
    return msgspec.structs.replace(now, **changes)
