"""Keys: every one can be remapped, and no two things of one place share one."""

from __future__ import annotations

import pytest

from homebox.errors import UsageError
from homebox.tui.keys import TABLE, bindings, checked


def test_the_keys_as_they_are_do_not_collide() -> None:
    assert checked({}) == {}
    ids = [key.id for row in TABLE.values() for key in row]
    assert len(ids) == len(set(ids))


def test_every_binding_can_be_remapped_by_its_id() -> None:
    assert all(each.id for where in TABLE for each in bindings(where))
    assert checked({"stop": "f9"}) == {"stop": "f9"}


def test_an_id_that_nothing_has_and_a_key_that_is_taken_are_refused_by_name() -> None:
    with pytest.raises(UsageError, match="'stopp'"):
        checked({"stopp": "f9"})
    with pytest.raises(UsageError, match=r"f2 would be both chats and monitor \(screen\)"):
        checked({"monitor": "f2"})
