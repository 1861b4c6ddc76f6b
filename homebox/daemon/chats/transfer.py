"""How does a chat leave one box and enter another?

As JSON, every branch of it, and as Markdown to read, the current path. What comes in is checked whole before the first
row is written. Functions of one connection inside the caller's transaction.
"""

from __future__ import annotations

import math
import secrets
import sqlite3
import time

from homebox.daemon.chats.looking import view
from homebox.daemon.chats.tree import check_id, find, new_id
from homebox.errors import InvalidRequest
from homebox.wire.chats import EXPORT_VERSION, ExportedChat, ExportedMessage

MAX_MESSAGES = 50_000
_NAMES = {"user": "You", "assistant": "homebox"}


def export(db: sqlite3.Connection, chat: str) -> ExportedChat:
    """Raises NotFound."""
    row, shown = find(db, chat), view(db, chat, whole=True)
    return ExportedChat(
        homebox_chat=EXPORT_VERSION,
        id=chat,
        title=row["title"],
        titled=bool(row["titled"]),
        created=row["created"],
        updated=row["updated"],
        system=row["system"],
        model=row["model"],
        head=row["head"],
        messages=[
            ExportedMessage(
                id=each.id,
                parent=each.parent,
                role=each.role,
                text=each.content,
                think=each.think,
                state="stopped" if each.state == "growing" else each.state,
                detail=each.detail,
                model=each.model,
                created=each.created,
            )
            for each in shown.messages
        ],
    )


def markdown(db: sqlite3.Connection, chat: str) -> str:
    """The current path. Raises NotFound."""
    shown = view(db, chat)
    parts = [
        f"# {shown.title or chat}",
        f"*{time.strftime('%Y-%m-%d %H:%M', time.localtime(shown.created))}*",
    ]
    if shown.system:
        parts.append(f"> {shown.system.strip()}".replace("\n", "\n> "))
    for each in shown.messages:
        note = "" if each.state == "done" else f" *({each.detail or each.state})*"
        parts.append(f"## {_NAMES[each.role]}{note}\n\n{each.content.strip()}")
    return "\n\n".join(parts) + "\n"


def take(db: sqlite3.Connection, chat: ExportedChat) -> str:
    """Add a chat that was exported; returns its id, a new one where the old is taken. Raises InvalidRequest."""
    _check(chat)
    name = chat.id
    if db.execute("SELECT 1 FROM chats WHERE id = ?", (name,)).fetchone():
        name = secrets.token_hex(8)
    taken = any(
        db.execute("SELECT 1 FROM messages WHERE id = ?", (each.id,)).fetchone() for each in chat.messages
    )
    names = {each.id: new_id() if taken else each.id for each in chat.messages}
    db.execute(
        """INSERT INTO chats (id, title, titled, created, updated, model, system, head)
           VALUES (?, ?, ?, ?, ?, ?, ?, ?)""",
        (
            name,
            chat.title,
            chat.titled,
            chat.created,
            chat.updated,
            chat.model,
            chat.system,
            names[chat.head] if chat.head else None,
        ),
    )
    db.executemany(
        """INSERT INTO messages (id, chat, parent, role, text, think, state, detail, model, created)
           VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)""",
        [
            (
                names[each.id],
                name,
                names[each.parent] if each.parent else None,
                each.role,
                each.text,
                each.think,
                each.state,
                each.detail,
                each.model,
                each.created,
            )
            for each in chat.messages
        ],
    )
    return name


def _check(chat: ExportedChat) -> None:
    def refuse(why: str, param: str) -> InvalidRequest:
        return InvalidRequest(why, hint="Import what homebox chats export has written.", param=param)

    if chat.homebox_chat != EXPORT_VERSION:
        raise refuse(
            f"this is version {chat.homebox_chat} of an export; {EXPORT_VERSION} is read", "homebox_chat"
        )
    check_id(chat.id)
    if len(chat.messages) > MAX_MESSAGES:
        raise refuse(f"{len(chat.messages)} messages; at most {MAX_MESSAGES} are taken", "messages")
    if not all(map(math.isfinite, (chat.created, chat.updated, *(each.created for each in chat.messages)))):
        raise refuse("a time is not a number", "created")
    seen: set[str] = set()
    for place, each in enumerate(chat.messages):
        if not 0 < len(each.id) <= 64 or each.id in seen:
            raise refuse(
                f"message id {each.id[:80]!r} is empty, too long or there twice", f"messages[{place}].id"
            )
        if each.parent is not None and each.parent not in seen:
            raise refuse(
                f"its parent {each.parent[:80]!r} does not come before it", f"messages[{place}].parent"
            )
        if each.state == "growing":
            raise refuse("a message that is still growing cannot come in", f"messages[{place}].state")
        seen.add(each.id)
    if chat.head is not None and chat.head not in seen:
        raise refuse(f"head {chat.head[:80]!r} is no message of it", "head")
