"""Which tables does a person's file hold, and how does an older file become one of today's?

`open_file` gives a connection to a file of the present version, or says why there is none. Each step of `STEPS` runs in
a transaction of its own, after a copy of the file was put aside. It knows no persons and no threads.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from pathlib import Path

from homebox.errors import UnusableFile

MEMORY = ":memory:"
CHECKED_UP_TO_BYTES = 64 << 20  # a larger file would keep everybody waiting while it is looked through
BUSY_S = 5.0  # for a backup that has the file at this moment

# What a file of version N holds is what the first N steps make. A step that was released is never changed.
STEPS: tuple[str, ...] = (
    # 1: chats, messages as a tree, turns by their keys, and what growing answers have so far
    """
    CREATE TABLE chats (
        id TEXT PRIMARY KEY,
        title TEXT NOT NULL,
        titled INTEGER NOT NULL DEFAULT 0,  -- by the person, not from the first words
        created REAL NOT NULL,
        updated REAL NOT NULL,
        model TEXT,
        system TEXT,
        head TEXT,  -- the leaf of the current path
        deleted REAL
    ) STRICT;
    CREATE INDEX chats_by_age ON chats (updated DESC, id DESC);
    CREATE TABLE messages (
        n INTEGER PRIMARY KEY,  -- the order in which they were said
        id TEXT NOT NULL UNIQUE,
        chat TEXT NOT NULL REFERENCES chats (id) ON DELETE CASCADE,
        parent TEXT REFERENCES messages (id) DEFERRABLE INITIALLY DEFERRED,
        role TEXT NOT NULL CHECK (role IN ('user', 'assistant')),
        text TEXT NOT NULL,
        think TEXT NOT NULL DEFAULT '',
        state TEXT NOT NULL CHECK (state IN ('growing', 'done', 'stopped', 'length', 'error')),
        detail TEXT NOT NULL DEFAULT '',
        model TEXT,
        -- An answer's prompt is the first `kept` ids of prompt and answer of the message `base`, then `prompt`.
        base TEXT,
        kept INTEGER NOT NULL DEFAULT 0,
        prompt BLOB,  -- token ids, 4 bytes each, little-endian
        tokens BLOB,
        usage TEXT,
        timing TEXT,
        created REAL NOT NULL
    ) STRICT;
    CREATE INDEX messages_by_chat ON messages (chat, n);
    CREATE INDEX messages_by_parent ON messages (parent);
    CREATE INDEX messages_growing ON messages (n) WHERE state = 'growing';
    CREATE TABLE turns (
        turn TEXT PRIMARY KEY,
        chat TEXT NOT NULL REFERENCES chats (id) ON DELETE CASCADE,
        key TEXT NOT NULL,
        question TEXT,
        answer TEXT NOT NULL REFERENCES messages (id) ON DELETE CASCADE,
        created REAL NOT NULL,
        UNIQUE (chat, key)
    ) STRICT;
    CREATE INDEX turns_by_answer ON turns (answer);
    CREATE TABLE growth (
        n INTEGER PRIMARY KEY,
        message TEXT NOT NULL REFERENCES messages (id) ON DELETE CASCADE,
        text TEXT NOT NULL,
        think TEXT NOT NULL,
        tokens BLOB NOT NULL
    ) STRICT;
    CREATE INDEX growth_by_message ON growth (message, n);
    """,
    # 2: drafts, and the index for searching
    """
    CREATE TABLE drafts (
        chat TEXT PRIMARY KEY,  -- '' is the draft of no chat yet
        text TEXT NOT NULL,
        updated REAL NOT NULL
    ) STRICT;
    CREATE VIRTUAL TABLE message_words USING fts5 (
        text, content = 'messages', content_rowid = 'n', tokenize = 'unicode61 remove_diacritics 2'
    );
    CREATE VIRTUAL TABLE chat_words USING fts5 (title, chat UNINDEXED, tokenize = 'unicode61 remove_diacritics 2');
    INSERT INTO message_words (rowid, text) SELECT n, text FROM messages;
    INSERT INTO chat_words (title, chat) SELECT title, id FROM chats WHERE title <> '';
    CREATE TRIGGER message_said AFTER INSERT ON messages BEGIN
        INSERT INTO message_words (rowid, text) VALUES (new.n, new.text);
    END;
    CREATE TRIGGER message_grown AFTER UPDATE OF text ON messages WHEN old.text <> new.text BEGIN
        INSERT INTO message_words (message_words, rowid, text) VALUES ('delete', old.n, old.text);
        INSERT INTO message_words (rowid, text) VALUES (new.n, new.text);
    END;
    CREATE TRIGGER message_gone AFTER DELETE ON messages BEGIN
        INSERT INTO message_words (message_words, rowid, text) VALUES ('delete', old.n, old.text);
    END;
    CREATE TRIGGER chat_begun AFTER INSERT ON chats WHEN new.title <> '' BEGIN
        INSERT INTO chat_words (title, chat) VALUES (new.title, new.id);
    END;
    CREATE TRIGGER chat_renamed AFTER UPDATE OF title ON chats WHEN old.title <> new.title BEGIN
        DELETE FROM chat_words WHERE chat = old.id;
        INSERT INTO chat_words (title, chat) SELECT new.title, new.id WHERE new.title <> '';
    END;
    CREATE TRIGGER chat_gone AFTER DELETE ON chats BEGIN
        DELETE FROM chat_words WHERE chat = old.id;
        DELETE FROM drafts WHERE chat = old.id;
    END;
    """,
    # 3: messages that were deleted and can be had back
    """
    ALTER TABLE messages ADD COLUMN gone TEXT;  -- the message with which it was deleted: itself, or one above it
    DROP INDEX messages_by_chat;
    CREATE INDEX messages_by_chat ON messages (chat, n, id, parent, role, gone);  -- its form, without what was said
    CREATE TABLE deletions (
        message TEXT PRIMARY KEY REFERENCES messages (id) ON DELETE CASCADE,
        at REAL NOT NULL,
        head TEXT  -- of the chat before it, where that was deleted, too
    ) STRICT;
    CREATE INDEX deletions_by_age ON deletions (at);
    """,
)
VERSION = len(STEPS)


def open_file(path: Path | str) -> sqlite3.Connection:
    """A connection to a file of the present version; a file that is not there is made, for its owner alone.

    Raises UnusableFile for a file of a newer version and for one that does not hold together, sqlite3.Error for what
    the disk says. A file that is refused is left as it was."""
    if path != MEMORY:
        with contextlib.suppress(FileExistsError):
            # Never one that is there: to close it would take away the locks of all this process's connections to it,
            # and then another program that leaves the file removes the log that they go on writing.
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        Path(path).chmod(0o600)  # what SQLite makes beside it gets the same mode
    db = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None)
    try:
        db.row_factory = sqlite3.Row
        found = _version(db)
        if found > VERSION:
            raise UnusableFile(
                f"{path} was written by a newer homebox: its version is {found}, this one reads up to {VERSION}",
                hint="Install the newer homebox again; the file is left as it is.",
            )
        if path != MEMORY:
            if found > 0 and Path(path).stat().st_size <= CHECKED_UP_TO_BYTES:
                _check(db)
            db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA foreign_keys = ON")
        upgrade(db, Path(path))
    except BaseException:
        db.close()
        raise
    return db


def upgrade(db: sqlite3.Connection, path: Path, to: int = VERSION) -> None:
    """Take the steps that are missing. Before the first of them a copy is kept as `<file>.v<old version>.bak`."""
    found = _version(db)
    if 0 < found < to:
        copy(db, path.with_name(f"{path.name}.v{found}.bak"))
    for step in range(found, to):
        db.executescript(f"BEGIN IMMEDIATE; {STEPS[step]} PRAGMA user_version = {step + 1}; COMMIT;")


def copy(db: sqlite3.Connection, target: Path) -> None:
    """A whole and consistent copy of an open file, also while it is written to; whole or not there."""
    partial = target.with_name(f"{target.name}.partial")
    partial.unlink(missing_ok=True)
    os.close(os.open(partial, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    try:
        out = sqlite3.connect(partial)
        try:
            db.backup(out)
            out.execute("PRAGMA journal_mode = DELETE")  # one file, nothing beside it
        finally:
            out.close()
        with partial.open("rb") as written:
            os.fsync(written.fileno())
        partial.replace(target)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def _version(db: sqlite3.Connection) -> int:
    return int(db.execute("PRAGMA user_version").fetchone()[0])


def _check(db: sqlite3.Connection) -> None:
    said = str(db.execute("PRAGMA quick_check(1)").fetchone()[0])
    if said != "ok":
        raise sqlite3.DatabaseError(said)
