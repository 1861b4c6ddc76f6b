"""What does every route need? The parts of one running daemon, put together once by `app.py`."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from aiohttp import web

from homebox.config import Settings
from homebox.daemon.chats.exchange import Exchange
from homebox.daemon.chats.store import Chats
from homebox.daemon.identity import Identity, Person
from homebox.daemon.monitor import Monitor
from homebox.daemon.supervisor import Supervisor
from homebox.daemon.turnbook import TurnBook
from homebox.errors import Unauthenticated


@dataclass(frozen=True)
class House:
    settings: Settings
    supervisor: Supervisor
    book: TurnBook
    chats: Chats
    exchange: Exchange
    monitor: Monitor
    identity: Identity
    closing: asyncio.Event = field(default_factory=asyncio.Event)  # set when endless answers should end


HOUSE: web.AppKey[House] = web.AppKey("house", House)
PERSON: web.RequestKey[Person | None] = web.RequestKey("person", object)  # type: ignore[arg-type]
MAX_BODY_BYTES = 8 * 1024 * 1024  # far above any prompt that fits a context


def house_of(request: web.Request) -> House:
    return request.app[HOUSE]


def person_of(request: web.Request) -> Person:
    """The person whom the door has let in. Raises Unauthenticated at a public door."""
    person = request.get(PERSON)
    if person is None:
        raise Unauthenticated("a key is needed")
    return person
