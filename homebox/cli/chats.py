"""`homebox chats`: what did I say, and where? List, read, search, name, branch, delete and move the own conversations.

An id may be shortened as long as only one begins so. Titles and texts are somebody's words or a model's, so they are
sanitised before a terminal sees them.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import typer

from homebox.cli import columns, terminal
from homebox.client import chats, connection
from homebox.client.phrases import ended_in_words
from homebox.client.sanitise import clean, safe_json
from homebox.errors import NotFound, UsageError

if TYPE_CHECKING:
    from homebox.wire.chats import ChatRow

app = typer.Typer(
    help="Your conversations: list, read, search, branch, delete, export.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
)
Id = Annotated[str, typer.Argument(metavar="ID", help="As `chats list` shows it, or its beginning.")]
Json = Annotated[bool, typer.Option("--json", help="JSON for scripts.")]


@app.command("list")
def list_chats(
    deleted: Annotated[bool, typer.Option("--deleted", help="Those that can still be had back.")] = False,
    limit: Annotated[int, typer.Option("--limit", metavar="N", help="At most so many; 0 is all.")] = 30,
    json: Json = False,
) -> int:
    """Your conversations, newest first.

    Examples:

    \b
      homebox chats list
      homebox chats list --deleted
    """
    terminal.prepare_stdout()
    if limit < 0:
        raise UsageError(f"--limit {limit} is not a number of rows")
    found = []
    page = min(limit, chats.PAGE) or chats.PAGE
    for row in chats.rows(connection.from_environment(), deleted=deleted, page=page):
        found.append(row)
        if len(found) == limit:
            break
    if json:
        _json(found)
    elif found:
        _out("\n".join(columns.table([("ID", "CHANGED", "SAID", "TITLE"), *map(_row, found)])))
    else:
        terminal.say("nothing is deleted" if deleted else "there is no conversation yet")
    return 0


@app.command("show")
def show(
    chat: Id,
    whole: Annotated[bool, typer.Option("--all", help="Every branch, with --json.")] = False,
    thinking: Annotated[bool, typer.Option("--thinking", help="With a reasoning model's thoughts.")] = False,
    json: Json = False,
) -> int:
    """What was said, on the current path.

    Examples:

    \b
      homebox chats show 3f9a
      homebox chats show 3f9a --thinking
    """
    terminal.prepare_stdout()
    daemon = connection.from_environment()
    found = chats.show(daemon, chats.find(daemon, chat).id, whole=whole)
    if json:
        _json(found)
        return 0
    if whole:
        raise UsageError("branches cannot be shown one below the other", hint="Add --json.")
    parts = [f"system: {found.system}"] if found.system else []
    for each in found.messages:
        if thinking and each.think:
            parts.append(f"thinking: {each.think}")
        note = (
            "" if each.state == "done" else f" ({ended_in_words(each.detail) or chats.in_words(each.state)})"
        )
        parts.append(f"{'you' if each.role == 'user' else 'homebox'}{note}: {each.content}")
    _out("\n\n".join(parts))
    return 0


@app.command("search")
def search(
    words: Annotated[
        list[str], typer.Argument(metavar="WORDS", help="All of them; the last may be a beginning.")
    ],
    json: Json = False,
) -> int:
    """Find conversations by their words.

    Example:

    \b
      homebox chats search apple cak
    """
    terminal.prepare_stdout()
    found = chats.search(connection.from_environment(), " ".join(words))
    if json:
        _json(found)
    elif found:
        rows = [(hit.chat, columns.cut(hit.title, 30), " ".join(hit.snippet.split())) for hit in found]
        _out("\n".join(columns.table([("ID", "TITLE", "WORDS"), *rows], columns.room())))
    else:
        terminal.say("nothing was found")
    return 0


@app.command("rename")
def rename(chat: Id, title: Annotated[str, typer.Argument(metavar="TITLE")]) -> int:
    """Give a conversation another title.

    Example:

    \b
      homebox chats rename 3f9a "Holiday plans"
    """
    daemon = connection.from_environment()
    chats.change(daemon, chats.find(daemon, chat).id, title=title)
    return 0


@app.command("rm")
def remove(ids: Annotated[list[str], typer.Argument(metavar="ID")]) -> int:
    """Delete conversations; for seven days they can be had back.

    Example:

    \b
      homebox chats rm 3f9a
    """
    daemon = connection.from_environment()
    for row in [chats.find(daemon, each) for each in ids]:
        chats.delete(daemon, row.id)
        _out(f"{row.id} deleted; homebox chats restore {row.id} brings it back for seven days")
    return 0


@app.command("restore")
def restore(chat: Id) -> int:
    """Have a deleted conversation back.

    Example:

    \b
      homebox chats restore 3f9a
    """
    daemon = connection.from_environment()
    row = chats.find(daemon, chat, deleted=True)
    chats.undelete(daemon, row.id)
    _out(f"{row.id} is back")
    return 0


@app.command("branch")
def branch(
    chat: Id,
    message: Annotated[
        str,
        typer.Argument(metavar="MESSAGE", help="Its number in `chats show`, from 1, or its id in --json."),
    ],
) -> int:
    """Go on from a message in a conversation of its own.

    The new one holds what was said up to that message; its id is printed.

    Example:

    \b
      homebox chat --chat "$(homebox chats branch 3f9a 4)"
    """
    daemon = connection.from_environment()
    name = chats.find(daemon, chat).id
    made = daemon.json("POST", chats.path(name, "branch"), {"message": _message(daemon, name, message)})
    _out(str(made["chat"]))
    return 0


@app.command("export")
def export(
    chat: Id,
    form: Annotated[
        Literal["md", "json"],
        typer.Option("--format", metavar="md|json", help="md to read, json to import again."),
    ] = "md",
    output: Annotated[
        str | None, typer.Option("-o", "--output", metavar="FILE", help="Write there instead.")
    ] = None,
) -> int:
    """Write a conversation out. Markdown to read, or JSON with every branch.

    Examples:

    \b
      homebox chats export 3f9a > holiday.md
      homebox chats export 3f9a --format json -o holiday.json
    """
    terminal.prepare_stdout()
    daemon = connection.from_environment()
    name = chats.find(daemon, chat).id
    text = chats.export_text(daemon, name, form)
    if output is None:
        _out(text.rstrip("\n") if form == "md" else safe_json(text))
        return 0
    try:
        safe = clean(text) if form == "md" else safe_json(text)
        Path(output).expanduser().write_text(safe, encoding="utf-8", newline="")
    except OSError as error:
        raise UsageError(f"{output}: {error.strerror or error}") from None
    return 0


@app.command("import")
def take(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="What export --format json wrote; - is standard input.")
    ],
) -> int:
    """Add a conversation that was exported. It gets a new id if its own is taken.

    Example:

    \b
      homebox chats import holiday.json
    """
    try:
        raw = sys.stdin.buffer.read() if file == "-" else Path(file).expanduser().read_bytes()
        body = msgspec.json.decode(raw)
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror or error}") from None
    except msgspec.DecodeError as error:
        raise UsageError(
            f"{file} is no JSON: {error}", hint="Import what homebox chats export --format json wrote."
        ) from None
    made = connection.from_environment().json("POST", "/homebox/chats/import", body)
    _out(str(made["chat"]))
    return 0


def _row(row: ChatRow) -> tuple[str, ...]:
    """ID, time, number of messages, title. On a terminal the title is cut so that the row fits."""
    changed = time.strftime("%Y-%m-%d %H:%M", time.localtime(row.updated))
    state = "" if row.state in (None, "done") else f" ({chats.in_words(row.state)})"
    left = (columns.room() or 1000) - max(16, columns.cells(row.id)) - 28 - columns.cells(state)
    return row.id, changed, str(row.messages), columns.cut(row.title, max(10, left)) + state


def _message(daemon: connection.Daemon, chat: str, meant: str) -> str:
    """The id of the message with this id or number. Raises NotFound."""
    said = chats.show(daemon, chat).messages
    if meant.isascii() and meant.isdigit() and meant not in {each.id for each in said}:
        if not 1 <= int(meant[:9]) <= len(said):
            raise NotFound(
                f"there is no message {meant} of {len(said)}", hint="homebox chats show counts them."
            )
        return said[int(meant) - 1].id
    return meant


def _out(text: str) -> None:
    sys.stdout.write(clean(text) + "\n")


def _json(body: Any) -> None:
    sys.stdout.write(safe_json(msgspec.json.encode(body).decode()) + "\n")
