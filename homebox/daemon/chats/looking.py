"""What is there to see of one chat?

The current path, a part of it, or every message, with what a screen needs beside them: branches, running turns, and how
much of the context is used. A chat of any length takes the same few queries. Functions of one connection inside the
caller's transaction.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

import msgspec

from homebox.daemon.chats.tree import find, message
from homebox.wire.chats import ChatView, MessageView
from homebox.wire.events import Timing, Usage


def view(
    db: sqlite3.Connection,
    chat: str,
    *,
    whole: bool = False,
    last: int | None = None,
    before: str | None = None,
    model: str | None = None,
) -> ChatView:
    """The current path, or every message with `whole`. `last` leaves only the end of the path; with `before` it is the
    path that leads to that message, without it. `model` is whose tokens the context is counted in. Raises NotFound."""
    row = find(db, chat)
    rows = _in_sight(db, chat)
    parents = {each["id"]: each["parent"] for each in rows}
    children: dict[str | None, list[str]] = {}
    for each in rows:
        children.setdefault(each["parent"], []).append(each["id"])
    path = _path(parents, row["head"])
    shown = list(parents) if whole else path
    if before is not None:
        shown = _path(parents, message(db, chat, before)["parent"])
    earlier = max(0, len(shown) - last) if last is not None else 0
    answers = {each["id"] for each in rows if each["role"] == "assistant"}
    return ChatView(
        id=row["id"],
        title=row["title"],
        created=row["created"],
        updated=row["updated"],
        system=row["system"],
        model=row["model"],
        head=row["head"],
        messages=[_view(each, children[each["parent"]]) for each in _messages(db, shown[earlier:])],
        turns=_turns(db, chat),
        earlier=earlier,
        ctx_used=_used(db, next((name for name in reversed(path) if name in answers), None), model),
    )


def _in_sight(db: sqlite3.Connection, chat: str) -> Sequence[sqlite3.Row]:
    """How the messages hang together, in the order in which they were said. The index has it all: no text is read."""
    return db.execute(
        "SELECT id, parent, role FROM messages WHERE chat = ? AND gone IS NULL ORDER BY n",
        (chat,),
    ).fetchall()


def _path(parents: dict[str, str | None], leaf: str | None) -> list[str]:
    path, at = [], leaf
    while at is not None:
        path.append(at)
        at = parents[at]
    return path[::-1]


def _messages(db: sqlite3.Connection, names: Sequence[str]) -> Sequence[sqlite3.Row]:
    """These messages, in this order, without their tokens."""
    return db.execute(
        """SELECT id, parent, role, text, think, state, detail, model, created, usage, timing,
                  (SELECT turn FROM turns WHERE answer = messages.id ORDER BY rowid DESC LIMIT 1) AS turn
           FROM (SELECT key, value FROM json_each(?)) AS named JOIN messages ON id = value ORDER BY key""",
        (msgspec.json.encode(names).decode(),),
    ).fetchall()


def _turns(db: sqlite3.Connection, chat: str) -> dict[str, str]:
    return dict(
        db.execute(
            """SELECT id, (SELECT turn FROM turns WHERE answer = messages.id ORDER BY rowid DESC LIMIT 1)
               FROM messages WHERE state = 'growing' AND chat = ? AND gone IS NULL""",
            (chat,),
        )
    )


def _used(db: sqlite3.Connection, answer: str | None, model: str | None) -> int | None:
    """Tokens of the path up to this answer; unknown where another model gave it."""
    row = db.execute(
        """SELECT model, usage, kept, length(prompt) AS prompt, length(tokens) AS tokens
           FROM messages WHERE id = ?""",
        (answer,),
    ).fetchone()
    if row is None or row["model"] != model or row["prompt"] is None:
        return None
    if used := usage_of(row):
        return used.prompt_tokens + used.completion_tokens
    return int(row["kept"] + (row["prompt"] + (row["tokens"] or 0)) // 4)


def _view(row: sqlite3.Row, siblings: list[str]) -> MessageView:
    return MessageView(
        id=row["id"],
        parent=row["parent"],
        role=row["role"],
        content=row["text"],
        think=row["think"],
        state=row["state"],
        detail=row["detail"],
        model=row["model"],
        created=row["created"],
        usage=usage_of(row),
        timing=timing_of(row),
        siblings=siblings,
        turn=row["turn"],
    )


def usage_of(row: sqlite3.Row) -> Usage | None:
    return msgspec.json.decode(row["usage"], type=Usage) if row["usage"] else None


def timing_of(row: sqlite3.Row) -> Timing | None:
    return msgspec.json.decode(row["timing"], type=Timing) if row["timing"] else None
