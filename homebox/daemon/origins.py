"""May this web page speak to the box?

A browser adds `Origin` to what a page sends elsewhere. A page of another site is turned away on TCP, whatever key it
has, unless the owner has named it in `allowed_origins`; only then do the answers carry the headers that let the page
read them. Software that is no browser sends no Origin and is not concerned.
"""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlsplit

from aiohttp import web

from homebox.errors import NotAllowed

_HEADERS = "authorization, content-type, x-api-key"
_METHODS = "GET, POST, PUT, PATCH, DELETE"
_PREFLIGHT_S = 600


class Origins:
    """`allowed`: origins as a browser writes them, like `https://notes.home`."""

    def __init__(self, allowed: Sequence[str] = ()) -> None:
        self._allowed = {origin.rstrip("/").lower() for origin in allowed}

    def check(self, request: web.Request) -> None:
        """Raises NotAllowed for a page of another site. `Host` is one of ours by now."""
        origin = request.headers.get("Origin")
        if origin is None or self._allows(origin) or _same_site(origin, request.host):
            return
        raise NotAllowed(
            f"a page of {origin[:80]!r} may not speak to this box",
            hint="The owner may add it to allowed_origins in the configuration.",
        )

    def preflight(self, request: web.Request) -> web.Response | None:
        """The answer to a browser's question whether it may ask; None for anything else."""
        asks = request.method == "OPTIONS" and "Access-Control-Request-Method" in request.headers
        if not asks or not self._allows(request.headers.get("Origin", "")):
            return None
        return web.Response(
            status=204,
            headers={
                "Access-Control-Allow-Methods": _METHODS,
                "Access-Control-Allow-Headers": _HEADERS,
                "Access-Control-Max-Age": str(_PREFLIGHT_S),
            },
        )

    def mark(self, request: web.Request, response: web.StreamResponse) -> None:
        """Let the page that was allowed read the answer."""
        origin = request.headers.get("Origin")
        if origin is not None and self._allows(origin):
            response.headers["Access-Control-Allow-Origin"] = origin
            response.headers["Vary"] = "Origin"

    def _allows(self, origin: str) -> bool:
        return origin.lower() in self._allowed


def _same_site(origin: str, host: str) -> bool:
    try:
        return urlsplit(origin).netloc.lower() == host.lower() != ""
    except ValueError:
        return False
