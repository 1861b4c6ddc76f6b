"""What is a stored chat, as the daemon and its clients see it?

The bodies of the `/homebox/chats` routes besides asking itself (`wire/requests.py`), and the form in which a chat
leaves one box and enters another. Times are unix seconds. Unknown fields are refused where a client writes them.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from homebox.wire.events import Timing, Usage
from homebox.wire.requests import Options

Role = Literal["user", "assistant"]
State = Literal["growing", "done", "stopped", "length", "error"]
ROOT = "root"  # in the place of a parent: the message begins the chat
EXPORT_VERSION = 1


class ChatRow(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a list. `state` is that of the last answer on the current path."""

    id: str
    title: str
    created: float
    updated: float
    messages: int
    model: str | None = None
    state: State | None = None
    deleted: float | None = None


class ChatList(msgspec.Struct, frozen=True, kw_only=True):
    """Newest first. `next` goes into `before=` for the rows after these; None at the end."""

    chats: list[ChatRow]
    next: str | None = None


class MessageView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`siblings`: all messages with the same parent, this one among them, oldest first. `turn`: the last one that
    worked on this answer."""

    id: str
    role: Role
    content: str
    parent: str | None = None
    think: str = ""
    state: State = "done"
    detail: str = ""
    model: str | None = None
    created: float = 0.0
    usage: Usage | None = None
    timing: Timing | None = None
    siblings: list[str] = []
    turn: str | None = None


class ChatView(msgspec.Struct, frozen=True, kw_only=True):
    """A chat and the messages of its current path, the last of them, or all there are. `turns`: of answers that are
    being written, message id to turn id. `earlier`: how many messages come before those shown; the id of the first one
    shown goes into `before=` for them. `ctx_used`: tokens of the current path up to its last answer, None where that
    is not known; `ctx_max`: how many it can have."""

    id: str
    title: str
    created: float
    updated: float
    messages: list[MessageView]
    system: str | None = None
    model: str | None = None
    head: str | None = None
    deleted: float | None = None
    turns: dict[str, str] = {}
    earlier: int = 0
    ctx_used: int | None = None
    ctx_max: int | None = None


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """One hit of a search. `message` is None where it was found in the title."""

    chat: str
    title: str
    snippet: str
    updated: float
    message: str | None = None
    role: Role | None = None


class FoundList(msgspec.Struct, frozen=True, kw_only=True):
    found: list[Found]


class Draft(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What was typed and not sent yet; `PUT` it to keep it, empty to let go of it."""

    text: str


class ChatPatch(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """`head`: a message; the current path becomes the one through it, down to its newest leaf. `system` (null: none)
    and `model` hold from the next answer on."""

    title: str | None = None
    head: str | None = None
    system: str | msgspec.UnsetType | None = msgspec.UNSET
    model: str | None = None


class RegenerateRequest(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """Another answer to the question that `message` (an answer, or the question itself) belongs to; the current
    answer if left out."""

    key: str
    message: str | None = None
    options: Options = Options()


class ContinueRequest(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """Go on with an answer that was stopped or cut by its length."""

    key: str
    options: Options = Options()


class BranchRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A new chat that holds the path up to `message`."""

    message: str


class ChatMade(msgspec.Struct, frozen=True, kw_only=True):
    chat: str


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """How much a person has kept: figures only."""

    chats: int
    messages: int


class ExportedMessage(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    id: str
    role: Role
    text: str
    parent: str | None = None
    think: str = ""
    state: State = "done"
    detail: str = ""
    model: str | None = None
    created: float = 0.0


class ExportedChat(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One whole chat, every branch of it; parents come before their children. No token ids: they belong to one
    model's tokeniser."""

    homebox_chat: int
    id: str
    title: str
    created: float
    updated: float
    messages: list[ExportedMessage]
    titled: bool = False  # by the person, not from the first words
    system: str | None = None
    model: str | None = None
    head: str | None = None
