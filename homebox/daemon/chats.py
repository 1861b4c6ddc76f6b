"""What was said in this chat so far? In memory, each chat belongs to one person and nobody else can reach it.

`Chats` is the interface behind which a store on disk can stand later: find, add what a person said, add what was
answered, give the history that a template can render. It knows no turns and no HTTP.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from homebox.errors import InvalidRequest, NotFound
from homebox.wire.requests import Message

CHATS_PER_PERSON = 500
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


@dataclass(eq=False)
class Chat:
    id: str
    person: str
    created_unix: float
    messages: list[Message] = field(default_factory=list)
    turns: dict[str, str] = field(default_factory=dict)  # idempotency key > turn id
    asking: asyncio.Lock = field(default_factory=asyncio.Lock)  # one message at a time finds its place

    def history(self) -> list[Message]:
        return alternating(self.messages)


class Chats:
    """The `CHATS_PER_PERSON` most recently used chats of each person. One that was let go is remembered by its id, so
    that going on with it is refused in words and does not start from nothing."""

    def __init__(self) -> None:
        self._chats: dict[str, OrderedDict[str, Chat]] = {}
        self._gone: set[tuple[str, str]] = set()

    def find(self, person: str, chat_id: str) -> Chat:
        """Raises NotFound: also for a chat of somebody else."""
        own = self._chats.get(person, OrderedDict())
        if (chat := own.get(chat_id)) is None:
            if (person, chat_id) in self._gone:
                raise NotFound(
                    f"chat {chat_id} was let go to make room: the last {CHATS_PER_PERSON} of each person are kept",
                    hint="Start a new chat.",
                )
            raise NotFound(f"no chat {chat_id[:80]!r}", hint="Chats live as long as the daemon runs.")
        own.move_to_end(chat_id)
        return chat

    def open(self, person: str, chat_id: str, system: str | None) -> Chat:
        """The chat, made if it is new, with `system` as its first message; that may be said again, but not changed
        once something was said. Raises InvalidRequest, NotFound."""
        if not _ID.fullmatch(chat_id):
            raise InvalidRequest(
                f"{chat_id[:80]!r} is not a chat id", hint="Letters, digits, _ . -, at most 64.", param="chat"
            )
        own = self._chats.setdefault(person, OrderedDict())
        if chat_id in own or (person, chat_id) in self._gone:
            return self._again(self.find(person, chat_id), system)
        chat = self._again(own.setdefault(chat_id, Chat(chat_id, person, time.time())), system)
        while len(own) > CHATS_PER_PERSON:
            self._gone.add((person, own.popitem(last=False)[0]))
        return chat

    @staticmethod
    def _again(chat: Chat, system: str | None) -> Chat:
        said = [message for message in chat.messages if message.role != "system"]
        if system is None or chat.messages[:1] == [Message("system", system)]:
            return chat
        if said:
            raise InvalidRequest(
                "this chat began with another instruction",
                hint="Start a new chat for a new one.",
                param="system",
            )
        chat.messages[:] = [Message("system", system)]
        return chat


def alternating(messages: Sequence[Message]) -> list[Message]:
    """The history as strict templates want it: user and assistant in turn. An answer that was stopped before its first
    word is left out, and what the same side said twice in a row becomes one message."""
    out: list[Message] = []
    for message in messages:
        if message.role == "assistant" and not message.content:
            continue
        if out and out[-1].role == message.role:
            out[-1] = Message(message.role, f"{out[-1].content}\n\n{message.content}")
        else:
            out.append(message)
    return out
