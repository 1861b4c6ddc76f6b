"""Can the service's account have root give a file of the system away, or write into it, by what it puts into its own
directory?"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from homebox.daemon import lock
from homebox.daemon.keys import Keys
from homebox.daemon.people import Household
from homebox.errors import NotAllowed, UsageError

from .others import NOBODY

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root works in somebody else's directory")


@pytest.fixture
def state(tmp_path: Path) -> Path:
    folder = tmp_path / "state"
    folder.mkdir()
    os.chown(folder, NOBODY, NOBODY)
    return folder


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    path = tmp_path / "shadow"
    path.write_text("root:secret")
    path.chmod(0o600)
    return path


WAYS: dict[str, Callable[[Path], object]] = {
    "daemon.lock": lock.hold,
    "keys.lock": lambda state: Keys(state).new("anna"),
    "people.lock": lambda state: Household(state).set("anna", role="kid"),
}


@pytest.mark.parametrize("link", ["hard", "symbolic"])
@pytest.mark.parametrize("name", WAYS)
def test_a_link_in_the_way_gives_nothing_away(state: Path, precious: Path, name: str, link: str) -> None:
    trap = state / name
    trap.hardlink_to(precious) if link == "hard" else trap.symlink_to(precious)
    with pytest.raises((NotAllowed, UsageError), match="cannot open"):
        WAYS[name](state)
    assert (precious.stat().st_uid, precious.read_text()) == (0, "root:secret")


@pytest.mark.parametrize("name", WAYS)
def test_a_pipe_in_the_way_does_not_hold_root_up(state: Path, name: str) -> None:
    os.mkfifo(state / name)
    with pytest.raises((NotAllowed, UsageError), match="cannot open"):
        WAYS[name](state)


def test_the_lock_of_root_is_the_accounts_and_can_be_taken_again(state: Path) -> None:
    for _ in range(2):
        lock.hold(state).release()
        assert (state / lock.NAME).stat().st_uid == NOBODY
