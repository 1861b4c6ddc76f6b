"""What becomes of a configuration that was changed while the daemon runs?

On a hang-up it is read again, as a whole. One that cannot be leaves everything as it was, and that is said in the log
and in the status. Otherwise what can change live does, at once, and what cannot is named as waiting for a restart: the
settings that hold are always those that are really in use.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import msgspec

from homebox.config import Settings
from homebox.daemon import logs, tls
from homebox.daemon.house import House
from homebox.daemon.pulse import Pulse
from homebox.errors import HomeboxError

if TYPE_CHECKING:
    from homebox.daemon.serve import Server

log = logging.getLogger("homebox.daemon")


def _is_read_each_time(house: House) -> None:
    """Whoever needs it asks `house.settings`."""


def _names(house: House) -> None:
    house.identity.allow(house.settings.allowed_hosts, house.settings.allowed_origins)


def _roles(house: House) -> None:
    house.people.roles = house.settings.roles


# What takes a new value while the daemon runs, and how it gets there. `listen` is the server's own affair, because it
# can fail. Every other key waits for a restart.
LIVE: Mapping[str, Callable[[House], None]] = {
    "queue_per_person": _is_read_each_time,
    "queue_total": _is_read_each_time,
    "max_answer_tokens": _is_read_each_time,
    "max_context": _is_read_each_time,
    "drain_s": _is_read_each_time,
    "idle_unload_s": _is_read_each_time,
    "listen": _is_read_each_time,
    "allowed_hosts": _names,
    "allowed_origins": _names,
    "roles": _roles,
    "log_format": lambda house: logs.configure(house.settings.log_format),
}


# These take new values where TLS stays what it was, spoken or not.
_CERTIFICATE = ("tls_cert", "tls_key")


async def reload_on(
    hung_up: asyncio.Event, server: Server, read: Callable[[], Settings], pulse: Pulse
) -> None:
    """Until cancelled: each time that event is set, read, apply, and say what became of it."""
    while True:
        await hung_up.wait()
        hung_up.clear()
        pulse.reloading()
        try:
            note = await reload(server, read)
            server.house.audit.action(None, "reload", outcome=note)
            log.info("%s", note)
        except HomeboxError as error:
            log.error("configuration refused, the old settings hold: %s", error)
            note = f"configuration refused, the old settings hold: {error.message}"
        except Exception:  # a defect must not leave the service manager waiting for us
            log.exception("the configuration could not be reloaded")
            note = "the configuration could not be reloaded; the log says why"
        pulse.reloaded(f"{note} ({time.strftime('%H:%M:%S')})")


async def reload(server: Server, read: Callable[[], Settings]) -> str:
    """Read and apply; returns what changed in one line. Raises what `read` raises, and UsageError or NotAllowed for an
    address that cannot be opened or a certificate that cannot be used: then nothing has changed."""
    house, new = server.house, read()
    changed = [key for key in new.__struct_fields__ if getattr(new, key) != getattr(house.settings, key)]
    live = {*LIVE, *(_CERTIFICATE if server.tls and new.tls_cert else ())}
    now = [key for key in changed if key in live]
    later = [key for key in changed if key not in live]
    if server.tls and new.tls_cert:  # also where nothing is new: a renewed certificate has its old name
        tls.context(new, into=server.tls)
    if "listen" in now:
        await server.listen_at(new.listen)
    old = {key: getattr(house.settings, key) for key in later}
    house.current.settings = msgspec.structs.replace(new, **old)
    for key in now:
        LIVE.get(key, _is_read_each_time)(house)
    said = "configuration read again, " + (f"new: {', '.join(now)}" if now else "nothing new")
    return said + (f"; needs a restart: {', '.join(later)}" if later else "")
