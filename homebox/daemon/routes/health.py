"""Is the box well? `GET /health`, from memory, for everybody; without a key on TCP it says the state and nothing more."""

from __future__ import annotations

import math
from typing import Any

import msgspec
from aiohttp import web

import homebox
from homebox.daemon.engine_state import CLOSED
from homebox.daemon.house import PERSON, House, house_of
from homebox.daemon.monitor import detail
from homebox.daemon.supervisor import EngineState
from homebox.wire.frames import Ready

LOST = CLOSED | {EngineState.RESTARTING, EngineState.NO_DEVICE}


async def health(request: web.Request) -> web.Response:
    """200 while it starts, loads, serves or sleeps until the next request; 503 when the engine is lost, the box is
    paused or the daemon goes down."""
    house = house_of(request)
    person = request.get(PERSON)
    draining = house.book.draining
    body: dict[str, Any] = {"state": "draining" if draining else str(house.supervisor.state)}
    if person is not None:
        body |= _known(house)
    if person is not None and person.local:
        body |= {"engine_pid": house.supervisor.pid, "restarts": house.supervisor.restarts}
    lost = draining or house.supervisor.state in LOST
    headers = {"Retry-After": _retry_after(house)} if lost else {}
    return web.Response(
        status=503 if lost else 200,
        body=msgspec.json.encode(body),
        content_type="application/json",
        headers=headers,
    )


def _retry_after(house: House) -> str:
    """Seconds: what is left of a pause, else a moment."""
    if house.book.draining or house.supervisor.paused is None:
        return "5"
    return str(max(1, math.ceil(house.supervisor.unavailable().retry_after_s or 0)))


def _known(house: House) -> dict[str, Any]:
    loading, ready = house.supervisor.loading, house.supervisor.ready
    progress = {"stage": loading.stage, "done": loading.done, "total": loading.total} if loading else None
    snapshot = house.monitor.snapshot(house.supervisor, house.book, "")
    return {
        "detail": detail(house.supervisor),
        "model": house.book.manifest.name,
        "progress": progress,
        "pause": house.supervisor.paused,
        "device": ready.device if ready else None,
        "quantisation": house.book.manifest.quantisation,
        "engine": _engine(ready) if ready else None,
        "running": snapshot.running,
        "waiting": snapshot.waiting,
        "uptime_s": round(house.monitor.uptime_s, 1),
        "version": homebox.__version__,
    }


def _engine(ready: Ready) -> dict[str, Any]:
    """What the engine says of itself: how it computes, in how much memory."""
    said: dict[str, Any] = msgspec.to_builtins(ready)
    return {name: value for name, value in said.items() if name not in ("type", "pid")}
