"""What does the body of this request say, as a typed struct?

JSON through msgspec; a wrong type or a missing field becomes an InvalidRequest whose `param` is the field's path,
and a body that is no JSON at all says where it breaks. NaN and Infinity, which JSON does not have but Python clients
write, are named with the field that holds them.
"""

from __future__ import annotations

import json
import math
import re
from typing import TypeVar

import msgspec

from homebox.errors import InvalidRequest

T = TypeVar("T")


def decode(body: bytes, kind: type[T]) -> T:
    """Raises InvalidRequest."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise _invalid(error) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if name := _non_finite(body):
            raise InvalidRequest(f"{name} is not a finite number", param=name) from None
        raise InvalidRequest(f"the body is not JSON: {error}") from None


def convert(value: object, kind: type[T], param: str) -> T:
    """A part of a body that was left untyped, for fields with several shapes. Raises InvalidRequest."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise _invalid(error, param) from None


def _invalid(error: msgspec.ValidationError, inside: str = "") -> InvalidRequest:
    text = str(error)
    match = re.search(r" - at `(?:key in )?\$\.?([^`]*)`", text)
    path = ".".join(part for part in (inside, match[1] if match else "") if part).replace(".[", "[")
    said = text[: match.start()] if match else text
    if missing := re.search(r"missing required field `([^`]+)`", said):
        path = f"{path}.{missing[1]}" if path else missing[1]
        said = "it is required"
    said = said[0].lower() + said[1:]
    return InvalidRequest(f"{path}: {said}" if path else said, param=path or None)


def _non_finite(body: bytes) -> str | None:
    """The first top-level field that holds NaN or an infinity, if that is all that is wrong with the body."""
    if len(body) > 1 << 20:
        return None
    try:
        data = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(data, dict):
        return None
    return next((str(k) for k, v in data.items() if isinstance(v, float) and not math.isfinite(v)), None)
