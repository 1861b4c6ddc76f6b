"""What does the person want to ask, put together from words, files and standard input?

Words are the instruction; what comes from files and standard input is the document below it, unchanged. Text that
cannot be read as text is refused with its name, never guessed at. It knows nothing of the daemon.
"""

from __future__ import annotations

import select
import sys
from collections.abc import Sequence

from homebox.client import documents
from homebox.errors import UsageError

STDIN = "-"
_STDIN_NAME = "standard input"
_WAIT_S = 2.0
_EXAMPLE = 'homebox ask "Why is the sky blue?"   or   homebox ask "Summarise this" < letter.txt'


def compose(words: Sequence[str], files: Sequence[str]) -> str:
    """The prompt. With one document it stands alone or below the words; several are fenced under their names.

    Raises UsageError when there is nothing to ask or a document is not text."""
    instruction = " ".join(word for word in words if word != STDIN)
    named = [(name, documents.read(name)) for name in files if name != STDIN]
    forced = STDIN in words or STDIN in files
    if forced or not _is_terminal():
        document = _read_stdin(announce=bool(instruction or named))
        if document:
            named.append((_STDIN_NAME, document))
    texts = [documents.fenced(name, text) if len(named) > 1 else text for name, text in named]
    prompt = "\n\n".join(part for part in [instruction, *texts] if part)
    if not prompt.strip():
        raise UsageError("there is nothing to ask", hint=_EXAMPLE)
    return prompt


def text_or_file(value: str) -> str:
    """`TEXT` itself, or the contents of the file in `@FILE`."""
    return documents.read(value[1:]) if value.startswith("@") else value


def _is_terminal() -> bool:
    return sys.stdin is None or sys.stdin.isatty()


def _read_stdin(*, announce: bool) -> str:
    """All of standard input. A pipe that stays silent is waited for, and with `announce` the person is told."""
    if sys.stdin is None:
        return ""
    source = sys.stdin.buffer
    if announce and not select.select([source], [], [], _WAIT_S)[0]:
        print("homebox: waiting for the end of standard input (</dev/null leaves it out)", file=sys.stderr)
    return documents.as_text(source.read(), _STDIN_NAME, "iconv -f LATIN1 -t UTF-8 FILE | homebox ask")
