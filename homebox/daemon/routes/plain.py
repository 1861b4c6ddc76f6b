"""What do most routes read and write besides a body of their own? A number in the query, and an answer that is one JSON
value."""

from __future__ import annotations

import math
from typing import Any

import msgspec
from aiohttp import web

from homebox.errors import InvalidRequest


def json_answer(body: Any) -> web.Response:
    """200 with `body` as JSON."""
    return web.Response(body=msgspec.json.encode(body), content_type="application/json")


def number(request: web.Request, name: str, default: float) -> float:
    """A number of the query, at least 0. Raises InvalidRequest."""
    text = request.query.get(name)
    try:
        value = default if text is None else float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value < 0:
        raise InvalidRequest(f"{name} is {str(text)[:40]!r}; it must be a number of at least 0", param=name)
    return value
