"""`homebox streams`: which requests run or wait, and how is one of them stopped?

Own requests may be cancelled at once; others' only by an administrator, and after a question. What is stopped keeps
its text.
"""

from __future__ import annotations

import sys
from typing import Annotated
from urllib.parse import quote

import msgspec
import typer

from homebox.cli import figures, terminal
from homebox.client import connection, stream
from homebox.client.sanitise import clean, safe_json
from homebox.errors import HomeboxError, NotFound, UsageError
from homebox.wire.events import StreamRow

app = typer.Typer(
    help="List running and waiting requests, or cancel them.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
)


@app.command("list")
def list_streams(
    mine: Annotated[bool, typer.Option("--mine", help="Only your own.")] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON array.")] = False,
) -> int:
    """Who runs or waits at this moment. The ids are as short as `cancel` takes them; --json has them whole.

    Examples:

    \b
      homebox streams list
      homebox streams list --mine --json
    """
    terminal.prepare_stdout()
    rows = [row for row in _running(connection.from_environment()) if row.mine or not mine]
    if json:
        sys.stdout.write(safe_json(msgspec.json.encode(rows).decode()) + "\n")
    elif rows:
        sys.stdout.write("\n".join(figures.table(rows)) + "\n")
    else:
        terminal.say("nothing of yours is running" if mine else "nothing is running")
    return 0


@app.command("cancel")
def cancel(
    ids: Annotated[
        list[str] | None, typer.Argument(metavar="ID", help="As `streams list` shows it.", show_default=False)
    ] = None,
    all_mine: Annotated[bool, typer.Option("--all-mine", help="Every request of yours.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> int:
    """Stop requests; returns once their memory is free.

    Examples:

    \b
      homebox streams cancel s-91c
      homebox streams cancel --all-mine --yes
    """
    if bool(ids) == all_mine:
        raise UsageError("say what to stop", hint="homebox streams cancel ID...   or   --all-mine")
    daemon = connection.from_environment()
    rows = {row.id: row for row in _running(daemon)}
    chosen = (
        [row for row in rows.values() if row.mine] if all_mine else [_row(rows, name) for name in ids or []]
    )
    if not chosen:
        terminal.say("nothing of yours is running")
        return 0
    doubtful = chosen if all_mine else [row for row in chosen if not row.mine]
    if doubtful and not yes and not _agreed(doubtful):
        terminal.say("nothing was stopped")
        return 0
    return _stop(daemon, chosen)


def _running(daemon: connection.Daemon) -> list[StreamRow]:
    return msgspec.convert(daemon.json("GET", "/homebox/streams"), dict[str, list[StreamRow]])["streams"]


def _stop(daemon: connection.Daemon, chosen: list[StreamRow]) -> int:
    """Stop each; what fails is said and the rest still stopped. Returns the last failure's exit code."""
    code = 0
    for row in chosen:
        try:
            stream.cancel(daemon, quote(row.id, safe=""))
        except NotFound:
            print(clean(f"{row.id} had already ended"))
        except HomeboxError as error:
            terminal.say(str(error) if row.id in str(error) else f"{row.id}: {error}")
            code = error.exit_code
        else:
            print(clean(f"{row.id} stopped"))
    return code


def _row(rows: dict[str, StreamRow], name: str) -> StreamRow:
    """The stream that `name` means: its id, or the beginning of one, with or without its kind. Never a guess."""
    if name in rows:
        return rows[name]
    meant = [
        row for row in rows.values() if row.id.startswith(name) or row.id.rpartition("-")[2].startswith(name)
    ]
    if len(meant) > 1:
        raise UsageError(
            f"{name!r} begins {len(meant)} ids",
            hint="Write more of it; --json of streams list shows them whole.",
        )
    if not meant:
        raise NotFound(f"no request {name!r} is running or waiting", hint="homebox streams list shows them.")
    return meant[0]


def _agreed(rows: list[StreamRow]) -> bool:
    if not sys.stdin.isatty():
        raise UsageError("stopping these needs a yes, and there is no terminal to ask on", hint="Add --yes.")
    named = ", ".join(f"{row.id} ({row.person})" for row in rows)
    return typer.confirm(clean(f"Stop {named}?"), err=True)
