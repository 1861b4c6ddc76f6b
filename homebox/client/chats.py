"""Which of my chats does the daemon have, and which one is meant?

The `/homebox/chats` routes as functions. It draws nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urlencode

import msgspec

from homebox.client.connection import Daemon
from homebox.errors import NotFound, UsageError
from homebox.wire.chats import ChatList, ChatRow, ChatView, Draft, Found, FoundList

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
    """The messages of the current path, or with `whole` every one; only the `last` so many of it, or of what comes
    `before` a message. Raises NotFound."""
    query: dict[str, Any] = {"all": 1} if whole else {}
    query |= {name: value for name, value in (("last", last), ("before", before)) if value is not None}
    return msgspec.convert(
        daemon.json("GET", path(chat) + (f"?{urlencode(query)}" if query else "")), ChatView
    )


def search(daemon: Daemon, query: str) -> list[Found]:
    """Raises InvalidRequest for a query without a word."""
    return msgspec.convert(
        daemon.json("GET", f"/homebox/chats/search?{urlencode({'q': query})}"), FoundList
    ).found


def change(daemon: Daemon, chat: str, **fields: Any) -> None:
    """Another title or head. Raises NotFound, InvalidRequest."""
    daemon.json("PATCH", path(chat), fields)


def draft(daemon: Daemon, chat: str | None) -> str:
    """What was typed and not sent, in a chat or, with None, in one that does not exist yet."""
    return msgspec.convert(daemon.json("GET", _draft(chat)), Draft).text


def put_draft(daemon: Daemon, chat: str | None, text: str) -> None:
    """Keep it, or with an empty text let go of it."""
    daemon.json("PUT", _draft(chat), {"text": text})


def _draft(chat: str | None) -> str:
    return "/homebox/draft" if chat is None else path(chat, "draft")
