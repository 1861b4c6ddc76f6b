"""For whom does an application ask?

An application that serves several people asks with one key. Where the owner trusts it with that (`for_people`), it may
name the person: in Open WebUI's headers, or in the `user` field of OpenAI's dialect. The name becomes
`<person>@<application>`, so that nobody behind an application can be taken for somebody of the house or of another
application. From any other key the same words mean nothing.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping

# The first that is there: an address is unique among the application's users and readable, a name need not be unique.
HEADERS = ("X-OpenWebUI-User-Email", "X-OpenWebUI-User-Id", "X-OpenWebUI-User-Name")
_NAME_CHARACTERS = 64
_PLAIN = re.compile(r"[A-Za-z0-9.-]")


def named_in(headers: Mapping[str, str]) -> str | None:
    return next((value.strip() for name in HEADERS if (value := headers.get(name, "")).strip()), None)


def name_behind(user: str, app: str) -> str:
    """A person's name for this user of this application: readable, in the grammar of names, and different for
    different users. What is not plain is written `_` and two hexadecimal digits a byte, `_` itself twice; what gets too
    long is `_h` and a digest, which no such writing can be. Neither holds an @, so the last one ends the user."""
    data = user.encode(errors="surrogatepass")
    written = "".join(_write(byte, first=place == 0) for place, byte in enumerate(data))
    if not written or len(written) + 1 + len(app) > _NAME_CHARACTERS:
        written = "_h" + hashlib.blake2b(data, digest_size=10).hexdigest()
    return f"{written}@{app}"


def _write(byte: int, *, first: bool) -> str:
    character = chr(byte)
    if character == "_":
        return "__"
    plain = _PLAIN.fullmatch(character) and not (first and character in ".-")
    return character if plain else f"_{byte:02x}"
