"""How does root open a file in a directory that belongs to somebody else?

`sudo homebox ...` works on the state directory of the service's account. What root makes there is that account's, so
that the daemon can open it; what is there already is only taken if it is that account's own plain file with no other
name. A link that the account has put there would otherwise have root give a file of the system away, or empty it.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


def open_owned(path: Path, flags: int) -> int:
    """A descriptor of the file, made for its owner alone (the directory's owner, where we are root) if it is not there.
    Raises OSError, also for a link and, as root, for what is not the owner's."""
    safe = flags | os.O_NOFOLLOW | os.O_CLOEXEC
    if os.geteuid() != 0:
        return os.open(path, safe | os.O_CREAT, 0o600)
    owner = path.parent.stat()
    try:
        descriptor = os.open(path, safe | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        if flags & os.O_EXCL:
            raise
    else:
        os.fchown(descriptor, owner.st_uid, owner.st_gid)
        return descriptor
    descriptor = os.open(path, safe | os.O_NONBLOCK)  # never wait for the other end of a pipe
    found = os.fstat(descriptor)
    if stat.S_ISREG(found.st_mode) and found.st_nlink == 1 and found.st_uid in (owner.st_uid, 0):
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EPERM, "it is not a plain file of the directory's owner; remove it", str(path))
