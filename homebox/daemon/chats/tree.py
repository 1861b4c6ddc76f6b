"""What is said in one chat, and after what?

Messages form a tree; `head` is the leaf of the path that is current. Editing and answering again add siblings and never
change what is there. Functions of one connection inside the caller's transaction; they know no engine and no events.
"""

from __future__ import annotations

import re
import secrets
import sqlite3
import time
from collections.abc import Sequence
from dataclasses import dataclass

from homebox.daemon.chats.tokens import Ids, pack, unpack
from homebox.errors import InvalidRequest, NotFound
from homebox.wire.chats import ROOT

TITLE_CHARACTERS = 60
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_TAKEN = frozenset({"search", "import"})  # these are routes


def new_id() -> str:
    return f"m-{secrets.token_hex(8)}"


@dataclass(frozen=True, kw_only=True)
class Said:
    """A message on a path."""

    id: str
    role: str
    text: str
    think: str = ""
    state: str = "done"
    model: str | None = None
    ids: Ids | None = None  # of an answer


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where something new goes: below the last message of `path`, which begins at the root. `turn` is the one that
    this key had before, if it had one."""

    chat: str
    system: str | None
    head: str | None
    path: Sequence[Said] = ()
    turn: str | None = None
    question: str | None = None
    answer: str | None = None


@dataclass(frozen=True, kw_only=True)
class Submission:
    """What a turn adds: a question, unless it answers one that is there, and an answer that will grow, or that
    `goes_on` from its own tokens `own`."""

    chat: str
    key: str
    turn: str
    system: str | None = None
    model: str
    parent: str | None  # of the question; of the answer where there is no new question
    question: str | None  # the id of the question, new or not
    text: str | None  # of a new question
    answer: str
    goes_on: bool = False
    base: str | None = None
    kept: int = 0
    prompt: Sequence[int] = ()
    own: Sequence[int] = ()


def check_id(chat: str) -> str:
    """Raises InvalidRequest."""
    if not _ID.fullmatch(chat) or chat in _TAKEN:
        raise InvalidRequest(
            f"{chat[:80]!r} is not a chat id", hint="Letters, digits, _ . -, at most 64.", param="chat"
        )
    return chat


def find(db: sqlite3.Connection, chat: str, *, deleted: bool = False) -> sqlite3.Row:
    """The chat's row. Raises NotFound, with other words where the chat was deleted and can be had back."""
    row = db.execute("SELECT * FROM chats WHERE id = ?", (chat,)).fetchone()
    if row is None:
        raise NotFound(f"no chat {chat[:80]!r}", hint="homebox chats list shows yours.")
    if row["deleted"] is not None and not deleted:
        raise NotFound(
            f"chat {chat[:80]!r} was deleted", hint=f"homebox chats restore {chat[:80]} brings it back."
        )
    found: sqlite3.Row = row
    return found


def message(db: sqlite3.Connection, chat: str, name: str, *, deleted: bool = False) -> sqlite3.Row:
    """A message of this chat. Raises NotFound, with other words where it was deleted and can be had back."""
    row = db.execute("SELECT * FROM messages WHERE id = ? AND chat = ?", (name, chat)).fetchone()
    if row is None:
        raise NotFound(f"no message {name[:80]!r} in this chat", param="message")
    if row["gone"] is not None and not deleted:
        raise NotFound(
            f"message {name[:80]!r} was deleted",
            hint="Undoing that brings it back, for seven days.",
            param="message",
        )
    found: sqlite3.Row = row
    return found


def path(db: sqlite3.Connection, leaf: str | None) -> list[Said]:
    """From the root to `leaf`."""
    rows = db.execute(
        """WITH RECURSIVE up (id, depth) AS (
               SELECT ?, 0 UNION ALL
               SELECT messages.parent, depth + 1 FROM up JOIN messages ON messages.id = up.id
               WHERE messages.parent IS NOT NULL)
           SELECT messages.* FROM up JOIN messages ON messages.id = up.id ORDER BY depth DESC""",
        (leaf,),
    )
    return [_said(row) for row in rows]


