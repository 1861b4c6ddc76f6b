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
) -> int:
    """Talk with the model, line by line.

    Enter sends. Ctrl-C stops an answer and keeps what is there, Ctrl-D leaves, /help lists the commands. The
    conversation lives in the daemon: an answer goes on when the engine or the connection breaks.

    Examples:

    \b
      homebox chat
      homebox chat -s "You are a patient teacher." "Explain fractions to me."
      homebox chat --plain < questions.txt
    """
    from homebox.cli import plain, terminal
    from homebox.cli import prompt as prompts
    from homebox.cli.status import health
    from homebox.client import connection
    from homebox.errors import UsageError
    from homebox.wire.requests import Options

    if sys.stdin is None:
        raise UsageError(
            "there is no standard input to read from", hint='Ask one question with: homebox ask "..."'
        )
    terminal.prepare_stdout()
    if hasattr(sys.stdin, "reconfigure"):
        sys.stdin.reconfigure(errors="strict")
    daemon = connection.from_environment()
    instruction = None if system is None else prompts.text_or_file(system)
    found = health(daemon)
    if model is not None:
        daemon.json("GET", f"/v1/models/{quote(model, safe='')}")  # refuses one that it does not serve
    conversation = plain.Conversation(daemon, Options(model=model), instruction)
    conversation.status(plain.greeting(found))
    if not plain_mode:
        conversation.status("line by line; /help lists the commands")
    return plain.converse(conversation, " ".join(words) if words else None)
