"""Does the doctor see a service that is not well, and say what to do?"""

from __future__ import annotations

import pytest

import homebox
from homebox.cli.doctor import seen, service

from .conftest import MadeUp

RUNNING = {"ActiveState": "active", "SubState": "running", "UnitFileState": "enabled", "Result": "success"}
LISTENING = {"ActiveState": "active", "SubState": "running", "UnitFileState": "enabled", "Result": "success"}


def test_a_machine_without_systemd_is_no_fault(it: MadeUp) -> None:
    found = it.find(service.unit)
    assert found.ok and not found.fix and "does not run systemd" in found.found


def test_a_service_that_is_not_installed_is_advice(it: MadeUp) -> None:
    it.systemd({"LoadState": "not-found"}, {"LoadState": "not-found"})
    found = it.find(service.unit)
    assert found.ok and "sudo homebox service install" in found.fix


def test_a_systemctl_that_fails_or_hangs_is_as_good_as_none(
    it: MadeUp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seen, "PROGRAM_S", 0.2)
    it.systemd(RUNNING, LISTENING)
    for script in ("exit 1", "exec sleep 60", "echo rubbish"):
        it.says("systemctl", script)
        it.is_(environ={"PATH": f"{it.bin}:/bin:/usr/bin"})
        assert "not installed" in it.find(service.unit).found


def test_a_running_service_is_well(it: MadeUp) -> None:
    it.systemd(RUNNING | {"NRestarts": "2"}, LISTENING)
    found = it.find(service.unit)
    assert found.ok and not found.fix
    assert found.found == "homebox.service is active (running), restarted 2 times"


@pytest.mark.parametrize(
    ("service_is", "socket_is", "says", "fix"),
    [
        ({"ActiveState": "failed", "Result": "start-limit-hit", "NRestarts": "5"}, {}, "5 times in a row", "systemctl reset-failed homebox.service homebox.socket"),
        ({"ActiveState": "inactive"}, {"ActiveState": "failed", "Result": "service-start-limit-hit"}, "start limit", "reset-failed"),
        ({"ActiveState": "failed", "Result": "exit-code"}, {}, "failed (exit-code)", "journalctl -u homebox.service"),
        ({"ActiveState": "inactive"}, {"ActiveState": "inactive"}, "stopped", "sudo systemctl start homebox.socket"),
        ({"LoadState": "masked"}, {}, "masked", "sudo systemctl unmask homebox.service"),
        ({}, {"LoadState": "not-found"}, "homebox.socket is not-found", "homebox service install"),
    ],
)  # fmt: skip
def test_a_unit_that_is_not_well_has_its_fix(
    it: MadeUp, service_is: dict[str, str], socket_is: dict[str, str], says: str, fix: str
) -> None:
    it.systemd(RUNNING | service_is, LISTENING | socket_is)
    found = it.find(service.unit)
    assert not found.ok and says in found.found and fix in found.fix


def test_a_service_that_will_not_start_at_boot_is_advice(it: MadeUp) -> None:
    it.systemd(RUNNING | {"UnitFileState": "disabled"}, LISTENING | {"UnitFileState": "disabled"})
    found = it.find(service.unit)
    assert found.ok and "sudo systemctl enable homebox.socket" in found.fix


def test_a_persons_own_service_is_found_and_needs_no_sudo(it: MadeUp) -> None:
    it.systemd({"ActiveState": "failed", "Result": "exit-code"}, LISTENING, scope="user")
    found = it.find(service.unit)
    assert not found.ok and "systemctl --user reset-failed" in found.fix and "sudo" not in found.fix


def started(it: MadeUp, path: str) -> None:
    it.systemd(
        RUNNING | {"ExecStart": f"{{ path={path} ; argv[]={path} serve ; ignore_errors=no }}"}, LISTENING
    )


def test_an_interpreter_that_everybody_may_read_is_well(it: MadeUp) -> None:
    it.has("/opt/homebox/venv/bin/homebox", "#!/opt/homebox/venv/bin/python\n", 0o755)
    it.has("/usr/bin/python3.11", "", 0o755)
    (it.root / "opt/homebox/venv/bin/python").symlink_to("/usr/bin/python3.11")
    started(it, "/opt/homebox/venv/bin/homebox")
    found = it.find(service.interpreter)
    assert found.ok, found


@pytest.mark.parametrize("target", ["/root/.pyenv/bin/python3", "/home/anna/.local/bin/python3"])
def test_an_interpreter_behind_a_link_into_a_home_is_found(it: MadeUp, target: str) -> None:
    it.has("/opt/homebox/venv/bin/homebox", "#!/opt/homebox/venv/bin/python\n", 0o755)
    it.has(target, "", 0o755)
    (it.root / "opt/homebox/venv/bin/python").symlink_to(target)
    started(it, "/opt/homebox/venv/bin/homebox")
    found = it.find(service.interpreter)
    assert not found.ok and f"{target}, which its account cannot read" in found.found
    assert "scripts/install" in found.fix


def test_an_interpreter_in_a_closed_directory_or_missing_is_found(it: MadeUp) -> None:
    it.has("/opt/homebox/venv/bin/homebox", "", 0o755)
    (it.root / "opt/homebox").chmod(0o700)
    started(it, "/opt/homebox/venv/bin/homebox")
    assert "/opt/homebox is closed to others (mode 0700)" in it.find(service.interpreter).found
    started(it, "/opt/nowhere/homebox")
    found = it.find(service.interpreter)
    assert not found.ok and "No such file" in found.found


def test_an_own_service_may_run_from_a_home(it: MadeUp) -> None:
    it.systemd(RUNNING | {"ExecStart": "{ path=/home/anna/bin/homebox ; }"}, LISTENING, scope="user")
    assert it.find(service.interpreter).ok


def test_versions_that_differ_are_found(it: MadeUp) -> None:
    assert it.find(service.version).ok
    it.health = {"version": homebox.__version__}
    assert it.find(service.version).ok
    it.health = {"version": "0.0.1"}
    found = it.find(service.version)
    assert not found.ok and "the daemon 0.0.1" in found.found and "homebox serve again" in found.fix
    it.systemd(RUNNING, LISTENING)
    assert "sudo systemctl restart homebox" in it.find(service.version).fix