def _said(row: sqlite3.Row) -> Said:
    ids = None
    if row["prompt"] is not None:
        ids = Ids(row["base"], row["kept"], unpack(row["prompt"]), unpack(row["tokens"]))
    return Said(
        id=row["id"],
        role=row["role"],
        text=row["text"],
        think=row["think"],
        state=row["state"],
        model=row["model"],
        ids=ids,
    )


# ---- before a turn


def place_of_key(db: sqlite3.Connection, chat: str, key: str) -> Place | None:
    """The turn that this key has in this chat already."""
    row = db.execute("SELECT * FROM turns WHERE chat = ? AND key = ?", (chat, key)).fetchone()
    if row is None:
        return None
    return Place(
        chat=chat,
        system=None,
        head=None,
        turn=row["turn"],
        question=row["question"],
        answer=row["answer"],
    )


def place_to_say(
    db: sqlite3.Connection, chat: str, key: str, system: str | None, parent: str | None
) -> Place:
    """Where a person's next words go. Raises NotFound, and InvalidRequest for another instruction than the chat has."""
    if db.execute("SELECT 1 FROM chats WHERE id = ?", (chat,)).fetchone() is None:
        if parent not in (None, ROOT):
            raise NotFound(f"no message {str(parent)[:80]!r} in this chat", param="parent")
        return Place(chat=check_id(chat), system=system, head=None)
    row = find(db, chat)
    if known := place_of_key(db, chat, key):
        return known
    if system is not None and system != row["system"]:
        raise InvalidRequest(
            "this chat has another instruction",
            hint="Change the chat's own, or start a new chat.",
            param="system",
        )
    leaf = row["head"] if parent is None else None if parent == ROOT else message(db, chat, parent)["id"]
    return Place(chat=chat, system=row["system"], head=row["head"], path=path(db, leaf))


def place_to_answer(db: sqlite3.Connection, chat: str, key: str, name: str | None) -> Place:
    """The path up to a question that is to be answered again. Raises NotFound, InvalidRequest."""
    row = find(db, chat)
    if known := place_of_key(db, chat, key):
        return known
    if name is None and row["head"] is None:
        raise InvalidRequest("there is nothing to answer in this chat yet", param="message")
    target = message(db, chat, name or row["head"])
    leaf = target["id"] if target["role"] == "user" else target["parent"]
    if leaf is None:
        raise InvalidRequest("nothing was asked before this message", param="message")
    return Place(chat=chat, system=row["system"], head=row["head"], path=path(db, leaf))


def place_to_continue(db: sqlite3.Connection, turn: str, key: str) -> Place:
    """The path to the answer of a turn, which is to go on. Raises NotFound, InvalidRequest."""
    row = turn_row(db, turn)
    chat = find(db, row["chat"])
    if known := place_of_key(db, row["chat"], key):
        return known
    message(db, row["chat"], row["answer"])
    if db.execute("SELECT 1 FROM messages WHERE parent = ? AND gone IS NULL", (row["answer"],)).fetchone():
        raise InvalidRequest(
            "something was said after this answer, so it cannot grow any more",
            hint="Ask for more in the chat, or answer the question again.",
        )
    return Place(
        chat=row["chat"],
        system=chat["system"],
        head=chat["head"],
        path=path(db, row["answer"]),
        question=row["question"],
        answer=row["answer"],
    )


def turn_row(db: sqlite3.Connection, turn: str) -> sqlite3.Row:
    """A turn, with the row of its answer. Raises NotFound."""
    row = db.execute(
        """SELECT turns.turn, turns.chat, turns.question, turns.answer, messages.* FROM turns
           JOIN messages ON messages.id = turns.answer WHERE turns.turn = ?""",
        (turn,),
    ).fetchone()
    if row is None:
        raise NotFound(
            f"no turn {turn[:80]!r}", hint="Turns outside a chat are kept for ten minutes after their end."
        )
    found: sqlite3.Row = row
    return found


# ---- a turn begins


