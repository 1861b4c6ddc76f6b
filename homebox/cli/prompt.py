"""What does the person want to ask, put together from words, files and standard input?

Words are the instruction; what comes from files and standard input is the document below it, unchanged. Text that
cannot be read as text is refused with its name, never guessed at. It knows nothing of the daemon.
"""

from __future__ import annotations

import select
import sys
from collections.abc import Sequence
from pathlib import Path

from homebox.errors import UsageError

STDIN = "-"
_STDIN_NAME = "standard input"
_WAIT_S = 2.0
_EXAMPLE = 'homebox ask "Why is the sky blue?"   or   homebox ask "Summarise this" < letter.txt'


def compose(words: Sequence[str], files: Sequence[str]) -> str:
    """The prompt. With one document it stands alone or below the words; several carry their names.

    Raises UsageError when there is nothing to ask or a document is not text."""
    instruction = " ".join(word for word in words if word != STDIN)
    documents = [(name, read_document(name)) for name in files if name != STDIN]
    forced = STDIN in words or STDIN in files
    if forced or not _is_terminal():
        document = _read_stdin(announce=bool(instruction or documents))
        if document:
            documents.append((_STDIN_NAME, document))
    if len(documents) > 1:
        documents = [(name, f"[{name}]\n{text}") for name, text in documents]
    prompt = "\n\n".join(part for part in [instruction, *(text for _, text in documents)] if part)
    if not prompt.strip():
        raise UsageError("there is nothing to ask", hint=_EXAMPLE)
    return prompt


def text_or_file(value: str) -> str:
    """`TEXT` itself, or the contents of the file in `@FILE`."""
    return read_document(value[1:]) if value.startswith("@") else value


def read_document(name: str) -> str:
    """A file as text. Raises UsageError if it cannot be read or is not text."""
    try:
        data = Path(name).expanduser().read_bytes()
    except OSError as error:
        raise UsageError(f"{name}: {error.strerror or error}") from None
    except ValueError as error:
        raise UsageError(f"{name!r}: {error}") from None
    return _text(data, name)


def _text(data: bytes, name: str) -> str:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{name} is not UTF-8 text (byte {error.start} is 0x{data[error.start]:02x})",
            hint="Convert it first, for example: "
            + (
                "iconv -f LATIN1 -t UTF-8 FILE | homebox ask"
                if name == _STDIN_NAME
                else f"iconv -f LATIN1 -t UTF-8 {name}"
            ),
        ) from None
    if "\0" in text:
        raise UsageError(f"{name} is not text: it holds a NUL at character {text.index(chr(0))}")
    return text


def _is_terminal() -> bool:
    return sys.stdin is None or sys.stdin.isatty()


def _read_stdin(*, announce: bool) -> str:
    """All of standard input. A pipe that stays silent is waited for, and with `announce` the person is told."""
    if sys.stdin is None:
        return ""
    source = sys.stdin.buffer
    if announce and not select.select([source], [], [], _WAIT_S)[0]:
        print("homebox: waiting for the end of standard input (</dev/null leaves it out)", file=sys.stderr)
    return _text(source.read(), _STDIN_NAME)
