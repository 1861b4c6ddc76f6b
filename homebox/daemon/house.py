"""What does every route need? The parts of one running daemon, put together once by `app.py`."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from aiohttp import web

from homebox.config import Current, Settings
from homebox.daemon.audit import Audit
from homebox.daemon.chats.exchange import Exchange
from homebox.daemon.chats.store import Chats
from homebox.daemon.identity import ADMIN_GROUP, Identity, Person
from homebox.daemon.keys import Keys
from homebox.daemon.limits import Limits
from homebox.daemon.metrics import Metrics
from homebox.daemon.monitor import Monitor
from homebox.daemon.people import Household
from homebox.daemon.power import Power
from homebox.daemon.prompting import Prompts
from homebox.daemon.supervisor import Supervisor
from homebox.daemon.turnbook import TurnBook
from homebox.daemon.usage import Usage
from homebox.daemon.warden import Warden
from homebox.errors import NotAllowed, Unauthenticated


@dataclass(frozen=True)
class House:
    current: Current
    supervisor: Supervisor
    book: TurnBook
    prompts: Prompts
    chats: Chats
    exchange: Exchange
    monitor: Monitor
    identity: Identity
    power: Power
    keys: Keys
    people: Household
    usage: Usage
    limits: Limits
    warden: Warden
    audit: Audit
    metrics: Metrics
    closing: asyncio.Event = field(default_factory=asyncio.Event)  # set when endless answers should end

    @property
    def settings(self) -> Settings:
        """Those that hold now; a reload replaces them."""
        return self.current.settings


HOUSE: web.AppKey[House] = web.AppKey("house", House)
PERSON: web.RequestKey[Person | None] = web.RequestKey("person", object)  # type: ignore[arg-type]


def house_of(request: web.Request) -> House:
    return request.app[HOUSE]


def person_of(request: web.Request) -> Person:
    """The person whom the door has let in. Raises Unauthenticated at a public door."""
    person = request.get(PERSON)
    if person is None:
        raise Unauthenticated("a key is needed")
    return person


def admin_of(request: web.Request) -> Person:
    """The person, who may administer this box. Raises NotAllowed, Unauthenticated."""
    person = person_of(request)
    if not person.admin:
        raise NotAllowed(
            f"{person.name} is no administrator",
            hint=f"Administrators are root, the group {ADMIN_GROUP}, and who has the role admin (with a key: scope admin).",
        )
    return person