def submit(db: sqlite3.Connection, new: Submission) -> None:
    """Add it all, and make the answer the current leaf. Raises NotFound where the chat went away meanwhile."""
    now = time.time()
    if new.text is not None:
        db.execute(
            "INSERT INTO chats (id, title, created, updated, system) VALUES (?, '', ?, ?, ?) ON CONFLICT DO NOTHING",
            (new.chat, now, now, new.system),
        )
    row = find(db, new.chat)
    parent = new.parent
    if new.text is not None:
        db.execute(
            "INSERT INTO messages (id, chat, parent, role, text, state, created) VALUES (?, ?, ?, 'user', ?, 'done', ?)",
            (new.question, new.chat, parent, new.text, now),
        )
        parent = new.question
        if not row["title"] and not row["titled"]:
            db.execute("UPDATE chats SET title = ? WHERE id = ?", (title_of(new.text), new.chat))
    if new.goes_on:
        db.execute(
            """UPDATE messages SET state = 'growing', detail = '', usage = NULL, timing = NULL, model = ?, base = ?,
                                   kept = ?, prompt = ?, tokens = ? WHERE id = ?""",
            (new.model, new.base, new.kept, pack(new.prompt), pack(new.own), new.answer),
        )
    else:
        db.execute(
            """INSERT INTO messages (id, chat, parent, role, text, state, model, base, kept, prompt, created)
               VALUES (?, ?, ?, 'assistant', '', 'growing', ?, ?, ?, ?, ?)""",
            (new.answer, new.chat, parent, new.model, new.base, new.kept, pack(new.prompt), now),
        )
    db.execute(
        "INSERT INTO turns (turn, chat, key, question, answer, created) VALUES (?, ?, ?, ?, ?, ?)",
        (new.turn, new.chat, new.key, new.question, new.answer, now),
    )
    db.execute(
        "UPDATE chats SET head = ?, updated = ?, model = ? WHERE id = ?",
        (new.answer, now, new.model, new.chat),
    )


def title_of(text: str) -> str:
    """The first words of what was said."""
    words = " ".join(text.split())
    if len(words) <= TITLE_CHARACTERS:
        return words
    cut = words[:TITLE_CHARACTERS]
    return (cut.rpartition(" ")[0] or cut) + "…"


# ---- other paths


def go_to(db: sqlite3.Connection, chat: str, name: str) -> None:
    """Make the path through this message the current one, down to its newest leaf. Raises NotFound."""
    leaf = leaf_below(db, message(db, find(db, chat)["id"], name)["id"])
    db.execute("UPDATE chats SET head = ?, updated = ? WHERE id = ?", (leaf, time.time(), chat))


def leaf_below(db: sqlite3.Connection, name: str) -> str:
    """Where the newest path through this message ends."""
    while row := db.execute(
        "SELECT id FROM messages WHERE parent = ? AND gone IS NULL ORDER BY n DESC LIMIT 1", (name,)
    ).fetchone():
        name = row["id"]
    return name


def branch(db: sqlite3.Connection, chat: str, name: str) -> str:
    """A new chat that holds the path up to a message; returns its id. Raises NotFound, and InvalidRequest for an
    answer that still grows."""
    row, leaf = find(db, chat), message(db, chat, name)
    if leaf["state"] == "growing":
        raise InvalidRequest(
            "this answer is still being written", hint="Wait for it, or stop it.", param="message"
        )
    made, now = secrets.token_hex(8), time.time()
    db.execute(
        "INSERT INTO chats (id, title, titled, created, updated, model, system) VALUES (?, ?, ?, ?, ?, ?, ?)",
        (made, row["title"], row["titled"], now, now, row["model"], row["system"]),
    )
    names = {each.id: new_id() for each in path(db, leaf["id"])}
    for old, new in names.items():
        db.execute(
            """INSERT INTO messages (id, chat, parent, role, text, think, state, detail, model, base, kept, prompt, tokens,
                                     usage, timing, created)
               SELECT ?, ?, ?, role, text, think, state, detail, model, ?, kept, prompt, tokens, usage, timing, created
               FROM messages WHERE id = ?""",
            (new, made, *_moved(db, old, names), old),
        )
    db.execute("UPDATE chats SET head = ? WHERE id = ?", (names[leaf["id"]], made))
    return made


def _moved(db: sqlite3.Connection, name: str, names: dict[str, str]) -> tuple[str | None, str | None]:
    """Parent and base of a copied message, in the copy."""
    row = db.execute("SELECT parent, base FROM messages WHERE id = ?", (name,)).fetchone()
    return names.get(row["parent"]), names.get(row["base"])
