"""Who is asking?

On the Unix socket the kernel says it: the peer's uid, read once per connection. On TCP a key says it, in one of three
places, and a request without one gets nothing but `/health`. One extractor for all routes and all dialects; what a
person may then do is decided where it is done.
"""

from __future__ import annotations

import grp
import ipaddress
import logging
import os
import pwd
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from aiohttp import web

from homebox.daemon.keys import PERSON, Keys
from homebox.errors import BadFile, NotAllowed, Unauthenticated, Unavailable, UsageError

log = logging.getLogger("homebox.daemon")

ADMIN_GROUP = "homebox-admin"
SPEAK_AS = "X-Homebox-As"
PUBLIC = frozenset({"/health"})
_UCRED = struct.Struct("3i")  # pid, uid, gid


@dataclass(frozen=True)
class Person:
    """`local`: on the Unix socket, known by uid. `spoken_by`: the administrator who asks for this person, and who has
    no right to what the person said. `key`: the id of the key that opened the door."""

    name: str
    admin: bool
    local: bool
    key: str | None = None
    spoken_by: str | None = None

    def owns(self, other: Person) -> bool:
        """Whether what `other` made is this one's own: the same person, spoken by the same mouth."""
        return (self.name, self.spoken_by) == (other.name, other.spoken_by)


class Identity:
    """`hosts` are names that TCP clients may use for this box, beside its address and localhost."""

    def __init__(self, keys: Keys, hosts: Sequence[str] = ()) -> None:
        self._keys = keys
        self.allow(hosts)
        self._peers: WeakKeyDictionary[Any, Person] = WeakKeyDictionary()

    def allow(self, hosts: Sequence[str]) -> None:
        """From now on these are the names, instead of those that were."""
        self._hosts = {"localhost", socket.gethostname().lower(), *(host.lower() for host in hosts)}

    def of(self, request: web.Request) -> Person | None:
        """The person, or None for somebody unknown at a public door. Raises Unauthenticated, NotAllowed."""
        connection = request.transport.get_extra_info("socket") if request.transport else None
        if connection is None:
            raise Unauthenticated("the connection is gone")
        if connection.family != socket.AF_UNIX:  # a TCP socket would answer SO_PEERCRED with uid -1
            self._check_host(request)
            return self._by_key(request)
        person = self._peers.get(request.transport)
        if person is None:
            person = self._peers[request.transport] = peer(connection)
        return _speaking_as(request, person)

    def _by_key(self, request: web.Request) -> Person | None:
        public = request.path.removeprefix(f"/k/{request.match_info.get('key', '')}") in PUBLIC
        key = offered_key(request)
        name = self._person(key) if key else None
        if name is None and not public:
            said = "this key opens nothing" if key else "a key is needed"
            raise Unauthenticated(
                said,
                hint="Send it as `Authorization: Bearer KEY`; the owner makes one with `homebox people keys new NAME`.",
            )
        return None if name is None else _speaking_as(request, Person(name, admin=False, local=False))

    def _person(self, key: str) -> str | None:
        try:
            return self._keys.person(key)
        except BadFile as error:
            log.error("no key can be checked: %s", error.message)
            raise Unavailable("the daemon cannot read its keys", hint="Its log says why.") from None

    def _check_host(self, request: web.Request) -> None:
        """A browser page that had its name pointed at this box sends that name: it is not one of ours."""
        host = _host_name(request.headers.get("Host", ""))
        if host in self._hosts:
            return
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            address = None
        own = request.transport.get_extra_info("sockname") if request.transport else None
        if address and own and (address.is_loopback or address == ipaddress.ip_address(own[0].split("%")[0])):
            return
        raise NotAllowed(
            f"this daemon is not called {host[:80]!r}",
            hint="Add the name to allowed_hosts in the configuration.",
        )


def _host_name(header: str) -> str:
    if header.startswith("["):
        return header[1:].partition("]")[0].lower()
    return header.partition(":")[0].lower()


def offered_key(request: web.Request) -> str | None:
    """The key in `Authorization: Bearer`, `x-api-key` or the path prefix `/k/<key>/`, in this order."""
    scheme, _, value = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer" and value.strip():
        return value.strip()
    return request.headers.get("x-api-key") or request.match_info.get("key")


def peer(connection: socket.socket) -> Person:
    """Who is at the other end of a Unix socket."""
    _, uid, _ = _UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        return Person(f"uid-{uid}", admin=uid == os.geteuid(), local=True)
    return Person(entry.pw_name, admin=uid in (0, os.geteuid()) or _administers(entry), local=True)


def _administers(entry: pwd.struct_passwd) -> bool:
    try:
        group = grp.getgrnam(ADMIN_GROUP)
    except KeyError:
        return False
    return entry.pw_name in group.gr_mem or entry.pw_gid == group.gr_gid


def _speaking_as(request: web.Request, person: Person) -> Person:
    """An administrator may speak for somebody else, and then has that person's rights and no more."""
    name = request.headers.get(SPEAK_AS)
    if name is None:
        return person
    if not person.admin:
        raise NotAllowed(f"{person.name} may not speak for somebody else", hint="Only administrators may.")
    if not PERSON.fullmatch(name):
        raise UsageError(f"{name[:80]!r} is not a person's name", param=SPEAK_AS)
    return Person(name, admin=False, local=person.local, key=person.key, spoken_by=person.name)
