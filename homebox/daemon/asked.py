"""Which request is this, wherever one looks at it?

The door gives each HTTP request an id (the client's own where it has the form of one), says it in `X-Request-Id` of
the answer, and keeps it in a context variable, so that log lines and audit lines written on its way name it. A turn
remembers by which request it was begun. Knows the pattern of a route, never its path: that may hold a key or a title.
"""

from __future__ import annotations

import re
import secrets
import time
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aiohttp import web

    from homebox.daemon.identity import Person

HEADER = "X-Request-Id"
_FORM = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_current: ContextVar[Asked | None] = ContextVar("asked", default=None)


@dataclass(eq=False)
class Asked:
    """One HTTP request. `recorded`: its audit line is written already, or is to be by the turn that it began."""

    id: str
    route: str
    person: Person | None = None
    recorded: bool = False
    began_at: float = field(default_factory=time.monotonic)

    @property
    def ms(self) -> float:
        return (time.monotonic() - self.began_at) * 1000


def begin(request: web.Request) -> Asked:
    """Whatever is written from here on in this task is about this request."""
    said = request.headers.get(HEADER, "")
    asked = Asked(said if _FORM.fullmatch(said) else f"req-{secrets.token_hex(8)}", route(request))
    _current.set(asked)
    return asked


def current() -> Asked | None:
    """The request on whose way this is called; None where there is none, as in the engine's own task."""
    return _current.get()


def current_id() -> str | None:
    return asked.id if (asked := _current.get()) else None


def route(request: web.Request) -> str:
    """`POST /v1/chat/completions`: the method and the route's pattern."""
    resource = request.match_info.route.resource
    return f"{request.method[:16]} {resource.canonical if resource else 'unknown'}"


async def say_id(request: web.Request, response: web.StreamResponse) -> None:
    """Before the headers of any answer go out, also of one that streams."""
    if (name := current_id()) is not None:
        response.headers[HEADER] = name
