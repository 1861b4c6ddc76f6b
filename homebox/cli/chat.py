"""`homebox chat`: talk with the model, on a screen or line by line.

Reads the flags, makes sure that they can be meant, and hands over to what draws: the chat screen (`tui/`) or lines (`plain.py`).
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

import typer

if TYPE_CHECKING:
    from homebox.client.connection import Daemon
    from homebox.client.settings import Screens


def chat(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="PROMPT", help="The first thing to say.", show_default=False),
    ] = None,
    go_on: Annotated[
        bool, typer.Option("-c", "--continue", help="Go on with the last conversation, if there is one.")
    ] = False,
    new: Annotated[
        bool, typer.Option("-n", "--new", help="Begin a new one, as `chat` does by itself.")
    ] = False,
    chat_id: Annotated[
        str | None,
        typer.Option("--chat", metavar="ID", help="Go on with this one, as `chats list` shows it."),
    ] = None,
    model: Annotated[
        str | None, typer.Option("-m", "--model", metavar="NAME", help="The model to talk with.")
    ] = None,
    system: Annotated[
        str | None,
        typer.Option("-s", "--system", metavar="TEXT|@FILE", help="How the model should behave."),
    ] = None,
    plain: Annotated[
        bool, typer.Option("--plain", help="Append only: for screen readers, pipes and simple terminals.")
    ] = False,
    no_mouse: Annotated[
        bool, typer.Option("--no-mouse", help="Leave the mouse to the terminal, to select text with it.")
    ] = False,
    theme: Annotated[
        str | None, typer.Option("--theme", metavar="NAME", help="How the screen looks: dark, light, ansi.")
    ] = None,
) -> int:
    """Talk with the model.

    Enter sends. Esc (in plain mode Ctrl-C) stops an answer and keeps it, Ctrl-D leaves, /help lists the commands. The
    conversation lives in the daemon: an answer goes on when the engine or the connection breaks, and what was said
    is there again after a restart.

    Plain mode only ever appends: with --plain or HOMEBOX_PLAIN=1, on a terminal that is dumb (TERM), and where standard
    input, output or error is no terminal. Its first line says why it is on. Words are always the first message; a conversation
    is named with --chat.

    Examples:

    \b
      homebox chat
      homebox chat --continue
      homebox chat -s "You are a patient teacher." "Explain fractions to me."
      homebox chat --plain < questions.txt
    """
    from homebox.cli import mode, terminal
    from homebox.cli import prompt as prompts
    from homebox.client import connection, settings
    from homebox.errors import UsageError

    if sys.stdin is None:
        raise UsageError(
            "there is no standard input to read from", hint='Ask one question with: homebox ask "..."'
        )
    if go_on + new + (chat_id is not None) > 1:
        raise UsageError(
            "--continue, --new and --chat name different conversations", hint="Give one of them."
        )
    instruction = None if system is None else prompts.text_or_file(system)
    daemon = connection.from_environment()
    first = " ".join(words) if words else None
    why = mode.why_plain(plain)
    if not why:
        wanted = settings.screens()
        look = replace(
            wanted,
            theme=theme or wanted.theme,
            mouse=False if no_mouse else wanted.mouse,
            ascii=terminal.only_ascii() if wanted.ascii is None else wanted.ascii,
        )
        return _on_screen(
            daemon, look, go_on=go_on, chat=chat_id, model=model, instruction=instruction, first=first
        )
    return _line_by_line(
        daemon, why, go_on=go_on, chat=chat_id, model=model, instruction=instruction, first=first
    )


def _on_screen(
    daemon: Daemon,
    look: Screens,
    *,
    go_on: bool,
    chat: str | None,
    model: str | None,
    instruction: str | None,
    first: str | None,
) -> int:
    """The chat screen, to its end. Whatever keeps it from being useful is said before anything is drawn."""
    from homebox.cli.status import health
    from homebox.tui import start
    from homebox.wire.requests import Options

    health(daemon)
    known = _known(daemon, model, instruction, go_on=go_on, chat=chat)
    return start.chat(daemon, look, chat=known, first=first, system=instruction, options=Options(model=model))


def _line_by_line(
    daemon: Daemon,
    why: str,
    *,
    go_on: bool,
    chat: str | None,
    model: str | None,
    instruction: str | None,
    first: str | None,
) -> int:
    """The plain conversation, to its end. `go_on`: with the last one, or a first one."""
    from homebox.cli import converse, terminal
    from homebox.cli.plain import Conversation
    from homebox.cli.status import health
    from homebox.wire.requests import Options

    terminal.prepare_stdout()
    found = health(daemon)
    known = _known(daemon, model, instruction, go_on=go_on, chat=chat)
    conversation = Conversation(daemon, Options(model=model), instruction, known)
    if why:
        conversation.status(f"plain mode, since {why}; /help lists the commands")
    conversation.status(converse.greeting(found))
    if known is not None:
        conversation.resume()
    elif go_on:
        conversation.status("there is no conversation yet; this one is the first")
    return converse.converse(conversation, first)


def _known(
    daemon: Daemon, model: str | None, instruction: str | None, *, go_on: bool, chat: str | None
) -> str | None:
    """The id of the conversation that is meant, with another instruction if one is given; None for a new one. Raises
    NotFound, also for the model."""
    from homebox.client import chats

    if model is not None:
        daemon.json("GET", f"/v1/models/{quote(model, safe='')}")  # refuses one that it does not serve
    last = next(chats.rows(daemon, page=1), None) if go_on else None
    known = chats.find(daemon, chat).id if chat is not None else last.id if last else None
    if known is not None and instruction is not None:
        chats.set_system(daemon, known, instruction)
    return known
