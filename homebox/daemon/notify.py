"""What does systemd hear from the daemon? sd_notify(3) in the standard library: lines of NAME=VALUE in a datagram.

Without systemd nothing is sent and nothing fails. It knows the protocol and nothing of the house; `pulse` says when what
is sent.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import MutableMapping

_MOST_CHARACTERS = 300  # of a status: it is one line of `systemctl status`


class Notifier:
    """The service manager's ear. `watchdog_s` is how often it must hear from us, None where it does not watch."""

    def __init__(self, address: str = "", watchdog_s: float | None = None) -> None:
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self.watchdog_s = watchdog_s

    @classmethod
    def from_environment(cls, environ: MutableMapping[str, str] = os.environ) -> Notifier:
        """As systemd told us; it is taken out of the environment, because it is not for our children."""
        address = environ.pop("NOTIFY_SOCKET", "")
        microseconds = environ.pop("WATCHDOG_USEC", "")
        pid = environ.pop("WATCHDOG_PID", "") or str(os.getpid())
        watched = pid == str(os.getpid()) and microseconds.isdigit() and int(microseconds) > 0
        return cls(address, int(microseconds) / 1e6 if watched else None)

    def ready(self, status: str = "") -> None:
        self._send("READY=1", *_status(status))

    def reloading(self) -> None:
        """`ready` ends it."""
        self._send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self, within_s: float) -> None:
        """Going down, which may take so long: longer than the unit's TimeoutStopSec, too, if the owner wants it so."""
        self._send("STOPPING=1", f"EXTEND_TIMEOUT_USEC={int(within_s * 1e6)}")

    def alive(self) -> None:
        self._send("WATCHDOG=1")

    def status(self, text: str) -> None:
        self._send(*_status(text))

    def _send(self, *lines: str) -> None:
        if not self._address or not lines:
            return
        # A manager that is gone or restarts is no reason to stop serving.
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
            out.setblocking(False)
            out.sendto("\n".join(lines).encode("utf-8", "replace"), self._address)


def _status(text: str) -> list[str]:
    one_line = " ".join(text.split())[:_MOST_CHARACTERS]
    return [f"STATUS={one_line}"] if one_line else []
