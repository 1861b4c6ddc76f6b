"""In whose name are files of a state directory touched?

An administrator saves and restores for the account of the service. What root writes there would belong to root and
could not be opened by the daemon, and a link that the account has put there would lead root astray: so root becomes
that account for as long as it works there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def acting_as_owner_of(folder: Path) -> Iterator[None]:
    """Root acts as the folder's owner inside; everybody else as themselves. For the whole process: one thread only."""
    owner = folder.stat()
    if os.geteuid() != 0 or owner.st_uid == 0:
        yield
        return
    group, groups = os.getegid(), os.getgroups()
    os.setgroups([])
    os.setegid(owner.st_gid)
    os.seteuid(owner.st_uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(group)
        os.setgroups(groups)
