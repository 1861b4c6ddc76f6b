"""What does every request pass on its way in, and every error on its way out?

One middleware: which request is it and whose, is the body JSON, and, whatever happens behind it, an answer in the
shape of the dialect that was spoken, and a line for the record. An unexpected exception becomes a 500 without its
words; where it came from is in the daemon's log.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from aiohttp import web

from homebox.daemon import asked
from homebox.daemon.asked import Asked
from homebox.daemon.house import PERSON, house_of
from homebox.daemon.usage import Counts
from homebox.errors import (
    ContextLengthExceeded,
    EngineFailed,
    HomeboxError,
    InvalidRequest,
    NotFound,
    WrongMediaType,
)
from homebox.wire.requests import MAX_BODY_BYTES

log = logging.getLogger("homebox.daemon")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

WORTH_WAITING_S = 60.0  # clients that try again by themselves do it in seconds

_OPENAI_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}


@web.middleware
async def door(request: web.Request, handler: Handler) -> web.StreamResponse:
    this = asked.begin(request)
    house = house_of(request)
    if (answer := house.identity.origins.preflight(request)) is not None:
        return answer
    try:
        this.person = request[PERSON] = house.identity.of(request)
        if request.method in ("POST", "PUT", "PATCH"):
            _check_media_type(request)
        with house.warden.watched(this.person.key if this.person else None):
            response = await handler(request)
    except HomeboxError as error:
        return refuse(request, error, this)
    except web.HTTPException as error:
        return refuse(request, _routing(request, error), this, status=error.status)
    except web.RequestPayloadError:
        broken = InvalidRequest(
            "the body cannot be read: it is not in the encoding that the headers name",
            hint="Send it as plain JSON.",
            param="content-encoding",
        )
        answer = refuse(request, broken, this)
        answer.force_close()  # where its body ends and the next request begins, nobody can say
        return answer
    except ConnectionError:  # the client left while it was written to; nobody reads what we return
        return web.Response(status=499)
    except Exception:
        log.exception("unexpected error in %s", this.route)
        return refuse(request, HomeboxError("internal error", hint="The daemon's log has the details."), this)
    house.audit.done(this, response.status)
    return response


async def mark(request: web.Request, response: web.StreamResponse) -> None:
    """What every answer says besides: to a page that was allowed in, and of the limits of whoever asked for tokens."""
    house, person = house_of(request), request.get(PERSON)
    house.identity.origins.mark(request, response)
    if person is not None and request.method == "POST" and speaks_openai(request):
        response.headers.update(house.limits.headers(person, house.supervisor.streams))


def refuse(request: web.Request, error: HomeboxError, this: Asked, status: int | None = None) -> web.Response:
    """The error as this request's dialect writes it; it is logged, audited and counted."""
    status = status or error.http_status
    person, house = this.person, house_of(request)
    if person and status in (403, 429):
        house.usage.add(person.name, person.key, Counts(refused=1))
    headers = {}
    if error.retry_after_s is not None:
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after_s)))
    late = (error.retry_after_s or 0) > WORTH_WAITING_S
    if (status < 500 and (status != 429 or late)) or isinstance(error, EngineFailed):
        headers["x-should-retry"] = "false"  # it would end the same way, and clients would try three times
    body = openai_body(error, status) if speaks_openai(request) else {"error": error.as_dict()}
    fields = {
        "route": this.route,
        "status": status,
        "code": error.code,
        "person": person.name if person else None,
    }
    log.info("refused", extra={"fields": fields})
    house.audit.refused(this, status, error.code)
    house.metrics.refused(error.code)
    return web.Response(
        status=status, body=msgspec.json.encode(body), content_type="application/json", headers=headers
    )


def openai_body(error: HomeboxError, status: int | None = None) -> dict[str, Any]:
    """`{"error": {...}}` with exactly the fields that OpenAI's clients know."""
    kind = _OPENAI_TYPES.get(status or error.http_status, "invalid_request_error")
    return {
        "error": {
            "message": f"{error.message.rstrip('.')}. {error.hint}" if error.hint else error.message,
            "type": "server_error" if (status or error.http_status) >= 500 else kind,
            "param": error.param,
            "code": error.code,
        }
    }


def speaks_openai(request: web.Request) -> bool:
    key = request.match_info.get("key")
    path = request.path.removeprefix(f"/k/{key}") if key else request.path
    return path.startswith("/v1/")


def _check_media_type(request: web.Request) -> None:
    """A browser page may send a form or plain text across sites without asking; JSON it may not."""
    if request.content_type != "application/json":
        raise WrongMediaType(
            f"the body is {request.content_type!r}; it must be application/json",
            hint="Send the header Content-Type: application/json.",
            param="content-type",
        )


def _routing(request: web.Request, error: web.HTTPException) -> HomeboxError:
    if error.status == 404:
        return NotFound("no such route", hint="GET /v1/models shows that the address is right.")
    if error.status == 405:
        return InvalidRequest(f"{request.method} is not possible here")
    if error.status == 413:
        return ContextLengthExceeded(
            f"the request is larger than {MAX_BODY_BYTES >> 20} MiB, far above any prompt that fits a context",
            hint="Send a shorter document.",
        )
    return InvalidRequest(error.reason)
