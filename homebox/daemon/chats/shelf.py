"""Which chats does a person have, which of them hold these words, and what was typed and not sent?

Lists, search, names, instructions, drafts. Functions of one connection inside the caller's
transaction.
"""

from __future__ import annotations

import re
import sqlite3
import time

from homebox.daemon.chats.deleting import KEPT_S
from homebox.daemon.chats.tree import find
from homebox.errors import InvalidRequest
from homebox.wire.chats import ChatList, ChatRow, Counts, Draft, Found

MAX_ROWS = 200
MAX_FOUND = 50
MAX_TITLE_CHARACTERS = 200
MAX_DRAFT_BYTES = 256 * 1024
MAX_WORDS = 32
_ROW = """
    SELECT chats.*, (SELECT count(*) FROM messages WHERE chat = chats.id AND gone IS NULL) AS messages,
           (SELECT state FROM messages WHERE messages.id = chats.head AND role = 'assistant') AS state
    FROM chats
"""


def rows(
    db: sqlite3.Connection,
    *,
    limit: int,
    before: str | None = None,
    deleted: bool = False,
    now: float | None = None,
) -> ChatList:
    """Newest first. Raises InvalidRequest for a `before` that no list has given."""
    updated, name = _cursor(before)
    found = db.execute(
        f"""{_ROW} WHERE {"deleted > ?" if deleted else "deleted IS NULL AND ? IS NOT NULL"}
            AND (updated, chats.id) < (?, ?) ORDER BY updated DESC, chats.id DESC LIMIT ?""",
        ((now or time.time()) - KEPT_S, updated, name, limit + 1),
    ).fetchall()
    shown = [_row(row) for row in found[:limit]]
    more = len(found) > limit
    return ChatList(chats=shown, next=f"{shown[-1].updated!r}_{shown[-1].id}" if more else None)


def row(db: sqlite3.Connection, chat: str) -> ChatRow:
    """Raises NotFound."""
    find(db, chat)
    return _row(db.execute(f"{_ROW} WHERE chats.id = ?", (chat,)).fetchone())


def _row(row: sqlite3.Row) -> ChatRow:
    return ChatRow(**{name: row[name] for name in ChatRow.__struct_fields__})


def _cursor(before: str | None) -> tuple[float, str]:
    if before is None:
        return float("inf"), ""
    updated, _, name = before.partition("_")
    try:
        return float(updated), name
    except ValueError:
        raise InvalidRequest(
            f"before is {before[:80]!r}", hint="Give what the list before said in `next`.", param="before"
        ) from None


def search(db: sqlite3.Connection, query: str) -> list[Found]:
    """Chats and messages that hold all these words, the last of them as a beginning; best first. Raises
    InvalidRequest for a query without a word."""
    words = re.findall(r"\w+", query)[:MAX_WORDS]
    if not words:
        raise InvalidRequest("there is no word to look for", param="q")
    # Quoted, a word is a word and never an operator of the query language.
    match = " ".join(f'"{word}"' for word in words) + "*"
    in_titles = db.execute(
        """SELECT chats.id AS chat, chats.title, snippet(chat_words, 0, '[', ']', '…', 12) AS snippet,
                  chats.updated, NULL AS message, NULL AS role
           FROM chat_words JOIN chats ON chats.id = chat_words.chat
           WHERE chat_words MATCH ? AND deleted IS NULL ORDER BY rank LIMIT ?""",
        (match, MAX_FOUND),
    )
    in_texts = db.execute(
        """SELECT chats.id AS chat, chats.title, snippet(message_words, 0, '[', ']', '…', 12) AS snippet,
                  chats.updated, messages.id AS message, messages.role
           FROM message_words JOIN messages ON messages.n = message_words.rowid
           JOIN chats ON chats.id = messages.chat
           WHERE message_words MATCH ? AND deleted IS NULL AND gone IS NULL ORDER BY rank LIMIT ?""",
        (match, MAX_FOUND),
    )
    hits = [*in_titles.fetchall(), *in_texts.fetchall()][:MAX_FOUND]
    return [Found(**{name: hit[name] for name in Found.__struct_fields__}) for hit in hits]


def rename(db: sqlite3.Connection, chat: str, title: str) -> None:
    """Raises NotFound, InvalidRequest."""
    find(db, chat)
    words = " ".join(title.split())
    if not 0 < len(words) <= MAX_TITLE_CHARACTERS:
        raise InvalidRequest(
            f"a title has 1 to {MAX_TITLE_CHARACTERS} characters, not {len(words)}", param="title"
        )
    db.execute("UPDATE chats SET title = ?, titled = 1 WHERE id = ?", (words, chat))


def instruct(db: sqlite3.Connection, chat: str, system: str | None) -> None:
    """From the next answer on the model is told this. Raises NotFound."""
    find(db, chat)
    db.execute("UPDATE chats SET system = ? WHERE id = ?", (system, chat))


def choose_model(db: sqlite3.Connection, chat: str, model: str) -> None:
    """From the next answer on it is this one's. Raises NotFound."""
    find(db, chat)
    db.execute("UPDATE chats SET model = ? WHERE id = ?", (model, chat))


def counts(db: sqlite3.Connection) -> Counts:
    """How many chats there are, deleted ones aside, and how many messages in them, likewise."""
    found = db.execute(
        """SELECT (SELECT count(*) FROM chats WHERE deleted IS NULL),
                  (SELECT count(*) FROM messages JOIN chats ON chats.id = chat
                   WHERE deleted IS NULL AND gone IS NULL)"""
    ).fetchone()
    return Counts(chats=found[0], messages=found[1])


def draft(db: sqlite3.Connection, chat: str | None) -> Draft:
    """Empty where there is none. Raises NotFound for a chat that is not there."""
    if chat is not None:
        find(db, chat)
    row = db.execute("SELECT text FROM drafts WHERE chat = ?", (chat or "",)).fetchone()
    return Draft(text=row["text"] if row else "")


def put_draft(db: sqlite3.Connection, chat: str | None, text: str) -> None:
    """Raises NotFound, InvalidRequest."""
    if chat is not None:
        find(db, chat)
    if (size := len(text.encode("utf-8", "surrogatepass"))) > MAX_DRAFT_BYTES:
        raise InvalidRequest(
            f"a draft of {size} bytes; at most {MAX_DRAFT_BYTES} are kept",
            hint="Send it, or keep it in a file.",
            param="text",
        )
    if text:
        db.execute(
            "INSERT OR REPLACE INTO drafts (chat, text, updated) VALUES (?, ?, ?)",
            (chat or "", text, time.time()),
        )
    else:
        db.execute("DELETE FROM drafts WHERE chat = ?", (chat or "",))
