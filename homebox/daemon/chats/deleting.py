"""What was deleted, and how does it come back?

A chat, or a message with everything below it, goes out of sight and can be had back for a week. What is out of sight is
in no list, no search and no export. Every message that went has the one with which it went in `gone`, so that undoing
brings back exactly that. Functions of one connection inside the caller's transaction.
"""

from __future__ import annotations

import sqlite3
import time

from homebox.daemon.chats.tree import find, leaf_below, message, title_of
from homebox.errors import InvalidRequest, NotFound

KEPT_S = 7 * 86400.0
_HINT = "What was deleted can be had back for seven days."


# ---- a chat


def delete(db: sqlite3.Connection, chat: str, now: float | None = None) -> list[str]:
    """To delete what is deleted changes nothing. Returns the answers that are still being written for it. Raises
    NotFound."""
    find(db, chat, deleted=True)
    db.execute("UPDATE chats SET deleted = ? WHERE id = ? AND deleted IS NULL", (now or time.time(), chat))
    return _names(db.execute("SELECT id FROM messages WHERE chat = ? AND state = 'growing'", (chat,)))


def undelete(db: sqlite3.Connection, chat: str, now: float | None = None) -> None:
    """Raises NotFound, also for what was deleted more than a week ago."""
    row = find(db, chat, deleted=True)
    if row["deleted"] is not None and row["deleted"] <= (now or time.time()) - KEPT_S:
        raise NotFound(f"no chat {chat[:80]!r}", hint=_HINT)
    db.execute("UPDATE chats SET deleted = NULL WHERE id = ?", (chat,))


# ---- a message


def delete_message(db: sqlite3.Connection, chat: str, name: str, now: float | None = None) -> list[str]:
    """The message and all that was said after it. A current path through it becomes the newest one beside it, or ends
    before it. Returns the answers that are still being written there. Raises NotFound."""
    head, row = find(db, chat)["head"], message(db, chat, name, deleted=True)
    if row["gone"] is not None:
        return []
    db.execute(
        """WITH RECURSIVE below (id) AS (
               SELECT ? UNION ALL
               SELECT messages.id FROM below JOIN messages ON messages.parent = below.id WHERE gone IS NULL)
           UPDATE messages SET gone = ? WHERE id IN below""",
        (name, name),
    )
    was = head if head is not None and message(db, chat, head, deleted=True)["gone"] == name else None
    db.execute("INSERT INTO deletions (message, at, head) VALUES (?, ?, ?)", (name, now or time.time(), was))
    if was is not None:
        beside = db.execute(
            "SELECT id FROM messages WHERE chat = ? AND parent IS ? AND gone IS NULL ORDER BY n DESC LIMIT 1",
            (chat, row["parent"]),
        ).fetchone()
        head = leaf_below(db, beside["id"]) if beside else row["parent"]
    _changed(db, chat, head)
    return _names(
        db.execute("SELECT id FROM messages WHERE chat = ? AND gone = ? AND state = 'growing'", (chat, name))
    )


def undelete_message(db: sqlite3.Connection, chat: str, name: str, now: float | None = None) -> None:
    """All that was deleted together with it; the current path is again what it was then. Raises NotFound, also for
    what was deleted more than a week ago, and InvalidRequest while what it answers is deleted."""
    head, row = find(db, chat)["head"], message(db, chat, name, deleted=True)
    if row["gone"] is None:
        return
    first = message(db, chat, row["gone"], deleted=True)
    deletion = db.execute("SELECT * FROM deletions WHERE message = ?", (first["id"],)).fetchone()
    if deletion["at"] <= (now or time.time()) - KEPT_S:
        raise NotFound(f"no message {name[:80]!r} in this chat", hint=_HINT, param="message")
    if first["parent"] and message(db, chat, first["parent"], deleted=True)["gone"]:
        raise InvalidRequest(
            "what was said before this message is deleted, too", hint="Have that back first.", param="message"
        )
    db.execute("UPDATE messages SET gone = NULL WHERE chat = ? AND gone = ?", (chat, first["id"]))
    db.execute("DELETE FROM deletions WHERE message = ?", (first["id"],))
    _changed(db, chat, deletion["head"] or head)


def _changed(db: sqlite3.Connection, chat: str, head: str | None) -> None:
    """Another current path; and a title made of first words is made of those that are in sight."""
    db.execute("UPDATE chats SET head = ?, updated = ? WHERE id = ?", (head, time.time(), chat))
    row = find(db, chat)
    first = db.execute(
        "SELECT text, gone FROM messages WHERE chat = ? AND parent IS NULL AND role = 'user' ORDER BY n",
        (chat,),
    ).fetchall()
    if not row["titled"] and row["title"] in {"", *(title_of(each["text"]) for each in first)}:
        title = next((title_of(each["text"]) for each in first if each["gone"] is None), "")
        db.execute("UPDATE chats SET title = ? WHERE id = ?", (title, chat))


# ---- for good


def purge(db: sqlite3.Connection, now: float | None = None) -> None:
    """Let go of what was deleted more than a week ago."""
    until = (now or time.time()) - KEPT_S
    db.execute("DELETE FROM chats WHERE deleted <= ?", (until,))
    db.execute(
        """WITH RECURSIVE below (id) AS (
               SELECT message FROM deletions WHERE at <= ? UNION
               SELECT messages.id FROM below JOIN messages ON messages.parent = below.id)
           DELETE FROM messages WHERE id IN below""",
        (until,),
    )


def _names(rows: sqlite3.Cursor) -> list[str]:
    return [row["id"] for row in rows]
