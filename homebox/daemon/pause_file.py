"""Is the box paused, also after the daemon was restarted? `<state>/pause.json`, written whole or not at all.

A file that cannot be read is no pause: a box that serves is better than one that is silent for a reason nobody knows.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

import msgspec

from homebox.errors import NoSpace
from homebox.library.files import sync_folder
from homebox.wire.pause import Pause

log = logging.getLogger("homebox.power")


class PauseFile:
    def __init__(self, state_dir: Path) -> None:
        self.path = state_dir / "pause.json"

    def read(self) -> Pause | None:
        """The pause that holds; None if there is none, or if its time is over."""
        try:
            pause = msgspec.json.decode(self.path.read_bytes(), type=Pause)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError) as error:
            log.error("%s cannot be read, so the box is not paused: %s", self.path, error)
            return None
        return None if pause.left_s() == 0 else pause

    def write(self, pause: Pause) -> None:
        """Raises NoSpace where it cannot be written."""
        partial = self.path.with_suffix(".partial")
        try:
            partial.unlink(missing_ok=True)
            made = os.open(
                partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600
            )  # reasons are personal
            with os.fdopen(made, "wb") as out:
                out.write(msgspec.json.encode(pause) + b"\n")
                out.flush()
                os.fsync(out.fileno())
            partial.replace(self.path)
            sync_folder(self.path.parent)
        except OSError as error:
            raise NoSpace(
                f"the pause cannot be kept in {self.path}: {error.strerror or error}",
                hint="Nothing was paused. Make room on that disk.",
            ) from None

    def remove(self) -> None:
        """A file that stays says so in the log: after a restart the box would be paused again."""
        try:
            self.path.unlink(missing_ok=True)
        except OSError as error:
            log.error("%s cannot be removed: %s", self.path, error)
