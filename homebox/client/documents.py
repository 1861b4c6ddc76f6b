"""How does a file become part of what is asked?

Reads it as text or refuses it with its name and the numbers, and says how it stands below the words. `homebox ask -f` and
the chat screen share it, so that a document means the same in both. It knows nothing of flags and screens.
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path

import msgspec

from homebox.client.sanitise import clean
from homebox.errors import UsageError
from homebox.wire.requests import MAX_BODY_BYTES

_REST_OF_REQUEST_BYTES = 64 * 1024  # what a request has besides the message: options, an instruction
MAX_MESSAGE_BYTES = MAX_BODY_BYTES - _REST_OF_REQUEST_BYTES
_fences = re.compile("`{3,}")


@dataclass(frozen=True)
class Document:
    """`name` as the person gave it; `size_bytes` on disk."""

    name: str
    text: str
    size_bytes: int


def read(name: str) -> str:
    """A file as text. Raises UsageError if it cannot be read or is not text."""
    try:
        return as_text(Path(name).expanduser().read_bytes(), name)
    except OSError as error:
        raise UsageError(f"{name}: {error.strerror or error}") from None
    except (ValueError, RuntimeError) as error:  # a NUL in the name, a ~ that is nobody's
        raise UsageError(f"{name!r}: {error}") from None


def attach(name: str, *, taken_bytes: int) -> Document:
    """A regular file as text, for a message that already has `taken_bytes`. Raises UsageError for one that does not
    fit, cannot be read, is not text, or is no file to be read at once: a pipe might never end."""
    try:
        path = Path(name).expanduser()
        found = path.stat()
        _check_kind(name, found.st_mode)
        _check_size(name, found.st_size, taken_bytes)
        with path.open("rb") as file:
            data = file.read(MAX_MESSAGE_BYTES + 1)  # it may grow meanwhile
    except OSError as error:
        hint = "Look at the name once more." if isinstance(error, FileNotFoundError) else None
        raise UsageError(f"{name}: {error.strerror or error}", hint=hint) from None
    except (ValueError, RuntimeError) as error:
        raise UsageError(f"{name!r}: {error}") from None
    text = as_text(data, name)
    _check_size(name, weight_bytes(fenced(name, text)), taken_bytes)
    return Document(name, text, len(data))


def _check_kind(name: str, mode: int) -> None:
    if stat.S_ISDIR(mode):
        raise UsageError(f"{name} is a directory", hint="Attach the files in it that matter, one by one.")
    if not stat.S_ISREG(mode):
        raise UsageError(f"{name} is not a regular file", hint=f"homebox ask -f {name} reads pipes, too.")


def _check_size(name: str, size_bytes: int, taken_bytes: int) -> None:
    if size_bytes + taken_bytes <= MAX_MESSAGE_BYTES:
        return
    taken = f", of which {in_words(taken_bytes)} are taken" if taken_bytes else ""
    raise UsageError(
        f"{name} needs {in_words(size_bytes)}; a message may have {in_words(MAX_MESSAGE_BYTES)}{taken}",
        hint="Attach the part of it that matters.",
    )


def as_text(data: bytes, name: str, convert: str = "iconv -f LATIN1 -t UTF-8 {name}") -> str:
    """UTF-8 text, with or without a mark at its start. Raises UsageError that names the byte at fault; `convert` is the
    command that would help."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{name} is not UTF-8 text (byte {error.start} is 0x{data[error.start]:02x})",
            hint=f"Convert it first, for example: {convert.format(name=name)}",
        ) from None
    if "\0" in text:
        raise UsageError(f"{name} is not text: it holds a NUL at character {text.index(chr(0))}")
    return text


def fenced(name: str, text: str) -> str:
    """The text between two fences that nothing in it can close, under its name."""
    fence = "`" * max(3, *(len(each) + 1 for each in _fences.findall(text)), 0)
    label = " ".join(clean(os.fspath(name)).replace("`", "'").split())
    return f"{fence}{label}\n{text}{'' if text.endswith(chr(10)) or not text else chr(10)}{fence}"


def weight_bytes(text: str) -> int:
    """What a text takes in the body of a request."""
    return len(msgspec.json.encode(text.encode("utf-8", "replace").decode()))


def in_words(size_bytes: int) -> str:
    """`812 B`, `12.3 kB`, `8.3 MB`."""
    if size_bytes < 1000:
        return f"{size_bytes} B"
    return f"{size_bytes / 1000:.1f} kB" if size_bytes < 999_950 else f"{size_bytes / 1e6:.1f} MB"
