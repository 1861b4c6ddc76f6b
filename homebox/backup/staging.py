"""Where do files wait until they are complete? A directory beside the real ones, of one command at a time.

What a command that was killed has left there goes away with the next one.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from homebox.errors import Busy, NoSpace

SPARE_BYTES = 16 * 2**20


@contextmanager
def staging(state: Path, what: str) -> Iterator[Path]:
    """`<state>/.<what>`, empty and for its owner alone, gone afterwards. Raises Busy while another command is in it."""
    folder = state / f".{what}"
    folder.mkdir(mode=0o700, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Busy(f"another {what} is at work in {state}", hint="Wait until it is done.") from None
        _empty(folder)
        try:
            yield folder
        finally:
            _empty(folder)
            folder.rmdir()
    finally:
        os.close(descriptor)


def need_room(folder: Path, size: int, what: str) -> None:
    """Raises NoSpace unless the folder's disk has room for `size` bytes, and a little more."""
    free = shutil.disk_usage(folder).free
    if free < size + SPARE_BYTES:
        raise NoSpace(
            f"{what} may need {(size + SPARE_BYTES) / 1e6:,.0f} MB in {folder}; {free / 1e6:,.0f} MB are free",
            hint="Free some space there, or use another disk.",
            numbers={"needed_bytes": size + SPARE_BYTES, "free_bytes": free},
        )


def _empty(folder: Path) -> None:
    for entry in os.scandir(folder):
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path)
        else:
            Path(entry.path).unlink()
