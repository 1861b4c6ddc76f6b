"""What do clients and the daemon say about people, keys and usage?

Bodies and answers of `/homebox/me`, `/homebox/people`, `/homebox/keys` and `/homebox/usage`. Rules are those of
`homebox.rules`; numbers of tokens are counted ones (see `daemon/usage.py`); times are unix seconds.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from homebox.rules import Role, Rules


class PersonRow(msgspec.Struct, frozen=True, kw_only=True):
    """`rules` hold; `own` are those of them that were set for this person. `entered`: somebody gave a role or rules."""

    name: str
    role: Role
    entered: bool
    rules: Rules
    own: Rules
    admin: bool | None = None  # of oneself only
    running: int = 0
    waiting: int = 0
    tokens_minute: int = 0
    tokens_today: int = 0
    keys: int = 0
    chats: int | None = (
        None  # None where nothing is known: their file cannot be read, or it was not looked at
    )
    messages: int | None = None


class PersonChange(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What is left out stays as it is; the rules named in `clear` are the role's again."""

    role: str | None = None
    rules: dict[str, int | float | str | list[str] | None] = {}
    clear: list[str] = []


class KeyRow(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    person: str
    scopes: tuple[str, ...]
    created: float
    last_used: float | None = None
    expires: float | None = None
    background: bool = False
    for_people: bool = False


class KeyRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    person: str
    scopes: tuple[Literal["chat", "monitor", "admin"], ...] = ("chat", "monitor")
    expires: float | None = None
    background: bool = False
    for_people: bool = False


class KeyMade(msgspec.Struct, frozen=True, kw_only=True):
    """The only time that `key` is seen."""

    id: str
    key: str


class UsageRow(msgspec.Struct, frozen=True, kw_only=True):
    day: str
    person: str
    requests: int
    refused: int
    tokens_in: int
    tokens_out: int
    cached: int
    counted: int
