"""Does memory that a long document took go back to the system?

glibc gives each thread that allocates an arena of its own and keeps what is freed there, and raises the size from
which memory comes straight from the system: six long documents tokenised side by side left 113 MiB behind in a daemon
of 81 MiB, for as long as it lived. With one arena and fixed thresholds it is 2 MiB.
"""

from __future__ import annotations

import contextlib
import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # malloc.h
_LARGE_BYTES = 128 * 1024  # glibc's own beginning of "large"


def give_back() -> None:
    """From now on, for this process. Nothing happens where the C library is another one."""
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_ARENA_MAX, 1)
        mallopt(_MMAP_THRESHOLD, _LARGE_BYTES)
        mallopt(_TRIM_THRESHOLD, _LARGE_BYTES)
