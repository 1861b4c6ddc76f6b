"""Is what lies on the disk there, whole, and closed to others? The library's models, the state directory, its room."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from homebox import config
from homebox.cli.doctor.seen import Finding, Seen, size_of
from homebox.errors import BadFile, HomeboxError, NotAllowed

if TYPE_CHECKING:
    from homebox.library.store import Library

_GIB, _MIB = 2**30, 2**20
MIN_DISK_BYTES = 1 * _GIB  # a small model, its download beside it, and room to breathe
_PRIVATE = ("keys.json", "people.json", "audit.jsonl", "usage.db", "chats")  # of what may be there


def model(seen: Seen) -> Finding:
    """Each model's files by their sizes; with `full` by every byte."""
    from homebox.library.catalogue import how_to_get
    from homebox.library.store import Library

    library, wanted = Library(seen.state), seen.settings.model
    try:
        damaged, names = library.damaged(), [model.name for model in library.models()]
    except NotAllowed:
        if not seen.ready:
            raise
        return Finding(
            "model",
            True,
            f"{seen.health and seen.health.get('model')} is loaded; {seen.state} is closed to this account",
        )
    for name, error in damaged.items():
        return Finding(
            "model", False, f"{name}: {error.message}", error.hint or f"homebox models verify {name}"
        )
    for name in names:
        _compare(library, name, seen.full)
    have = f"the library has {', '.join(names)}" if names else "the library is empty"
    if wanted in names:
        looked = "every byte read" if seen.full else "sizes compared"
        return Finding("model", True, f"{have} ({looked}); the default is {wanted}")
    return Finding("model", False, f"{have}; the default {wanted} is missing", how_to_get(wanted))


def _compare(library: Library, name: str, full: bool) -> None:
    """Raises BadFile for the first file that is not as it was installed."""
    if full:
        from homebox.cli.progress import Stages

        progress = Stages()
        try:
            library.verify(name, progress)
        finally:
            progress.clear()
        return
    for file in library.read(name).files:
        path = library.root / name / file.name
        try:
            size = path.stat().st_size
        except OSError as error:
            raise BadFile(
                f"{path}: {error.strerror}", hint=f"homebox models rm {name}, then install it again."
            ) from None
        if size != file.size:
            raise BadFile(
                f"{path} has {size} bytes; {file.size} were installed",
                hint=f"homebox models rm {name}, then install it again.",
            )


def disk(seen: Seen) -> Finding:
    place = seen.state
    if seen.health is None and not seen.units.for_all:  # a daemon that answers has looked already
        config.check_state_dir(place)
    while not os.access(place, os.F_OK) and place != place.parent:  # also of what it may not look into
        place = place.parent
    free = shutil.disk_usage(place).free
    found = f"{free / _GIB:.1f} GiB free at {place}"
    fix = "" if free >= MIN_DISK_BYTES else "Make room, or point state_dir at a larger disk."
    return Finding("disk", not fix, found, fix)


def state(seen: Seen) -> Finding:
    """Keys, people and chats must be closed to other accounts; chats are shown by their size."""
    place = seen.state
    try:
        status = place.stat()
    except FileNotFoundError:
        return Finding("state", True, f"{place} is made when the daemon starts")
    except PermissionError:
        return Finding("state", True, f"{place} is closed to this account, as it should be")
    if stat.S_IMODE(status.st_mode) & 0o022:
        return Finding("state", False, f"others may write into {place}", f"chmod go-w {place}")
    owner = seen.machine.account_of(status.st_uid)
    for path in _private(place):
        if open_to := stat.S_IMODE(path.stat().st_mode) & 0o077:
            return Finding(
                "state", False, f"others may open {path} (mode ...{open_to:02o})", f"chmod go= {path}"
            )
    return Finding("state", True, f"{place} of {owner}; {_chats(place / 'chats')}")


def _private(place: Path) -> list[Path]:
    if not os.access(place, os.R_OK | os.X_OK):
        return []
    return [place / name for name in _PRIVATE if (place / name).exists()]


def _chats(folder: Path) -> str:
    try:
        size, count = size_of(folder)
    except FileNotFoundError:
        return "no chats yet"
    except OSError as error:
        return f"chats: {(error.strerror or str(error)).lower()}"
    return f"chats: {size / _MIB:.1f} MiB in {count} {'file' if count == 1 else 'files'}"


def settings(seen: Seen) -> Finding:
    """The daemon's files are read before anything else: when this is asked, they could be."""
    read = [str(file) for file in config.files(seen.machine.at(config.SYSTEM_CONFIG)) if file.exists()]
    return Finding("config", True, ", ".join(read) if read else "no file: the defaults hold")


def unreadable(error: HomeboxError) -> Finding:
    """The finding in place of `settings` where they could not be."""
    return Finding("config", False, error.message, error.hint or "homebox config check FILE tries a file.")
