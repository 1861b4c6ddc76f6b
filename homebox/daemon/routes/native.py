"""The protocol of our own clients: ask, turns with their events, cancelling, the monitor.

Events are NDJSON lines from a turn's log; a reader may come at any time, from any event on, and be as slow as it
likes. Everything is scoped to the person who asks: somebody else's turn does not exist. What is said in a chat is in
`chats.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import msgspec
from aiohttp import web

from homebox.daemon.bodies import decode
from homebox.daemon.eventlog import Reader
from homebox.daemon.house import House, house_of, person_of
from homebox.daemon.identity import Person
from homebox.daemon.policy import messages_for
from homebox.daemon.routes.plain import json_answer, number
from homebox.daemon.routes.waiting import until_placed, while_connected
from homebox.daemon.sampling import Wanted
from homebox.daemon.turnbook import Ask, Kept
from homebox.errors import InvalidRequest, NotAllowed, NotFound
from homebox.wire import events
from homebox.wire.requests import AskRequest, Options, TurnCreated

NDJSON = "application/x-ndjson"
SHORTEST_INTERVAL_S = 0.2


async def ask(request: web.Request) -> web.StreamResponse:
    """One question. Leaving cancels it, unless it was detached."""
    house, person = house_of(request), person_of(request)
    body = decode(await request.read(), AskRequest)
    prompt = await house.prompts.of_chat(messages_for(person, body.messages))
    kept = house.book.open_story(engine_ask(person, body.options, prompt))
    if body.detach:
        return json_answer(TurnCreated(turn=kept.turn.id))
    with while_connected(kept.turn):
        await until_placed(kept.turn)
        return await _tell(request, kept.narrator.log.read())


async def turn_events(request: web.Request) -> web.StreamResponse:
    """The events of an own turn after number `after`, to its end."""
    after = int(number(request, "after", 0))
    house, person, turn = house_of(request), person_of(request), request.match_info["turn"]
    try:
        kept: Kept = house.book.story(turn, person)
    except NotFound:
        if person.spoken_by is not None:
            raise
        ended = await house.exchange.ended(person.name, turn, after)
        lines = b"".join(events.encode(event) + b"\n" for event in ended)
        return web.Response(body=lines, headers={"Content-Type": NDJSON, "Cache-Control": "no-cache"})
    return await _tell(request, kept.narrator.log.read(after))


async def cancel_turn(request: web.Request) -> web.Response:
    """End a turn, also one of another dialect; returns when the engine has freed its memory."""
    house, person = house_of(request), person_of(request)
    turn = house.book.turn(request.match_info["turn"])
    if turn.person != person.name and not person.admin:
        raise NotAllowed(f"turn {turn.id} is not yours", hint="Administrators may stop any.")
    by = "by its owner" if turn.person == person.name else f"by {person.name}"
    if turn.person != person.name:
        house.audit.action(person, "turn.cancel", target=turn.id, owner=turn.person)
    await house.book.cancel(turn, f"stopped {by}")
    reasons = sorted({choice.finish or "" for choice in turn.choices})
    return json_answer({"turn": turn.id, "reason": ",".join(reasons)})


async def streams(request: web.Request) -> web.Response:
    """Everything that runs or waits: names and counters."""
    person = person_of(request)
    return json_answer({"streams": [turn.row(person.name) for turn in house_of(request).book.live]})


async def monitor(request: web.Request) -> web.StreamResponse:
    """One snapshot, or one every `interval` seconds until the reader leaves; with `history`, first those of the last
    five minutes."""
    house, person = house_of(request), person_of(request)
    history = request.query.get("history", "0")
    if history not in ("0", "1") or (history == "1" and "interval" not in request.query):
        raise InvalidRequest(
            f"history is {history[:40]!r}; it must be 1 or 0, and goes with interval", param="history"
        )
    if "interval" not in request.query:
        return json_answer(_snapshot(house, person))
    interval = number(request, "interval", 2.0)
    if not SHORTEST_INTERVAL_S <= interval <= 3600:
        raise InvalidRequest(
            f"interval is {interval:g}; it must be {SHORTEST_INTERVAL_S} to 3600 s", param="interval"
        )
    response = await _ndjson(request)
    if history == "1":
        await response.write(house.monitor.history)
    while not house.closing.is_set():
        await response.write(msgspec.json.encode(_snapshot(house, person)) + b"\n")
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(house.closing.wait(), interval)
    return response


async def _tell(request: web.Request, reader: Reader) -> web.StreamResponse:
    response = await _ndjson(request)
    await response.write(reader.take())
    while not reader.finished:
        await response.write(await reader.wait())
    await response.write_eof()
    return response


async def _ndjson(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": NDJSON, "Cache-Control": "no-cache"})
    await response.prepare(request)
    return response


def engine_ask(person: Person, options: Options, prompt: list[int], begun: int = 0) -> Ask:
    """What a native request asks of the engine; the last `begun` tokens of the prompt are the answer's own."""
    names = set(Wanted.__struct_fields__) & set(Options.__struct_fields__)
    return Ask(
        kind="t",
        person=person,
        model=options.model,
        prompts=[prompt],
        wanted=Wanted(**{name: getattr(options, name) for name in names}),
        low_priority=options.priority == "low",
        reasoning=True,
        as_messages=True,
        begun=begun,
    )


def _snapshot(house: House, person: Person) -> Any:
    return house.monitor.snapshot(house.supervisor, house.book, person.name)
