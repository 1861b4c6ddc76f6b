"""What do those who run the box want to know? Counters for Prometheus, the record of who did what, the settings that
hold. From memory or from the daemon's own files; names and counts, nobody's words."""

from __future__ import annotations

import asyncio
import time

from aiohttp import web

from homebox.daemon.house import admin_of, house_of
from homebox.daemon.routes.plain import json_answer, number
from homebox.errors import InvalidRequest, Unavailable

MOST_LINES = 10_000


async def metrics(request: web.Request) -> web.Response:
    """`GET /metrics`, in the form that the scraper accepts."""
    body, content_type = house_of(request).metrics.text(request.headers.get("Accept", ""))
    return web.Response(body=body, headers={"Content-Type": content_type})


async def audit(request: web.Request) -> web.Response:
    """`GET /homebox/audit?person=&since=&limit=`: the newest lines, oldest first. For administrators."""
    admin_of(request)
    house = house_of(request)
    since, limit = number(request, "since", 0.0), number(request, "limit", 50)
    if not 1 <= limit <= MOST_LINES:
        raise InvalidRequest(f"limit is {limit:g}; it must be 1 to {MOST_LINES}", param="limit")
    since = min(since, time.time())  # nothing is later
    person = request.query.get("person")
    try:
        lines = await asyncio.to_thread(house.audit.read, person=person, since=since, limit=int(limit))
    except OSError as error:
        raise Unavailable(f"the audit file cannot be read: {error.strerror or error}") from None
    return json_answer({"lines": lines})


async def config(request: web.Request) -> web.Response:
    """`GET /homebox/config`: the settings that hold in this daemon. For administrators."""
    admin_of(request)
    return json_answer({"settings": house_of(request).settings})
