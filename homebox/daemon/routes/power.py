"""Pausing and resuming the box. Both answer at once; `/health` says how far it is."""

from __future__ import annotations

import math

from aiohttp import web

from homebox.daemon.bodies import decode
from homebox.daemon.house import House, house_of, person_of
from homebox.daemon.routes.plain import json_answer
from homebox.errors import InvalidRequest
from homebox.wire.requests import PauseRequest, PowerState

LONGEST_S = 366 * 86400.0
MAX_REASON_CHARACTERS = 200


async def pause(request: web.Request) -> web.Response:
    """Free the machine for something else."""
    house, person = house_of(request), person_of(request)
    body = decode(await request.read(), PauseRequest)
    if body.for_s is not None and not (math.isfinite(body.for_s) and 0 < body.for_s <= LONGEST_S):
        raise InvalidRequest(f"for_s is {body.for_s:g}; it must be above 0 and at most a year", param="for_s")
    if len(body.reason) > MAX_REASON_CHARACTERS:
        raise InvalidRequest(
            f"the reason has {len(body.reason)} characters; at most {MAX_REASON_CHARACTERS}", param="reason"
        )
    if house.book.draining:
        house.book.check_open()
    reason = " ".join(body.reason.split())
    house.power.pause(person, now=body.now, for_s=body.for_s, reason=reason)
    house.audit.action(person, "pause", now=body.now, for_s=body.for_s)  # a reason may be personal
    return _state(house, changed=True)


async def resume(request: web.Request) -> web.Response:
    """End a pause; where the engine was unloaded, load it."""
    house, person = house_of(request), person_of(request)
    changed = house.power.resume(person)
    house.audit.action(person, "resume", changed=changed)
    return _state(house, changed=changed)


def _state(house: House, *, changed: bool) -> web.Response:
    supervisor = house.supervisor
    state = PowerState(
        state=str(supervisor.state),
        changed=changed,
        live=len(supervisor.streams),
        drain_s=house.power.drain_s,
        pause=supervisor.paused,
    )
    return json_answer(state)
