"""Which keys open the TCP port, whose are they, and what do they open?

`<state>/keys.json` holds each key's public id, the SHA-256 of the whole key, the person it speaks for and what it may
do, never the key. Changed by administrators through the daemon, or by `homebox people keys` where none runs; a new or
revoked key counts at once. When a key was last used is remembered and written at most once a minute.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import string
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, get_args

import msgspec

from homebox.daemon.records import Records
from homebox.errors import NotFound, UsageError

Scope = Literal["chat", "monitor", "admin"]
SCOPES: tuple[str, ...] = get_args(Scope)
USUAL_SCOPES: tuple[Scope, ...] = ("chat", "monitor")
SCHEMA = 2
USED_EVERY_S = 60.0
APP_NAME_CHARACTERS = 32  # of a key that speaks for others: their names end with its own
_ALPHABET = string.digits + string.ascii_letters
_ID_LENGTH = 8
_SECRET_LENGTH = 43  # base62 digits that hold 32 random bytes
_FORM = re.compile(rf"hb_([0-9A-Za-z]{{{_ID_LENGTH}}})_([0-9A-Za-z]{{{_SECRET_LENGTH}}})")
PERSON = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]{0,63}")


class Key(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`background`: all its requests are of the low priority class. `for_people`: an application that is trusted to
    say for whom it asks. Times are unix seconds."""

    id: str
    sha256: str
    person: str
    created: float
    scopes: tuple[Scope, ...] = USUAL_SCOPES
    last_used: float | None = None
    expires: float | None = None
    background: bool = False
    for_people: bool = False

    def expired(self, now: float) -> bool:
        return self.expires is not None and self.expires <= now


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    keys: list[Key] = []
    schema: int = SCHEMA  # 1 had no scopes, expiry and classes: their defaults are what it meant


class Keys:
    """The keys of one box."""

    def __init__(self, state_dir: Path) -> None:
        self._file = Records(state_dir / "keys.json", _File, _File, SCHEMA)
        self._indexed: tuple[_File, dict[str, Key]] | None = None
        self._used: dict[str, float] = {}  # not written yet
        self._used_written = 0.0

    @property
    def path(self) -> Path:
        return self._file.path

    def all(self) -> list[Key]:
        """With the newest `last_used` that is known here. Raises BadFile where the file cannot be read."""
        return [self._with_use(key) for key in self._file.get().keys]

    def find(self, key: str) -> Key | None:
        """What this key is; None if it opens nothing. Takes the same time for every wrong key. Raises BadFile."""
        match = _FORM.fullmatch(key)
        known = self.by_id().get(match[1]) if match else None
        expected = known.sha256 if known else "0" * 64
        same = hmac.compare_digest(hashlib.sha256(key.encode(errors="replace")).hexdigest(), expected)
        return known if known and same else None

    def by_id(self) -> dict[str, Key]:
        """All keys there are. Raises BadFile."""
        content = self._file.get()
        if self._indexed is None or self._indexed[0] is not content:
            self._indexed = (content, {key.id: key for key in content.keys})
        return self._indexed[1]

    def usual_role(self, person: str) -> Literal["adult", "guest"]:
        """What somebody is who was not entered: a guest, if an application speaks for them. Raises BadFile."""
        user, _, app = person.rpartition("@")
        if user and any(key.for_people and key.person == app for key in self.by_id().values()):
            return "guest"
        return "adult"

    def new(
        self,
        person: str,
        *,
        scopes: Sequence[Scope] = USUAL_SCOPES,
        expires: float | None = None,
        background: bool = False,
        for_people: bool = False,
    ) -> str:
        """Make a key and return it; this is the only time that it is seen. Raises UsageError, or NotAllowed where the
        state directory cannot be written."""
        check_name(person)
        if not scopes:
            raise UsageError("a key without a scope opens nothing", hint=f"Scopes: {', '.join(SCOPES)}.")
        if for_people and ("@" in person or len(person) > APP_NAME_CHARACTERS):
            raise UsageError(
                f"{person!r} cannot speak for others: the name has an @ or more than {APP_NAME_CHARACTERS} characters",
                hint="The people behind it are called NAME@APPLICATION; choose a short name without @.",
            )
        if expires is not None and not time.time() < expires < 2**53:
            raise UsageError("the key would be expired already", param="expires")
        number = int.from_bytes(secrets.token_bytes(32))
        name = "".join(secrets.choice(_ALPHABET) for _ in range(_ID_LENGTH))
        key = f"hb_{name}_{_base62(number)}"
        made = Key(
            name,
            hashlib.sha256(key.encode()).hexdigest(),
            person,
            time.time(),
            scopes=tuple(scopes),
            expires=expires,
            background=background,
            for_people=for_people,
        )
        with self._file.changing() as write:
            write(_File([*self._file.get().keys, made]))
        return key

    def revoke(self, key_id: str) -> Key:
        """Raises NotFound, and what `new` raises."""
        with self._file.changing() as write:
            keys = list(self._file.get().keys)
            found = next((key for key in keys if key.id == key_id), None)
            if found is None:
                raise NotFound(f"no key {key_id[:80]!r}", hint="homebox people keys list shows them.")
            keys.remove(found)
            write(_File(keys))
        return self._with_use(found)

    # ---- when were they used?

    def used(self, key: Key, now: float) -> None:
        self._used[key.id] = now

    def uses_to_write(self, now: float) -> bool:
        """Whether some are known only here, for long enough."""
        return bool(self._used) and now - self._used_written >= USED_EVERY_S

    def write_uses(self, now: float) -> None:
        """Blocks on the disk. Raises OSError, BadFile, NotAllowed; the uses are then kept for the next time."""
        self._used_written = now
        if not self._used:
            return
        used, self._used = self._used, {}
        try:
            with self._file.changing() as write:
                keys = self._file.get().keys
                if any(key.id in used for key in keys):
                    write(
                        _File(
                            [msgspec.structs.replace(k, last_used=used.get(k.id, k.last_used)) for k in keys]
                        )
                    )
        except BaseException:
            self._used = used | self._used
            raise

    def _with_use(self, key: Key) -> Key:
        last = self._used.get(key.id)
        return key if last is None else msgspec.structs.replace(key, last_used=last)


def check_name(person: str) -> None:
    """Raises UsageError."""
    if not PERSON.fullmatch(person):
        raise UsageError(f"{person[:80]!r} is not a person's name", hint="Letters, digits and _ . @ - only.")


def _base62(number: int) -> str:
    digits = ""
    for _ in range(_SECRET_LENGTH):
        number, digit = divmod(number, len(_ALPHABET))
        digits = _ALPHABET[digit] + digits
    return digits
