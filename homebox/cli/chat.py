"""`homebox chat`: talk with the model, line by line.

Reads the flags, makes sure that somebody answers, says where the person is, and hands over to `plain.py`.
"""

from __future__ import annotations

import sys
from typing import Annotated
from urllib.parse import quote

import typer


def chat(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="PROMPT", help="The first thing to say.", show_default=False),
    ] = None,
    plain_mode: Annotated[
        bool, typer.Option("--plain", help="Append only: for screen readers, pipes and simple terminals.")
    ] = False,
    model: Annotated[
        str | None, typer.Option("-m", "--model", metavar="NAME", help="The model to talk with.")
    ] = None,
    system: Annotated[
        str | None,
        typer.Option("-s", "--system", metavar="TEXT|@FILE", help="How the model should behave."),
    ] = None,
    go_on: Annotated[
        bool, typer.Option("-c", "--continue", help="Go on with the last conversation.")
    ] = False,
    chat_id: Annotated[
        str | None,
        typer.Option("--chat", metavar="ID", help="Go on with this one, as `chats list` shows it."),
    ] = None,
) -> int:
    """Talk with the model, line by line.

    Enter sends. Ctrl-C stops an answer and keeps what is there, Ctrl-D leaves, /help lists the commands. The
    conversation lives in the daemon: an answer goes on when the engine or the connection breaks, and what was said
    is there again after a restart.

    Examples:

    \b
      homebox chat
      homebox chat --continue
      homebox chat -s "You are a patient teacher." "Explain fractions to me."
      homebox chat --plain < questions.txt
    """
    from homebox.cli import plain, terminal
    from homebox.cli import prompt as prompts
    from homebox.cli.status import health
    from homebox.client import chats, connection
    from homebox.errors import UsageError
    from homebox.wire.requests import Options

    if sys.stdin is None:
        raise UsageError(
            "there is no standard input to read from", hint='Ask one question with: homebox ask "..."'
        )
    if go_on and chat_id is not None:
        raise UsageError("--continue and --chat name two conversations", hint="Give one of them.")
    if system is not None and (go_on or chat_id is not None):
        raise UsageError("a conversation keeps the instruction it began with", hint="Leave --system out.")
    terminal.prepare_stdout()
    if hasattr(sys.stdin, "reconfigure"):
        sys.stdin.reconfigure(errors="strict")
    daemon = connection.from_environment()
    instruction = None if system is None else prompts.text_or_file(system)
    found = health(daemon)
    if model is not None:
        daemon.json("GET", f"/v1/models/{quote(model, safe='')}")  # refuses one that it does not serve
    known = chats.find(daemon, chat_id).id if chat_id is not None else chats.last(daemon) if go_on else None
    conversation = plain.Conversation(daemon, Options(model=model), instruction, known)
    conversation.status(plain.greeting(found))
    if not plain_mode:
        conversation.status("line by line; /help lists the commands")
    if known is not None:
        conversation.resume()
    return plain.converse(conversation, " ".join(words) if words else None)
