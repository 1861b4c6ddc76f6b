"""Where do the lines of a plain conversation come from, and what is said before the first one?

From a person at a terminal (`keyboard.py`), or line by line from a file or a pipe, read as UTF-8 whatever the locale: a
line that is no text is refused by itself and the rest is still read. Ends with the exit code. It knows nothing of answers.
"""

from __future__ import annotations

import codecs
import sys
from collections.abc import Callable
from typing import Any

from homebox.cli.keyboard import Keyboard
from homebox.cli.plain import Conversation
from homebox.client.phrases import loading_step
from homebox.client.sanitise import clean
from homebox.errors import UsageError


def greeting(health: dict[str, Any]) -> str:
    """`smollm2-135m is ready`, `smollm2-135m is loading (weights 31%)`: short, since it comes before every chat."""
    model, state = health.get("model") or "the daemon", health.get("state") or "there"
    if state == "paused":
        return f"{model} is paused {health.get('detail') or ''}; homebox resume ends it"
    if state == "unloaded":
        return f"{model} is {health.get('detail') or 'asleep'}"
    return f"{model} is {state}" + loading_step(health)


def converse(conversation: Conversation, first: str | None) -> int:
    """Read lines until the person leaves. Returns the exit code; at a terminal each failure was seen, and it is 0."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        _converse(conversation, first, _read_piped)
        return conversation.exit_code
    encoding = codecs.lookup(sys.stdout.encoding).name
    if encoding != "utf-8":
        conversation.status(f"this terminal's characters are {encoding}; what it lacks is written as ?")
    with Keyboard() as keyboard:
        _converse(conversation, first, lambda: keyboard.read_line("you: ", offer=conversation.stopped))
    return 0


def _converse(conversation: Conversation, first: str | None, read: Callable[[], str | None]) -> None:
    if first is not None:
        _echo(first)
        if not conversation.say(first):
            return
    while True:
        try:
            line = read()
        except KeyboardInterrupt:
            print()
            conversation.stopped = False
            conversation.status("Ctrl-D or /quit leaves")
            continue
        except UsageError as error:
            conversation.out.new_line()
            conversation.failed(error)
            continue
        if line is None or not conversation.say(line):
            return


def _echo(line: str) -> None:
    print(f"you: {clean(line)}", flush=True)


def _read_piped() -> str | None:
    """Raises UsageError for a line that is not text."""
    raw = sys.stdin.buffer.readline()
    if not raw:
        return None
    try:
        line = raw.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"a line is not UTF-8 text (byte {error.start} of it is 0x{raw[error.start]:02x}); it was not sent"
        ) from None
    if "\0" in line:
        raise UsageError(f"a line holds a NUL at character {line.index(chr(0))}; it was not sent")
    if line.strip():
        _echo(line)
    return line
