"""On which sockets does the daemon listen, and who made them?

systemd hands over a socket that it keeps (by name, never by order), else the daemon opens one itself: under a lock, for
owner and group alone, and only after proving that nobody listens where a dead daemon left its socket file. Knows
sockets and addresses, nothing of what is spoken on them.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import socket
from collections.abc import Iterator, MutableMapping
from pathlib import Path

from homebox.errors import UsageError

log = logging.getLogger("homebox.daemon")

BACKLOG = 128
HANDED_NAME = "api"  # FileDescriptorName= in homebox.socket
_FIRST_FD = 3  # SD_LISTEN_FDS_START


def handed(environ: MutableMapping[str, str] = os.environ) -> socket.socket | None:
    """The listening socket that systemd made for us, None where it made none; sd_listen_fds(3). What said so is taken
    out of the environment. Raises UsageError where sockets came and none is ours."""
    pid, count = environ.pop("LISTEN_PID", ""), environ.pop("LISTEN_FDS", "")
    names = environ.pop("LISTEN_FDNAMES", "").split(":")
    if pid != str(os.getpid()) or not count.isdigit() or not int(count):
        return None
    found: socket.socket | None = None
    for place in range(int(count)):
        name = names[place] if place < len(names) else "unknown"
        os.set_inheritable(_FIRST_FD + place, False)
        each = socket.socket(fileno=_FIRST_FD + place)
        if name == HANDED_NAME and found is None and _listens_locally(each):
            found = each
        else:
            log.warning("a socket named %r came from systemd; it is not used", name)
            each.close()
    if found is None:
        raise UsageError(
            f"systemd handed over sockets named {', '.join(names)}; a Unix stream socket {HANDED_NAME!r} is needed",
            hint=f"Write FileDescriptorName={HANDED_NAME} in homebox.socket, or: sudo homebox service install",
        )
    return found


def _listens_locally(each: socket.socket) -> bool:
    return (
        each.family == socket.AF_UNIX
        and each.type == socket.SOCK_STREAM
        and bool(each.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
    )


def bind(path: Path) -> socket.socket:
    """Listen there, for owner and group alone. Raises UsageError if somebody is there, or the place is impossible."""
    try:
        path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        with _alone_in(path.parent):
            _clear(path)
            return _listen(path)
    except OSError as error:
        raise UsageError(
            f"cannot open the socket {path}: {error.strerror or error}",
            hint="Name another one with --socket.",
        ) from None


@contextlib.contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Two daemons that start at once look at the place one after the other: the second finds the first listening."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _listen(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o117)
    try:
        listener.bind(str(path))
        listener.listen(BACKLOG)
    except BaseException:
        listener.close()
        raise
    finally:
        os.umask(before)
    return listener


def _clear(path: Path) -> None:
    """Remove a socket file that a dead daemon left behind; never one that somebody listens on."""
    if not path.exists() and not path.is_symlink():
        return
    if not path.is_socket():
        raise UsageError(f"{path} exists and is not a socket", hint="Name another one with --socket.")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(2.0)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
        except FileNotFoundError:
            return
        except TimeoutError:
            pass  # a listener so busy that it does not accept is a listener
    raise UsageError(
        f"another daemon is listening on {path}",
        hint="homebox status asks it; --socket starts one elsewhere.",
    )


def parse_address(text: str) -> tuple[str, int]:
    """`HOST:PORT`, `[::1]:PORT`. Raises UsageError."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdigit() or int(port) > 65535:
        raise UsageError(
            f"{text!r} is not an address", hint='Write it like "127.0.0.1:11480" or "0.0.0.0:11480".'
        )
    return host, int(port)
