"""To which file shall this conversation be written?

Answers with a place and a form: `.json` is every branch, to be imported again; `.md`, and anything else, is to be
read. What is there already is written over only where a person says so. It writes nothing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from textual import on
from textual.widget import Widget
from textual.widgets import Input, Static

from homebox.errors import UsageError
from homebox.tui.dialogs.box import Box
from homebox.tui.dialogs.confirm import Confirm
from homebox.tui.lines import line

_MAX_NAME_BYTES = 120  # file systems take 255
_HINT = "md to read, json to import again; Enter writes, Esc does not"


@dataclass(frozen=True)
class Target:
    path: Path
    form: Literal["md", "json"]


def safe_name(title: str) -> str:
    """A file's name made of a title: letters, digits and dashes, in any script."""
    name = re.sub(r"[^\w]+", "-", line(title).casefold()).strip("-_")
    return name.encode()[:_MAX_NAME_BYTES].decode(errors="ignore").strip("-_") or "conversation"


def target(words: str, folder: Path) -> Target:
    """The file that these words name, relative to `folder`. Raises UsageError where it cannot be written."""
    if not words.strip():
        raise UsageError("there is no name", hint="Write one, for example trip.md")
    path = folder / Path(words.strip()).expanduser()
    if path.is_dir():
        raise UsageError(f"{path} is a directory", hint="Write the name of a file in it.")
    if not path.parent.is_dir():
        raise UsageError(f"there is no directory {path.parent}", hint="Write one that is there.")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UsageError(f"{path} may not be written", hint="Write a place of your own.")
    return Target(path, "json" if path.suffix.lower() == ".json" else "md")


class PathDialog(Box[Target]):
    def __init__(self, title: str, folder: Path | None = None) -> None:
        super().__init__("write this conversation to a file")
        self._proposed = f"{safe_name(title)}.md"
        self._folder = folder or Path.cwd()
        self._said = Static(_HINT, markup=False, classes="hint")

    def content(self) -> Iterable[Widget]:
        yield Static(f"in {line(str(self._folder))}", markup=False, classes="hint")
        yield Input(self._proposed, compact=True)
        yield self._said

    @on(Input.Submitted)
    def _entered(self, event: Input.Submitted) -> None:
        event.stop()
        try:
            found = target(event.value, self._folder)
        except (UsageError, OSError, RuntimeError, ValueError) as error:  # also ~nobody, and a NUL in a name
            self._said.update(line(str(error)))
            return
        if found.path.exists():
            self._ask_first(found)
        else:
            self.dismiss(found)

    def _ask_first(self, found: Target) -> None:
        def answered(yes: bool | None) -> None:
            if yes:
                self.dismiss(found)

        question = Confirm(f"{line(found.path.name)} is there already.", detail="Write over it?", yes="write")
        self.app.push_screen(question, answered)
