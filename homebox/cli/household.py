"""By which way does a command reach people and keys?

Through the daemon when one answers: then whoever it takes for an administrator may change them, and a revoked key takes
its answers along at once. Directly on the files of the state directory when none does, for whoever may write there. Both
ways say the same.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote

import msgspec

from homebox import rules as house_rules
from homebox.client import connection
from homebox.errors import DaemonUnreachable
from homebox.rules import Rules
from homebox.wire.people import KeyMade, KeyRequest, KeyRow, PersonChange, PersonRow

if TYPE_CHECKING:
    from homebox.daemon.keys import Key
    from homebox.daemon.people import Record

LOOK_S = 5.0


class Household(Protocol):
    counts: bool  # whether it knows what is under way and what was used today

    def people(self) -> list[PersonRow]: ...

    def set(self, name: str, change: PersonChange) -> PersonRow: ...

    def remove(self, name: str) -> PersonRow: ...

    def keys(self) -> list[KeyRow]: ...

    def new_key(self, request: KeyRequest) -> KeyMade: ...

    def revoke(self, key_id: str) -> KeyRow: ...


def reach() -> Household:
    """The way that is open. Raises what the daemon says, and DaemonUnreachable for one on another computer."""
    daemon = connection.from_environment()
    try:
        daemon.json("GET", "/health", timeout_s=LOOK_S, accept=(503,))
    except DaemonUnreachable:
        if daemon.remote:
            raise
        from homebox import config

        settings = config.load().settings
        return _Files(config.state_dir(settings), settings.roles)
    return _Daemon(daemon)


class _Daemon:
    counts = True

    def __init__(self, daemon: connection.Daemon) -> None:
        self._daemon = daemon

    def people(self) -> list[PersonRow]:
        return msgspec.convert(self._daemon.json("GET", "/homebox/people"), dict[str, list[PersonRow]])[
            "people"
        ]

    def set(self, name: str, change: PersonChange) -> PersonRow:
        return msgspec.convert(self._daemon.json("PUT", _path("people", name), change), PersonRow)

    def remove(self, name: str) -> PersonRow:
        return msgspec.convert(self._daemon.json("DELETE", _path("people", name)), PersonRow)

    def keys(self) -> list[KeyRow]:
        return msgspec.convert(self._daemon.json("GET", "/homebox/keys"), dict[str, list[KeyRow]])["keys"]

    def new_key(self, request: KeyRequest) -> KeyMade:
        return msgspec.convert(self._daemon.json("POST", "/homebox/keys", request), KeyMade)

    def revoke(self, key_id: str) -> KeyRow:
        return msgspec.convert(self._daemon.json("DELETE", _path("keys", key_id)), KeyRow)


class _Files:
    counts = False

    def __init__(self, state: Path, roles: dict[str, Rules]) -> None:
        from homebox.daemon.keys import Keys
        from homebox.daemon.people import Household as Records

        self._keys, self._people = Keys(state), Records(state, roles)

    def people(self) -> list[PersonRow]:
        records = self._people.records()
        names = sorted({*records, *(key.person for key in self._keys.all())})
        return [self._row(name, records.get(name)) for name in names]

    def set(self, name: str, change: PersonChange) -> PersonRow:
        role = house_rules.check_role(change.role) if change.role is not None else None
        rules = house_rules.convert(change.rules)
        usual = self._keys.usual_role(name)
        return self._row(
            name, self._people.set(name, role=role, rules=rules, clear=change.clear, otherwise=usual)
        )

    def remove(self, name: str) -> PersonRow:
        self._people.remove(name)
        return self._row(name, None)

    def keys(self) -> list[KeyRow]:
        return [_key_row(key) for key in self._keys.all()]

    def new_key(self, request: KeyRequest) -> KeyMade:
        fields: dict[str, Any] = msgspec.structs.asdict(request)
        key = self._keys.new(fields.pop("person"), **fields)
        return KeyMade(id=key.split("_")[1], key=key)

    def revoke(self, key_id: str) -> KeyRow:
        return _key_row(self._keys.revoke(key_id))

    def _row(self, name: str, record: Record | None) -> PersonRow:
        member = self._people.member(name, otherwise=self._keys.usual_role(name))
        return PersonRow(
            name=name,
            role=member.role,
            entered=record is not None,
            rules=member.rules,
            own=record.rules if record else Rules(),
            keys=sum(key.person == name for key in self._keys.all()),
        )


def _key_row(key: Key) -> KeyRow:
    return KeyRow(**{name: getattr(key, name) for name in KeyRow.__struct_fields__})


def _path(kind: str, name: str) -> str:
    return f"/homebox/{kind}/{quote(name, safe='')}"
