"""Does the doctor see who can reach the box, and who cannot and should?"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from homebox import errors
from homebox.cli.doctor import reach
from homebox.client.connection import Daemon
from homebox.daemon.keys import Keys
from tests.client.fake_daemon import FakeDaemon

from .conftest import MadeUp


@pytest.fixture
def fake(it: MadeUp) -> Iterator[FakeDaemon]:
    it.socket.parent.mkdir(mode=0o755)
    with FakeDaemon(it.socket) as running:
        running.when("GET", "/health", lambda exchange: exchange.json({"state": "ready"}, 503))
        it.socket.chmod(0o660)
        it.group("homebox", it.socket.stat().st_gid, "anna")
        yield running


def test_a_socket_says_who_may(fake: FakeDaemon, it: MadeUp) -> None:
    found = it.find(reach.socket)
    assert (
        found.ok and found.found == f"{it.socket} answers; mode 0660, open to {owner()} and the group homebox"
    )
    it.socket.chmod(0o600)
    assert it.find(reach.socket).found.endswith(f"mode 0600, open to {owner()}")
    seen = it.seen
    reach.socket(seen)
    assert seen.ready


def test_the_settings_of_a_running_daemon_count_and_not_those_of_the_files(
    fake: FakeDaemon, it: MadeUp
) -> None:
    it.is_(uid=os.getuid())
    settings = {"listen": "127.0.0.1:1"}
    fake.when("GET", "/homebox/config", lambda exchange: exchange.json({"settings": settings}))
    for told, listen in (({"listen": "127.0.0.1:1"}, "127.0.0.1:1"), ({"of": "another version"}, "")):
        settings = told
        seen = it.seen
        assert reach.socket(seen).ok and seen.settings.listen == listen


def test_somebody_elses_account_does_not_ask_for_what_it_may_not_have(fake: FakeDaemon, it: MadeUp) -> None:
    it.is_(uid=os.getuid() + 4321)
    assert it.find(reach.socket).ok and not fake.requests("/homebox/config")


def owner() -> str:
    return {0: "root", 1000: "anna"}.get(os.getuid(), "homebox")


def test_a_socket_that_is_open_to_all_is_found(
    fake: FakeDaemon, it: MadeUp, monkeypatch: pytest.MonkeyPatch
) -> None:
    it.socket.chmod(0o666)
    monkeypatch.setattr(reach, "_open_to_all", lambda path: True)  # the tests' own directory is closed
    found = it.find(reach.socket)
    assert not found.ok and found.fix == f"sudo chmod 0660 {it.socket}"


def test_without_a_daemon_the_fix_is_to_start_it(it: MadeUp) -> None:
    found = it.find(reach.socket)
    assert not found.ok and "no socket at" in found.found and found.fix == "Start it with: homebox serve"
    it.systemd({}, {})
    assert it.find(reach.socket).fix == "sudo systemctl start homebox.socket"


def test_a_daemon_that_is_not_well_still_answers(fake: FakeDaemon, it: MadeUp) -> None:
    fake.when(
        "GET", "/health", lambda exchange: exchange.error(errors.NotAllowed("go away", hint="Ask the owner."))
    )
    found = it.find(reach.socket)
    assert (found.ok, found.found, found.fix) == (False, "go away", "Ask the owner.")


def test_a_box_elsewhere_is_asked_and_not_looked_at(it: MadeUp) -> None:
    it.daemon = Daemon(url="http://127.0.0.1:9")
    found = it.find(reach.socket)
    assert not found.ok and "nobody answers at http://127.0.0.1:9" in found.found


# ---- the group


def test_a_group_joined_after_the_login_is_not_effective(it: MadeUp) -> None:
    it.group("homebox", 990, "anna", "mia")
    found = it.find(reach.group)
    assert not found.ok and "began before that" in found.found and "Log out and in again" in found.fix
    it.is_(groups=frozenset([1000, 990]))
    assert it.find(reach.group).ok


def test_who_is_not_in_the_group_is_told_how_to_join(it: MadeUp) -> None:
    it.group("homebox", 990, "mia")
    found = it.find(reach.group)
    assert not found.ok and found.fix.startswith("sudo gpasswd -a anna homebox")
    it.health = {"state": "ready"}
    assert it.find(reach.group).ok  # it can ask all the same


def test_the_group_of_an_account_is_no_door(fake: FakeDaemon, it: MadeUp) -> None:
    """A daemon that root runs by hand has a socket of the group root: nobody is told to join that."""
    owner = it.socket.stat()
    it.group("root", owner.st_gid)
    it.is_(uid=owner.st_uid + 1)
    found = it.find(reach.group)
    assert found.ok and "gpasswd" not in found.found + found.fix


def test_root_and_a_machine_without_the_group_are_well(it: MadeUp) -> None:
    assert it.find(reach.group).ok
    it.group("homebox", 990, "mia", "tom")
    it.is_(uid=0)
    found = it.find(reach.group)
    assert found.ok and "mia, tom" in found.found


# ---- the network


@pytest.fixture
def key(it: MadeUp) -> str:
    return Keys(it.state).new("mia")


def test_a_closed_network_is_well(it: MadeUp) -> None:
    assert it.find(reach.lan).ok and "closed" in it.find(reach.lan).found


def test_a_port_without_a_key_is_found(it: MadeUp) -> None:
    it.settings["listen"] = "0.0.0.0:11480"
    found = it.find(reach.lan)
    assert not found.ok and found.fix == "Make one: homebox people keys new NAME"


@pytest.mark.parametrize(
    ("listen", "says"),
    [
        ("127.0.0.1:11480", "this machine only; 1 key"),
        ("localhost:11480", "this machine only"),
        ("[::1]:11480", "this machine only"),
        ("192.168.1.5:11480", "open to the home network"),
        ("0.0.0.0:11480", "box.home"),
    ],
)
def test_a_port_of_the_house_is_well_and_says_its_names(it: MadeUp, key: str, listen: str, says: str) -> None:
    it.settings |= {"listen": listen, "allowed_hosts": ["box.home"]}
    found = it.find(reach.lan)
    assert found.ok and says in found.found


@pytest.mark.parametrize("listen", ["0.0.0.0:11480", "93.184.216.34:11480"])
def test_a_port_that_the_internet_can_reach_is_found(it: MadeUp, key: str, listen: str) -> None:
    it.is_(addresses=lambda: ["127.0.0.1", "93.184.216.34"])
    it.settings["listen"] = listen
    found = it.find(reach.lan)
    assert not found.ok and "93.184.216.34" in found.found and "192.168.1.5:11480" in found.fix


def test_keys_that_cannot_be_read_are_said(it: MadeUp, key: str) -> None:
    (it.state / "keys.json").write_text("{broken")
    it.settings["listen"] = "127.0.0.1:1"
    assert "cannot be counted" in it.find(reach.lan).found
