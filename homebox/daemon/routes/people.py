"""Who am I, who lives here, which keys are there, who used how much? For oneself; for everybody only administrators.

Names, roles, rules and counters, never anybody's words. What is written is written in a thread, and counts at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from aiohttp import web

from homebox.daemon.bodies import decode
from homebox.daemon.house import House, admin_of, house_of, person_of
from homebox.daemon.identity import account_administers
from homebox.daemon.keys import Key
from homebox.daemon.people import Record
from homebox.daemon.routes.plain import json_answer
from homebox.daemon.streams import Phase
from homebox.errors import HomeboxError, InvalidRequest
from homebox.rules import check_role, convert
from homebox.wire.people import KeyMade, KeyRequest, KeyRow, PersonChange, PersonRow, UsageRow

MOST_DAYS = 3660
T = TypeVar("T")


async def me(request: web.Request) -> web.Response:
    """Oneself: role, the rules that hold, and what is used of them."""
    house, person = house_of(request), person_of(request)
    row = await _counted(house, _row(house, person.name, _record(house, person.name)))
    row = msgspec.structs.replace(row, role=person.role, rules=person.rules, admin=person.admin)
    said = {"spoken_by": person.spoken_by, "key": person.key, "app": person.app}
    return json_answer(msgspec.to_builtins(row) | {name: value for name, value in said.items() if value})


async def everybody(request: web.Request) -> web.Response:
    """All who were entered, have a key, or use the box; somebody who is no administrator sees themselves."""
    house, person = house_of(request), person_of(request)
    if not person.admin:
        return json_answer({"people": [_row(house, person.name, _record(house, person.name))]})
    names = {*house.people.records(), *(key.person for key in house.keys.all())}
    names |= {*house.usage.people_today(), *(turn.person for turn in house.book.live)}
    rows = [_row(house, name, _record(house, name)) for name in sorted(names)]
    return json_answer({"people": [await _counted(house, _with_rank(row)) for row in rows]})


async def set_person(request: web.Request) -> web.Response:
    house, admin = house_of(request), admin_of(request)
    name = request.match_info["person"]
    body = decode(await request.read(), PersonChange)
    role = check_role(body.role) if body.role is not None else None
    rules = convert({key: value for key, value in body.rules.items() if value is not None})
    otherwise = house.keys.usual_role(name)

    def write() -> Record:
        return house.people.set(name, role=role, rules=rules, clear=body.clear, otherwise=otherwise)

    record = await _act(
        write, lambda record: house.audit.action(admin, "person.set", target=name, role=record.role)
    )
    return json_answer(_row(house, name, record))


async def remove_person(request: web.Request) -> web.Response:
    """Forget role and rules; keys and chats stay."""
    house, admin = house_of(request), admin_of(request)
    name = request.match_info["person"]
    await _act(
        lambda: house.people.remove(name), lambda _: house.audit.action(admin, "person.remove", target=name)
    )
    return json_answer(_row(house, name, None))


async def keys(request: web.Request) -> web.Response:
    """The keys there are, without their secrets: all for an administrator, else one's own."""
    house, person = house_of(request), person_of(request)
    found = [key for key in house.keys.all() if person.admin or key.person == person.name]
    return json_answer({"keys": [_key_row(key) for key in found]})


async def new_key(request: web.Request) -> web.Response:
    house, admin = house_of(request), admin_of(request)
    body = decode(await request.read(), KeyRequest)

    def write() -> str:
        return house.keys.new(
            body.person,
            scopes=body.scopes,
            expires=body.expires,
            background=body.background,
            for_people=body.for_people,
        )

    def record(key: str) -> None:
        house.audit.action(admin, "key.new", target=key.split("_")[1], owner=body.person, scopes=body.scopes)

    key = await _act(write, record)
    return json_answer(KeyMade(id=key.split("_")[1], key=key))


async def revoke_key(request: web.Request) -> web.Response:
    """Take a key's rights away, and end what is under way with it."""
    house, admin = house_of(request), admin_of(request)
    key = await _act(
        lambda: house.keys.revoke(request.match_info["id"]),
        lambda key: house.audit.action(admin, "key.revoke", target=key.id, owner=key.person),
    )
    house.warden.look()
    return json_answer(_key_row(key))


async def usage(request: web.Request) -> web.Response:
    """What was used in the last `days` days; of everybody for an administrator who asks with `all=1`."""
    house, person = house_of(request), person_of(request)
    text = request.query.get("days", "7")
    if not (text.isascii() and text.isdigit() and len(text) <= 4 and 1 <= int(text) <= MOST_DAYS):
        raise InvalidRequest(f"days is {text[:40]!r}; it must be from 1 to {MOST_DAYS}", param="days")
    every = request.query.get("all") in ("1", "true")
    if every:
        admin_of(request)
    rows = await house.usage.read(int(text), None if every else person.name)
    return json_answer(
        {"usage": [UsageRow(day=day, person=name, **_numbers(counts)) for day, name, counts in rows]}
    )


async def _act(what: Callable[[], T], record: Callable[[T], None]) -> T:
    """Do it in a thread and record it, both or neither, also where whoever asked has left meanwhile."""

    async def whole() -> T:
        done = await asyncio.to_thread(what)
        record(done)
        return done

    return await asyncio.shield(asyncio.create_task(whole()))


def _numbers(counts: Any) -> dict[str, int]:
    return {name: int(value) for name, value in vars(counts).items()}


def _record(house: House, name: str) -> Record | None:
    return house.people.records().get(name)


def _row(house: House, name: str, record: Record | None) -> PersonRow:
    streams = [stream for stream in house.supervisor.streams if stream.submit.person == name]
    waiting = sum(stream.phase is Phase.WAITING for stream in streams)
    member = house.people.member(name, otherwise=house.keys.usual_role(name))
    return PersonRow(
        name=name,
        role=member.role,
        entered=record is not None,
        rules=member.rules,
        own=(record or Record()).rules,
        running=len(streams) - waiting,
        waiting=waiting,
        tokens_minute=house.limits.minute_used(name),
        tokens_today=house.usage.today(name),
        keys=sum(key.person == name for key in house.keys.all()),
    )


def _with_rank(row: PersonRow) -> PersonRow:
    """The role that `whoami` would say: an account may administer without having been entered."""
    return msgspec.structs.replace(row, role="admin") if account_administers(row.name) else row


async def _counted(house: House, row: PersonRow) -> PersonRow:
    """How many chats and messages there are of this person: figures, and nothing of what is in them."""
    try:
        counts = await house.chats.counts(row.name)
    except HomeboxError:
        return row
    return msgspec.structs.replace(row, chats=counts.chats, messages=counts.messages)


def _key_row(key: Key) -> KeyRow:
    return KeyRow(**{name: getattr(key, name) for name in KeyRow.__struct_fields__})
