"""Does anybody work on this state directory at this moment?

A daemon holds `<state>/daemon.lock` for as long as it lives, and so does a restore: two daemons would answer from the
same chats, and files that a daemon has open must not be exchanged under it. The kernel lets go of it when its holder
dies, however it dies. It imports nothing of the daemon, so that commands may ask, too.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import weakref
from pathlib import Path

from homebox.config import check_state_dir
from homebox.errors import Busy, HomeboxError, NotAllowed, UsageError
from homebox.owned import open_owned

NAME = "daemon.lock"


class Hold:
    """The state directory is ours until `release`, or until nobody knows this object any more."""

    def __init__(self, descriptor: int) -> None:
        self.release = weakref.finalize(self, os.close, descriptor)


def hold(state: Path) -> Hold:
    """Raises Busy where somebody else has it, NotAllowed or UsageError where it cannot be written."""
    check_state_dir(state)
    path = state / NAME
    try:
        state.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = open_owned(path, os.O_RDWR)
    except OSError as error:
        kind: type[HomeboxError] = NotAllowed if isinstance(error, PermissionError) else UsageError
        raise kind(f"cannot open {path}: {error.strerror or error}") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        who = os.read(descriptor, 32).decode(errors="replace").strip() or "unknown"
        os.close(descriptor)
        raise Busy(
            f"process {who} works on the state directory {state}: a daemon, or a restore",
            hint="homebox status asks the daemon; stop it first, or name another directory.",
        ) from None
    # On a full disk the lock holds all the same, and nobody learns whose it is.
    with contextlib.suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode())
    return Hold(descriptor)
