"""Which keys open the TCP port, and whose are they?

`<state>/keys.json`, mode 0600, holds each key's public id, the SHA-256 of the whole key and the person it speaks for,
never the key. Written by `homebox people keys`, read by the daemon, which looks again whenever the file has changed, so
that a new or revoked key counts at once.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import os
import re
import secrets
import string
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from homebox.config import check_state_dir
from homebox.errors import BadFile, NotFound, UsageError

_ALPHABET = string.digits + string.ascii_letters
_ID_LENGTH = 8
_SECRET_LENGTH = 43  # base62 digits that hold 32 random bytes
_FORM = re.compile(rf"hb_([0-9A-Za-z]{{{_ID_LENGTH}}})_([0-9A-Za-z]{{{_SECRET_LENGTH}}})")
PERSON = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]{0,63}")


class Key(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    id: str
    sha256: str
    person: str
    created: float  # unix seconds


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    keys: list[Key] = []
    schema: int = 1


class Keys:
    """The keys of one box."""

    def __init__(self, state_dir: Path) -> None:
        self.path = state_dir / "keys.json"
        self._stamp: tuple[int, int, int] | None = None
        self._by_id: dict[str, Key] = {}

    def all(self) -> list[Key]:
        """Raises BadFile where the file cannot be read."""
        return self._read().keys

    def person(self, key: str) -> str | None:
        """Whom this key speaks for; None if it opens nothing. Takes the same time for every wrong key."""
        self._refresh()
        match = _FORM.fullmatch(key)
        known = self._by_id.get(match[1]) if match else None
        expected = known.sha256 if known else "0" * 64
        same = hmac.compare_digest(hashlib.sha256(key.encode()).hexdigest(), expected)
        return known.person if known and same else None

    def new(self, person: str) -> str:
        """Make a key and return it; this is the only time that it is seen. Raises UsageError, or NotAllowed where the
        state directory cannot be written."""
        if not PERSON.fullmatch(person):
            raise UsageError(
                f"{person[:80]!r} is not a person's name", hint="Letters, digits and _ . @ - only."
            )
        number = int.from_bytes(secrets.token_bytes(32))
        name = "".join(secrets.choice(_ALPHABET) for _ in range(_ID_LENGTH))
        key = f"hb_{name}_{_base62(number)}"
        made = Key(name, hashlib.sha256(key.encode()).hexdigest(), person, time.time())
        with self._changing() as keys:
            keys.append(made)
        return key

    def revoke(self, key_id: str) -> Key:
        """Raises NotFound."""
        with self._changing() as keys:
            found = next((key for key in keys if key.id == key_id), None)
            if found is None:
                raise NotFound(f"no key {key_id[:80]!r}", hint="homebox people keys list shows them.")
            keys.remove(found)
        return found

    def _refresh(self) -> None:
        try:
            status = self.path.stat()
            stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
        except OSError:
            stamp = None
        if stamp != self._stamp or stamp is None:
            self._by_id = {key.id: key for key in self._read().keys}
            self._stamp = stamp

    def _read(self) -> _File:
        try:
            return msgspec.json.decode(self.path.read_bytes(), type=_File)
        except FileNotFoundError:
            return _File()
        except (OSError, msgspec.DecodeError) as error:
            raise BadFile(
                f"{self.path}: {error}", hint="Restore it, or remove it and make new keys."
            ) from None

    @contextmanager
    def _changing(self) -> Iterator[list[Key]]:
        """The list, written back whole and at once; two commands at a time wait for each other."""
        check_state_dir(self.path.parent)
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with (self.path.parent / "keys.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            keys = list(self._read().keys)
            yield keys
            partial = self.path.with_suffix(".partial")
            partial.unlink(missing_ok=True)
            with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
                out.write(msgspec.json.format(msgspec.json.encode(_File(keys))) + b"\n")
                out.flush()
                os.fsync(out.fileno())
            partial.replace(self.path)


def _base62(number: int) -> str:
    digits = ""
    for _ in range(_SECRET_LENGTH):
        number, digit = divmod(number, len(_ALPHABET))
        digits = _ALPHABET[digit] + digits
    return digits
