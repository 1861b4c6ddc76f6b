"""How is the text of the prompt edited in the person's own editor?

$VISUAL, else $EDITOR, else one that is there; on a file that only they can read, in a folder that is gone afterwards
with all that an editor leaves beside its file. The screen is put away meanwhile.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from textual.app import App, SuspendNotSupported

from homebox.client import documents
from homebox.errors import UsageError

_FOUND = ("editor", "nano", "vi")


def edit(text: str, app: App[object], environ: Mapping[str, str] = os.environ) -> str:
    """What the person made of `text`. Raises UsageError if that was not possible; nothing has happened then."""
    command = editor(environ)
    with tempfile.TemporaryDirectory(prefix="homebox-") as folder:
        file = Path(folder) / "message.md"
        file.touch(mode=0o600)
        file.write_text(text, encoding="utf-8")
        with _lent(app), _undisturbed():
            code = _run([*command, str(file)])
        if code:
            raise UsageError(
                f"{command[0]} {_how_it_ended(code)}; the message is as it was",
                hint="Save and leave it without an error, or set $EDITOR to another one.",
            )
        after = _read(file)
    # Editors end a file with a newline whether one was typed or not.
    return after.removesuffix("\n") if not text.endswith("\n") else after


def editor(environ: Mapping[str, str] = os.environ) -> list[str]:
    """The command with its own arguments. Raises UsageError where there is none."""
    said = next((name for name in ("VISUAL", "EDITOR") if environ.get(name, "").strip()), None)
    if said is None:
        found = next(filter(None, map(shutil.which, _FOUND)), None)
        if found is None:
            raise UsageError("there is no editor", hint="Say which one: export EDITOR=nano")
        return [found]
    try:
        command = shlex.split(environ[said])
    except ValueError as error:
        raise UsageError(
            f"${said} cannot be read as a command: {error}", hint=f"export {said}=nano"
        ) from None
    if shutil.which(command[0]) is None:
        raise UsageError(f"${said} is {command[0]}, which is not there", hint=f"export {said}=nano")
    return command


def _run(command: list[str]) -> int:
    try:
        return subprocess.run(command, check=False).returncode
    except OSError as error:
        raise UsageError(f"{command[0]}: {error.strerror or error}", hint="export EDITOR=nano") from None


def _read(file: Path) -> str:
    try:
        return documents.as_text(file.read_bytes(), "what the editor left")
    except OSError as error:
        raise UsageError(f"what the editor left cannot be read: {error.strerror or error}") from None


def _how_it_ended(code: int) -> str:
    return f"ended with code {code}" if code > 0 else f"was ended by {signal.Signals(-code).name}"


@contextmanager
def _lent(app: App[object]) -> Iterator[None]:
    try:
        with app.suspend():
            yield
    except SuspendNotSupported:
        raise UsageError(
            "this terminal cannot be lent to an editor", hint="Write it in a file, and /attach that file."
        ) from None


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Ctrl-C in the editor is the editor's: a handler of ours is undone in the child, an ignored signal would not be."""
    before = signal.signal(signal.SIGINT, lambda number, frame: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
