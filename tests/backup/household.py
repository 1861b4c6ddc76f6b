"""A state directory with what a family leaves in it."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

PEOPLE = ("anna", "ben", "mia")
MESSAGES = 2000


def make(state: Path, messages: int = MESSAGES) -> Path:
    (state / "chats").mkdir(parents=True, mode=0o700)
    for person in PEOPLE:
        with closing(open_chats(state, person)) as chats, chats:
            chats.execute("CREATE TABLE messages (id INTEGER PRIMARY KEY, text TEXT, tokens BLOB)")
            chats.execute("CREATE VIRTUAL TABLE words USING fts5(text, content=messages, content_rowid=id)")
            chats.executemany("INSERT INTO messages (text, tokens) VALUES (?, ?)", rows(person, messages))
            chats.execute("INSERT INTO words (words) VALUES ('rebuild')")
    with closing(sqlite3.connect(state / "usage.db")) as usage, usage:
        usage.execute("CREATE TABLE usage (person TEXT, tokens INTEGER)")
        usage.executemany("INSERT INTO usage VALUES (?, ?)", [(person, 1234) for person in PEOPLE])
    (state / "people.json").write_text(json.dumps({"people": list(PEOPLE)}))
    (state / "keys.json").write_text(json.dumps({"keys": []}))
    (state / "pause.json").write_text("{}")
    (state / "audit.jsonl").write_text('{"who": "anna"}\n' * 100)
    (state / "audit.jsonl.1").write_text('{"who": "ben"}\n' * 100)
    return state


def rows(person: str, count: int) -> list[tuple[str, bytes]]:
    return [(f"{person} said {number}: fünf Äpfel 🍏", bytes([number % 256]) * 40) for number in range(count)]


def open_chats(state: Path, person: str) -> sqlite3.Connection:
    chats = sqlite3.connect(state / "chats" / f"{person}.db", timeout=20)
    chats.execute("PRAGMA journal_mode = WAL")
    return chats


def messages(state: Path, person: str) -> list[tuple[str, bytes]]:
    with closing(open_chats(state, person)) as chats:
        return chats.execute("SELECT text, tokens FROM messages ORDER BY id").fetchall()


def plain(state: Path) -> dict[str, bytes]:
    """The files that are no databases."""
    names = ("people.json", "keys.json", "pause.json", "audit.jsonl", "audit.jsonl.1")
    return {name: (state / name).read_bytes() for name in names}


def everything(folder: Path) -> dict[str, bytes]:
    """Every file below, whatever it is, but for the lock."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != "daemon.lock")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}
