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
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

from aiohttp import web

from homebox.daemon.behind import name_behind, named_in
from homebox.daemon.keys import PERSON, Key, Keys, Scope
from homebox.daemon.origins import Origins
from homebox.daemon.people import Household
from homebox.errors import BadFile, NotAllowed, Unauthenticated, Unavailable, UsageError
from homebox.rules import Role, Rules

log = logging.getLogger("homebox.daemon")

ADMIN_GROUP = "homebox-admin"
SPEAK_AS = "X-Homebox-As"
PUBLIC = frozenset({"/health"})
NO_RULES = Rules()
_UCRED = struct.Struct("3i")  # pid, uid, gid
_CHAT: frozenset[Scope] = frozenset({"chat"})


# What a key must be for, by route; every other route needs a key for `chat`. `admin` opens all of them, and what only
# administrators may do asks for one besides.
_OPENED_BY: Mapping[str, frozenset[Scope]] = {
    "/v1/models": frozenset({"chat", "monitor"}),
    "/v1/models/{model}": frozenset({"chat", "monitor"}),
    "/homebox/monitor": frozenset({"monitor"}),
    "/homebox/streams": frozenset({"monitor"}),
    "/metrics": frozenset({"monitor"}),
}


@dataclass(frozen=True)
class Person:
    """`local`: on the Unix socket, known by uid. `spoken_by`: the administrator who asks for this person, and who has
    no right to what the person said. `key`: the id of the key that opened the door. `background`: that key's requests
    are of the low priority class. `app`: the application that asks for this person, with a key that may; the same as
    `name` where it named nobody. `rules`: those that hold for this person."""

    name: str
    admin: bool
    local: bool
    key: str | None = None
    spoken_by: str | None = None
    role: Role = "adult"
    rules: Rules = NO_RULES
    background: bool = False
    app: str | None = None

    def owns(self, other: Person) -> bool:
        """Whether what `other` made is this one's own: the same person, spoken by the same mouth."""
        return (self.name, self.spoken_by) == (other.name, other.spoken_by)


class Identity:
    """`hosts` are names that TCP clients may use for this box, beside its address and localhost."""

    def __init__(
        self,
        keys: Keys,
        people: Household,
        hosts: Sequence[str] = (),
        origins: Sequence[str] = (),
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._keys, self._people, self._clock = keys, people, clock
        self.allow(hosts, origins)
        self._peers: WeakKeyDictionary[Any, Person] = WeakKeyDictionary()

    def allow(self, hosts: Sequence[str], origins: Sequence[str]) -> None:
        """From now on these are the names and the pages from elsewhere, instead of those that were."""
        self.origins = Origins(origins)
        self._hosts = {"localhost", socket.gethostname().lower(), *(host.lower() for host in hosts)}

    def of(self, request: web.Request) -> Person | None:
        """The person, or None for somebody unknown at a public door. Raises Unauthenticated, NotAllowed."""
        connection = request.transport.get_extra_info("socket") if request.transport else None
        if connection is None:
            raise Unauthenticated("the connection is gone")
        if connection.family != socket.AF_UNIX:  # a TCP socket would answer SO_PEERCRED with uid -1
            self._check_host(request)
            self.origins.check(request)
            return self._by_key(request)
        person = self._peers.get(request.transport)
        if person is None:
            person = self._peers[request.transport] = peer(connection)
        return self._speaking_as(request, self._member(person))

    def behind(self, person: Person, user: str | None) -> Person:
        """The person behind an application, where the body names one and the headers did not."""
        if person.app is None or person.name != person.app or not user or not user.strip():
            return person
        return self._member(replace(person, name=name_behind(user.strip(), person.app)))

    def _by_key(self, request: web.Request) -> Person | None:
        pattern = route_pattern(request)
        offered = offered_key(request)
        key = self._key(offered) if offered else None
        now = self._clock()
        if key is None or key.expired(now):
            if pattern in PUBLIC:
                return None
            said = (
                "this key has expired" if key else "this key opens nothing" if offered else "a key is needed"
            )
            raise Unauthenticated(
                said,
                hint="Send it as `Authorization: Bearer KEY`; the owner makes one with `homebox people keys new NAME`.",
            )
        if pattern not in PUBLIC:
            _check_scope(key, request.method, pattern)
        self._keys.used(key, now)
        app = key.person if key.for_people else None
        user = named_in(request.headers) if app else None
        name = name_behind(user, app) if app and user else key.person
        person = Person(
            name,
            admin="admin" in key.scopes,
            local=False,
            key=key.id,
            background=key.background,
            app=app,
        )
        return self._speaking_as(request, self._member(person))

    def _key(self, offered: str) -> Key | None:
        try:
            return self._keys.find(offered)
        except BadFile as error:
            log.error("no key can be checked: %s", error.message)
            raise Unavailable("the daemon cannot read its keys", hint="Its log says why.") from None

    def _member(self, person: Person) -> Person:
        """The same with role and rules. On the socket the account's own rights count, or the role; with a key the
        role, if the key may be used for that. Nobody behind an application administers."""
        try:
            member = self._people.member(person.name, otherwise=self._keys.usual_role(person.name))
        except BadFile as error:
            log.error("nobody's role can be known: %s", error.message)
            if person.local and person.admin:
                return replace(person, role="admin")  # somebody must be able to mend it
            raise Unavailable("the daemon cannot read who is who", hint="Its log says why.") from None
        by_role = member.role == "admin"
        admin = (person.admin or by_role) if person.local else (person.admin and by_role)
        if person.app is not None and person.name != person.app:
            admin = False
        return replace(person, admin=admin, role="admin" if admin else member.role, rules=member.rules)

    def _speaking_as(self, request: web.Request, person: Person) -> Person:
        """An administrator may speak for somebody else, and then has that person's rights and no more."""
        name = request.headers.get(SPEAK_AS)
        if name is None:
            return person
        if not person.admin:
            raise NotAllowed(
                f"{person.name} may not speak for somebody else", hint="Only administrators may."
            )
        if not PERSON.fullmatch(name):
            raise UsageError(f"{name[:80]!r} is not a person's name", param=SPEAK_AS)
        other = self._member(replace(person, name=name, admin=False, local=False, spoken_by=person.name))
        return replace(other, admin=False, local=person.local)

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


def route_pattern(request: web.Request) -> str | None:
    """The route's pattern, the same with a key in the path and without; None where there is no such route."""
    resource = request.match_info.route.resource
    return resource.canonical.removeprefix("/k/{key}") if resource else None


def _check_scope(key: Key, method: str, pattern: str | None) -> None:
    """Deny by default. Raises NotAllowed."""
    needed = _OPENED_BY.get(pattern or "", _CHAT) if method == "GET" else _CHAT
    if needed.isdisjoint(key.scopes) and "admin" not in key.scopes:
        raise NotAllowed(
            f"this key is for {' and '.join(key.scopes)} only; this needs one for {' or '.join(sorted(needed))}",
            hint="The owner makes one with `homebox people keys new NAME --scope SCOPE`.",
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


def account_administers(name: str) -> bool:
    """Whether this name is an account that administers by being what it is, whatever role it was given."""
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        return False
    return entry.pw_uid in (0, os.geteuid()) or _administers(entry)


def _administers(entry: pwd.struct_passwd) -> bool:
    try:
        group = grp.getgrnam(ADMIN_GROUP)
    except KeyError:
        return False
    return entry.pw_name in group.gr_mem or entry.pw_gid == group.gr_gid
