"""Which of my chats does the daemon have, and which one is meant?

The `/homebox/chats` routes as functions. It draws nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal
from urllib.parse import quote, urlencode

import msgspec

from homebox.client.connection import Daemon
from homebox.errors import NotFound, UsageError
from homebox.wire.chats import ChatList, ChatMade, ChatRow, ChatView, Draft, Found, FoundList

PAGE = 200
_IN_WORDS = {"growing": "being written", "length": "cut at its limit", "error": "failed"}


def in_words(state: str | None) -> str:
    """How the state of an answer is said to a person."""
    return _IN_WORDS.get(state or "", state or "")


def path(chat: str, what: str = "") -> str:
    """The route of one chat."""
    return f"/homebox/chats/{quote(chat, safe='')}" + (f"/{what}" if what else "")


def page_of(
    daemon: Daemon, *, before: str | None = None, deleted: bool = False, limit: int = PAGE
) -> ChatList:
    """The newest chats, or those after what the page before said in `next`."""
    query = {"limit": limit, "deleted": int(deleted)} | ({"before": before} if before else {})
    return msgspec.convert(daemon.json("GET", f"/homebox/chats?{urlencode(query)}"), ChatList)


def rows(daemon: Daemon, *, deleted: bool = False, page: int = PAGE) -> Iterator[ChatRow]:
    """All chats, newest first, read a page at a time."""
    before: str | None = None
    while True:
        found = page_of(daemon, before=before, deleted=deleted, limit=page)
        yield from found.chats
        if found.next is None:
            return
        before = found.next


def find(daemon: Daemon, name: str, *, deleted: bool = False) -> ChatRow:
    """The chat with this id, or the only one whose id begins so. Raises NotFound, UsageError."""
    meant = [row for row in rows(daemon, deleted=deleted) if name and row.id.startswith(name)]
    exact = [row for row in meant if row.id == name]
    if len(meant) > 1 and not exact:
        raise UsageError(f"{name!r} begins {len(meant)} ids", hint="Write more of it.")
    if not meant:
        hint = "homebox chats list --deleted shows them." if deleted else "homebox chats list shows them."
        raise NotFound(f"no {'deleted ' if deleted else ''}chat {name!r}", hint=hint)
    return (exact or meant)[0]


def last(daemon: Daemon) -> str:
    """The id of the newest chat. Raises NotFound where there is none."""
    row = next(rows(daemon, page=1), None)
    if row is None:
        raise NotFound("there is no conversation yet", hint="homebox chat begins one.")
    return row.id


def show(
    daemon: Daemon, chat: str, *, whole: bool = False, last: int | None = None, before: str | None = None
) -> ChatView:
    """The current path, or every message. `last`: no more than so many, from the end of the path, or from the place
    where it reaches the message `before`. Raises NotFound."""
    query = {"all": "1" if whole else None, "last": last, "before": before}
    asked = urlencode({name: value for name, value in query.items() if value is not None})
    return msgspec.convert(daemon.json("GET", path(chat) + (f"?{asked}" if asked else "")), ChatView)


def search(daemon: Daemon, query: str) -> list[Found]:
    """Raises InvalidRequest for a query without a word."""
    return msgspec.convert(
        daemon.json("GET", f"/homebox/chats/search?{urlencode({'q': query})}"), FoundList
    ).found


# ---- changing them


def change(daemon: Daemon, chat: str, **fields: Any) -> None:
    """Another title or head. Raises NotFound, InvalidRequest."""
    daemon.json("PATCH", path(chat), fields)


def set_system(daemon: Daemon, chat: str, system: str | None) -> None:
    """How the model should behave from the next answer on. Raises NotFound, NotAllowed for a kid,
    ContextLengthExceeded."""
    change(daemon, chat, system=system)


def set_model(daemon: Daemon, chat: str, model: str) -> None:
    """Who answers from the next answer on. Raises NotFound, ModelNotFound, NotAllowed."""
    change(daemon, chat, model=model)


def branch(daemon: Daemon, chat: str, message: str) -> str:
    """A new chat that holds the path up to `message`; returns its id. Raises NotFound, InvalidRequest."""
    return msgspec.convert(daemon.json("POST", path(chat, "branch"), {"message": message}), ChatMade).chat


def delete(daemon: Daemon, chat: str) -> None:
    """For seven days `undelete` brings it back. Raises NotFound."""
    daemon.json("DELETE", path(chat))


def undelete(daemon: Daemon, chat: str) -> ChatRow:
    """Raises NotFound."""
    return msgspec.convert(daemon.json("POST", path(chat, "undelete"), {}), ChatRow)


def delete_message(daemon: Daemon, chat: str, message: str) -> ChatRow:
    """With all that was said after it; for seven days `undelete_message` brings it back. The current path may be
    another one then. Raises NotFound."""
    return msgspec.convert(daemon.json("DELETE", path(chat, _message(message))), ChatRow)


def undelete_message(daemon: Daemon, chat: str, message: str) -> ChatRow:
    """What was deleted with it, and the path that was current. Raises NotFound, and InvalidRequest while what it
    answers is deleted."""
    return msgspec.convert(daemon.json("POST", path(chat, f"{_message(message)}/undelete"), {}), ChatRow)


def _message(message: str) -> str:
    return f"messages/{quote(message, safe='')}"


# ---- beside them


def export_text(daemon: Daemon, chat: str, form: Literal["md", "json"]) -> str:
    """Markdown of the current path, or JSON of every branch. Raises NotFound."""
    with daemon.open("GET", path(chat, f"export?format={form}")) as reply:
        return reply.read().decode()


def draft(daemon: Daemon, chat: str | None) -> str:
    """What was typed and not sent, in a chat or in none yet; nothing where there is none. Raises NotFound."""
    return msgspec.convert(daemon.json("GET", _draft(chat)), Draft).text


def put_draft(daemon: Daemon, chat: str | None, text: str) -> None:
    """Keep it, or let go of it when it is empty. Raises NotFound, and InvalidRequest for one that is too long."""
    daemon.json("PUT", _draft(chat), Draft(text=text))


def _draft(chat: str | None) -> str:
    return "/homebox/draft" if chat is None else path(chat, "draft")
