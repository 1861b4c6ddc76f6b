"""Who lives here, and what may each of them?

`<state>/people.json` says which role a person has and which rules are their own. Who is not in it is an adult, or a
guest if an application speaks for them; nobody needs to be entered to use the box. A change counts at once. It knows
no requests; who is asking is `identity`'s question.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from homebox import rules as house_rules
from homebox.daemon.keys import check_name
from homebox.daemon.records import Records
from homebox.errors import BadFile, NotFound, UsageError
from homebox.rules import Role, Rules

SCHEMA = 1


class Record(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    role: Role = "adult"
    rules: Rules = Rules()


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    people: dict[str, Record] = {}
    schema: int = SCHEMA


@dataclass(frozen=True)
class Member:
    """`rules` are those that hold: the person's own over the role's."""

    name: str
    role: Role
    rules: Rules


class Household:
    """The people of one box. `roles` is the configuration's table, replaced when that is read again."""

    def __init__(self, state_dir: Path, roles: Mapping[str, Rules] | None = None) -> None:
        self._file = Records(state_dir / "people.json", _File, _File, SCHEMA)
        self._checked: _File | None = None
        self.roles: Mapping[str, Rules] = roles or {}

    @property
    def path(self) -> Path:
        return self._file.path

    def records(self) -> Mapping[str, Record]:
        """Who was entered, and as what. Raises BadFile."""
        content = self._file.get()
        if content is not self._checked:
            for name, record in content.people.items():
                try:
                    check_name(name)
                    house_rules.check(record.rules)
                except UsageError as error:
                    raise BadFile(f"{self.path}: {name}: {error.message}", hint=error.hint) from None
            self._checked = content
        return content.people

    def member(self, name: str, *, otherwise: Role = "adult") -> Member:
        """What holds for this person, who has the role `otherwise` where nothing was entered. Raises BadFile."""
        record = self.records().get(name) or Record(otherwise)
        return Member(name, record.role, self.rules(record))

    def rules(self, record: Record) -> Rules:
        return house_rules.effective(record.role, record.rules, self.roles)

    def set(
        self,
        name: str,
        *,
        role: Role | None = None,
        rules: Rules | None = None,
        clear: Iterable[str] = (),
        otherwise: Role = "adult",
    ) -> Record:
        """Enter somebody (as `otherwise`, if no role is given), or change what is given; the rules in `clear` are the
        role's again. Raises UsageError, BadFile, and NotAllowed where nothing can be written."""
        check_name(name)
        rules = rules or Rules()
        house_rules.check(rules)
        names = list(clear)
        if unknown := next((rule for rule in names if rule not in Rules.__struct_fields__), None):
            raise UsageError(
                f"there is no rule {unknown[:40]!r}", hint=f"Rules: {', '.join(Rules.__struct_fields__)}."
            )
        with self._file.changing() as write:
            people = dict(self.records())
            before = people.get(name, Record(otherwise))
            people[name] = Record(role or before.role, rules.over(before.rules.without(names)))
            write(_File(people))
        return people[name]

    def remove(self, name: str) -> Record:
        """Forget what was entered; the person is then like anybody. Raises NotFound, and what `set` raises."""
        with self._file.changing() as write:
            people = dict(self.records())
            if (record := people.pop(name, None)) is None:
                raise NotFound(f"{name[:80]!r} was not entered", hint="homebox people list shows who is.")
            write(_File(people))
        return record
