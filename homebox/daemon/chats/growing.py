"""How does an answer get into the file while it is written, and what becomes of one that was cut off?

Pieces are appended as rows of their own, so that a long answer is not written again and again; at its end the message
gets the whole text and the pieces go. What grew when a daemon died is put together when the file is opened next.
Functions of one connection inside the caller's transaction.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from homebox.daemon.chats.tokens import pack
from homebox.wire.chats import State
from homebox.wire.events import Timing, Usage

CUT_OFF = "daemon restarted"


@dataclass
class Piece:
    """What is new of an answer: text, thoughts, and the tokens that made them."""

    text: str = ""
    think: str = ""
    tokens: list[int] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.text or self.think or self.tokens)


@dataclass(frozen=True, kw_only=True)
class Ending:
    """An answer that is over: all of it, and how it ended."""

    text: str
    think: str
    tokens: Sequence[int]
    state: State
    detail: str
    usage: Usage
    timing: Timing


def append(db: sqlite3.Connection, name: str, piece: Piece) -> None:
    """A message that is gone (its chat was purged) takes nothing more."""
    db.execute(
        """INSERT INTO growth (message, text, think, tokens)
           SELECT id, ?, ?, ? FROM messages WHERE id = ? AND state = 'growing'""",
        (piece.text, piece.think, pack(piece.tokens), name),
    )


def fold(db: sqlite3.Connection, name: str, end: Ending) -> None:
    """The message as it stays; again the same gives the same."""
    db.execute(
        """UPDATE messages SET text = ?, think = ?, tokens = ?, state = ?, detail = ?, usage = ?, timing = ?
           WHERE id = ?""",
        (
            end.text,
            end.think,
            pack(end.tokens),
            end.state,
            end.detail,
            msgspec.json.encode(end.usage).decode(),
            msgspec.json.encode(end.timing).decode(),
            name,
        ),
    )
    db.execute("DELETE FROM growth WHERE message = ?", (name,))
    db.execute(
        "UPDATE chats SET updated = ? WHERE id = (SELECT chat FROM messages WHERE id = ?)",
        (time.time(), name),
    )


def recover(db: sqlite3.Connection) -> int:
    """End what grew when the daemon died, with all that is there of it; returns how many answers that were."""
    cut = db.execute("SELECT id, text, think, tokens FROM messages WHERE state = 'growing'").fetchall()
    for row in cut:
        pieces = db.execute("SELECT * FROM growth WHERE message = ? ORDER BY n", (row["id"],)).fetchall()
        db.execute(
            "UPDATE messages SET text = ?, think = ?, tokens = ?, state = 'stopped', detail = ? WHERE id = ?",
            (
                row["text"] + "".join(piece["text"] for piece in pieces),
                row["think"] + "".join(piece["think"] for piece in pieces),
                (row["tokens"] or b"") + b"".join(piece["tokens"] for piece in pieces),
                CUT_OFF,
                row["id"],
            ),
        )
    db.execute("DELETE FROM growth")
    return len(cut)
