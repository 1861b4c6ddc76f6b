"""What if this process is killed while the terminal is drawn on?

A process that is killed with SIGKILL cannot put the terminal back: no echo, no cursor, reports of the mouse as garbage.
So a small shell waits beside it, and when the pipe between them breaks without a word, it restores the settings and
writes what leaves the screen. It costs a sleeping process and no time.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

# Leave the alternate screen, show the cursor; no mouse, focus, paste reports; the keyboard and colours as usual.
RESET = (
    r"\033[?1049l\033[?25h\033[?1000l\033[?1002l\033[?1003l\033[?1006l\033[?1015l\033[?1004l\033[?2004l\033[?2048l"
    r"\033[<u\033[0m"
)
# It outlives every signal that reaches the terminal's processes. The terminal is opened by its name: /dev/tty is none any
# more when the leader of its session has gone.
_WATCH = (
    "trap '' INT QUIT TERM HUP TSTP TTOU TTIN; read -r word; "
    '[ "$word" = well ] || { stty "$0" <"$1"; printf "$2" >"$1"; } 2>/dev/null'
)


@contextlib.contextmanager
def rescued() -> Iterator[None]:
    """While this holds, the terminal is put back even when this process is killed."""
    saved = _settings()
    if saved is None:
        yield
        return
    watcher = subprocess.Popen(
        ["/bin/sh", "-c", _WATCH, saved, os.ttyname(0), RESET],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        close_fds=True,
    )
    try:
        yield
    finally:
        assert watcher.stdin is not None
        with contextlib.suppress(OSError):
            watcher.stdin.write(b"well\n")
            watcher.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            watcher.wait(1.0)


def _settings() -> str | None:
    """The terminal's settings as `stty` takes them back; None where there is no terminal or no stty."""
    if os.name != "posix" or not sys.stdin.isatty():
        return None
    try:
        done = subprocess.run(
            ["stty", "-g"], stdin=sys.stdin, capture_output=True, text=True, timeout=2, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
