"""Which words typed into a chat are commands, and what do they ask for?

One table for the chat screen, its palette and the line-mode chat. A line is a command only if it begins with a whole
known word: `/tmp/list` and `/etc` are text, and a space before a known word makes it text, too. It does nothing with
them.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass


@dataclass(frozen=True)
class Command:
    """`name` with its slash; `takes` is what may follow it, in words; `on_screen`: needs the chat screen."""

    name: str
    about: str
    takes: str = ""
    on_screen: bool = False


COMMANDS = tuple(
    Command(*row)
    for row in (
        ("/help", "what can be typed, and every key"),
        ("/new", "start a new conversation"),
        ("/chats", "your conversations"),
        ("/search", "find a conversation by its words", "WORDS"),
        ("/title", "give this conversation a name", "TEXT"),
        ("/system", "how the model should behave in this conversation", "TEXT"),
        ("/model", "the model that answers", "NAME"),
        ("/regenerate", "answer the last question again"),
        ("/continue", "go on with an answer that was cut off"),
        ("/stop", "stop the answer and keep what is there", "", True),
        ("/edit", "change the last question, in a branch of its own", "", True),
        ("/branch", "go on from here in a conversation of its own"),
        ("/summarise", "go on in a new conversation with a summary of this one"),
        ("/attach", "send a file's text with the next message", "FILE"),
        ("/editor", "write in $EDITOR", "", True),
        ("/copy", "copy the last answer", "", True),
        ("/export", "write this conversation to a file", "FILE"),
        ("/delete", "delete this conversation; for seven days it can be had back"),
        ("/undo", "have back what was deleted last"),
        ("/thinking", "show or fold a reasoning model's thoughts"),
        ("/stats", "counts and speeds of the last answer"),
        ("/top", "watch the box", "", True),
        ("/panel", "this conversation's figures and the house, beside it", "", True),
        ("/theme", "how the screen looks", "NAME", True),
        ("/quit", "leave; an answer that is being written goes on"),
    )
)
_BY_NAME = {command.name: command for command in COMMANDS}


def known(*, on_screen: bool) -> tuple[Command, ...]:
    """Those of the chat screen, or those of the line-mode chat."""
    return tuple(command for command in COMMANDS if on_screen or not command.on_screen)


def parse(line: str, *, on_screen: bool) -> tuple[Command, str] | None:
    """The command that a message is, with what follows it; None for text."""
    word, _, rest = line.rstrip().partition(" ")
    command = _BY_NAME.get(word)
    if command is None or (command.on_screen and not on_screen) or "\n" in word:
        return None
    return command, rest.strip()


def near(line: str, *, on_screen: bool) -> str:
    """The command that was perhaps meant by a line of one word that begins with a slash; nothing if none is near."""
    word = line.strip()
    if not word.startswith("/") or " " in word or line != line.lstrip():
        return ""
    names = [command.name for command in known(on_screen=on_screen)]
    return next(iter(difflib.get_close_matches(word, names, 1)), "") if word not in names else ""
