"""Under a real systemd: does installing do what it says, twice the same, and taking away leave what is the owner's?"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest

from homebox.service.units import UNITS

from .conftest import DROP_INS, MEMBER, SCRIPTED, Service, until
from .machine import CannotRun, Machine

UNITS_AT = "/etc/systemd/system"
SYSUSERS_AT = "/etc/sysusers.d/homebox.conf"
SOURCES = "/opt/homebox/src"
USER_DROP_IN = f"""[Service]
ExecStart=
ExecStart=/opt/homebox/venv/bin/python {SCRIPTED}
"""


def etc(machine: Machine) -> dict[str, str]:
    """Everything that an installation may write."""
    files = [machine.path(f"{UNITS_AT}/{name}") for name in UNITS] + [machine.path(SYSUSERS_AT)]
    return {file.name: file.read_text() for file in files if file.exists()}


def test_an_installation_is_said_before_done_once_and_then_unchanged(service: Service) -> None:
    machine = service.machine
    drop_in = machine.path(f"{DROP_INS}/test.conf").read_text()
    machine.ok("homebox", "service", "uninstall")
    assert etc(machine) == {}

    said = machine.ok("homebox", "service", "install", "--dry-run")
    assert etc(machine) == {} and machine.show("homebox.socket", "LoadState") == "not-found"
    for line in (
        f"would write {SYSUSERS_AT}", f"would write {UNITS_AT}/homebox.socket",
        f"would write {UNITS_AT}/homebox.service", "would run   systemctl daemon-reload",
        "would run   systemctl enable homebox.socket homebox.service",
        "would run   systemctl start homebox.socket homebox.service",
        "    ListenStream=/run/homebox/api.sock", "    ExecStart=/opt/homebox/venv/bin/homebox serve",
    ):  # fmt: skip
        assert f"{line}\n" in said

    done = machine.ok("homebox", "service", "install")
    assert sorted(etc(machine)) == ["homebox.conf", "homebox.service", "homebox.socket"]
    assert f"write       {UNITS_AT}/homebox.service" in done and "gpasswd -a NAME homebox" in done
    for unit in UNITS:
        assert (service.state(unit), machine.show(unit, "UnitFileState")) == ("active", "enabled")
    again = machine.ok("homebox", "service", "install").splitlines()
    steps = [line for line in again if not line.startswith("yours")]
    assert steps and all(line.startswith("unchanged") for line in steps), again
    assert f"yours       {DROP_INS}/test.conf" in again
    assert machine.path(f"{DROP_INS}/test.conf").read_text() == drop_in


def test_a_unit_that_was_changed_by_hand_is_put_right_and_the_running_service_left_alone(
    service: Service,
) -> None:
    machine = service.machine
    service.start()
    pid = machine.show("homebox.service", "MainPID")
    machine.write(f"{UNITS_AT}/homebox.service", "[Service]\nExecStart=/bin/true\n")
    done = machine.ok("homebox", "service", "install")
    assert f"write       {UNITS_AT}/homebox.service" in done and "sudo homebox service restart" in done
    assert (
        machine.show("homebox.service", "MainPID") == pid and "Type=notify" in etc(machine)["homebox.service"]
    )


def test_taking_it_away_leaves_the_data_and_says_where_it_is(service: Service) -> None:
    machine = service.machine
    service.start()
    before = {str(path) for path in machine.path("/var/lib/homebox").rglob("*")}
    said = machine.ok("homebox", "service", "uninstall")
    assert etc(machine) == {} and not machine.path(Service.SOCKET).exists()
    assert before == {str(path) for path in machine.path("/var/lib/homebox").rglob("*")}
    for kept in (
        "/var/lib/homebox (models, chats and keys)",
        "/etc/homebox (configuration)",
        f"{DROP_INS}/test.conf",
    ):
        assert f"kept        {kept}" in said
    assert "sudo rm -r /var/lib/homebox" in said and "userdel homebox" in said
    assert "nothing of homebox is installed" in machine.ok("homebox", "service", "uninstall")
    gone = service.homebox("service", "status")
    assert gone.returncode == 6 and "sudo homebox service install" in gone.stderr
    machine.ok("homebox", "service", "install")
    assert service.homebox("ask", "[[say=same_as_before]]", user=MEMBER).stdout == "same as before\n"


def test_people_who_may_not_change_the_service_are_told_how(service: Service) -> None:
    for verb in ("install", "stop", "reload"):
        refused = service.homebox("service", verb, user=MEMBER)
        assert refused.returncode == 7 and f"sudo homebox service {verb}" in refused.stderr
        assert f"homebox service {verb} --user" in refused.stderr
    seen = service.homebox("service", "status", user=MEMBER)
    assert (seen.returncode, seen.stdout.splitlines()[0]) == (0, "listening: the first question starts it")


def test_the_journal_is_one_command_away(service: Service) -> None:
    service.start()
    until(
        lambda: "listening on /run/homebox/api.sock" in service.homebox("service", "logs", "-n", "50").stdout
    )


def test_an_interpreter_that_the_service_could_not_read_is_refused(service: Service) -> None:
    machine = service.machine
    shutil.copytree(
        machine.path("/opt/homebox/venv"), machine.path("/root/venv"), symlinks=True, dirs_exist_ok=True
    )
    code = "from homebox.cli.main import main; main()"
    refused = machine.run("/root/venv/bin/python", "-c", code, "service", "install")
    assert refused.returncode == 2 and "/root is closed to it" in refused.stderr
    assert "scripts/install" in refused.stderr and "--user" in refused.stderr


def test_what_root_fetches_belongs_to_the_service(service: Service, tmp_path: Path) -> None:
    machine = service.machine
    service.start()  # systemd has given the state directory to its user
    code = (
        "from pathlib import Path; from homebox import config; from homebox.library.store import Library; import shutil\n"
        "library = Library(config.state_dir())\n"
        "with library.staging('copy') as staged:\n"
        "    shutil.copytree('/var/lib/homebox/models/tiny', staged, dirs_exist_ok=True)\n"
        "    library.publish('copy', staged)\n"
    )
    machine.ok("/opt/homebox/venv/bin/python", "-c", code)
    owners = machine.ok("find", "/var/lib/homebox/models/copy", "-printf", "%u %g\n")
    machine.ok("rm", "-r", "/var/lib/homebox/models/copy")
    assert set(owners.splitlines()) == {"homebox homebox"}


def test_the_install_script_does_it_all_and_then_nothing(service: Service) -> None:
    """But for fetching packages: those of this test are there, and only homebox itself is built and installed."""
    machine = service.machine
    machine.ok("homebox", "service", "uninstall")
    machine.ok("useradd", "leo")
    offline = ("PIP_NO_INDEX=1", "PIP_NO_DEPS=1", "PIP_NO_BUILD_ISOLATION=0")
    python = "HOMEBOX_PYTHON=/opt/homebox/python/bin/python3"
    command = ["env", "SUDO_USER=leo", python, *offline, f"{SOURCES}/scripts/install"]

    said = machine.ok(*command, "--dry-run")
    assert "would run   /opt/homebox/venv/bin/python -m pip install '/opt/homebox/src[engine]'" in said
    assert "would run   gpasswd -a leo homebox-admin" in said and etc(machine) == {}

    said = machine.ok(*command)
    assert f"write       {UNITS_AT}/homebox.service" in said and "next        leo logs in again" in said
    assert {"homebox", "homebox-admin"} <= set(machine.ok("id", "-nG", "leo").split())
    where = machine.ok(
        "sh", "-c", "cd /; /opt/homebox/venv/bin/python -c 'import homebox; print(homebox.__file__)'"
    )
    assert where.startswith("/opt/homebox/venv/lib/")
    assert service.homebox("ask", "[[say=installed]]", user="leo").stdout == "installed\n"

    again = machine.ok(*command)
    done = [line for line in again.splitlines() if line.startswith(("write ", "run "))]
    assert done == [], again


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_fresh_machine_is_served_after_one_command(tmp_path_factory: pytest.TempPathFactory) -> None:
    """All of it, with this machine's network: the system's Python, every package, the model."""
    try:
        machine = Machine(tmp_path_factory.mktemp("fresh"), network=True, room="8g")
    except CannotRun as reason:
        pytest.skip(f"no systemd of our own: {reason}")
    try:
        machine.ok("rm", "-f", "/usr/local/bin/homebox")
        machine.ok("useradd", "--create-home", MEMBER)
        passed_on = [
            f"{k}={v}" for k, v in os.environ.items() if re.search("PIP_|SSL|CERT|CA_|PROXY", k.upper())
        ]
        command = ["env", f"SUDO_USER={MEMBER}", *passed_on, f"{SOURCES}/scripts/install"]
        first = machine.run(*command, timeout_s=1500)
        assert first.returncode == 0, first.stdout + first.stderr[-2000:]
        asked = machine.run("homebox", "ask", "--max-tokens", "8", "Name a colour.", user=MEMBER)
        assert asked.returncode == 0 and asked.stdout.strip(), asked.stderr
        again = machine.ok(*command).splitlines()
        assert not [line for line in again if line.startswith(("run ", "write "))], again
    finally:
        machine.close()


def test_the_install_script_refuses_an_interpreter_in_a_home_directory(service: Service) -> None:
    service.machine.ok("ln", "-sfn", "/opt/homebox/python", "/root/python")
    fake = "#!/bin/sh\necho True /root/python/bin/python3 /root/python\n"
    service.machine.write("/root/python3", fake, 0o755)
    refused = service.machine.run("env", "HOMEBOX_PYTHON=/root/python3", f"{SOURCES}/scripts/install")
    assert refused.returncode == 2 and "/root/python3 (in a home directory" in refused.stderr
    assert "apt install python3 python3-venv" in refused.stderr


def test_a_person_may_have_a_box_of_their_own(installed: Machine) -> None:
    """`--user`, with that person's real systemd."""
    machine = installed
    if machine.run("systemctl", "cat", "dbus.service").returncode:
        pytest.skip("there is no dbus")
    machine.path(f"{UNITS_AT}/systemd-logind.service").unlink(missing_ok=True)
    machine.ok("systemctl", "daemon-reload")
    machine.ok("systemctl", "start", "dbus.service", "systemd-logind.service")
    machine.ok("useradd", "--create-home", "zoe")
    machine.ok("loginctl", "enable-linger", "zoe")
    uid = machine.ok("id", "-u", "zoe").strip()
    runtime = f"/run/user/{uid}"
    until(lambda: machine.path(f"{runtime}/systemd/private").exists())
    shutil.copytree(
        machine.path("/var/lib/homebox/models/tiny"),
        machine.path("/home/zoe/.local/share/homebox/models/tiny"),
    )
    machine.write("/home/zoe/.config/systemd/user/homebox.service.d/test.conf", USER_DROP_IN)
    machine.ok("chown", "-R", "zoe:zoe", "/home/zoe")

    def homebox(*arguments: str) -> str:
        command = ["env", f"XDG_RUNTIME_DIR={runtime}", "homebox", *arguments]
        return machine.ok(*command, user="zoe")

    said = homebox("service", "install", "--user")
    assert "write       /home/zoe/.config/systemd/user/homebox.socket" in said
    assert f"homebox runs. Its socket: {runtime}/homebox/api.sock" in said
    assert all(
        line.startswith(("unchanged", "yours"))
        for line in homebox("service", "install", "--user").splitlines()
    )
    machine.ok("systemctl", "stop", "homebox.socket", "homebox.service")
    machine.path(f"{UNITS_AT}/homebox.socket").rename(machine.path("/root/homebox.socket"))
    try:
        assert homebox("ask", "[[say=mine_alone]]") == "mine alone\n"
    finally:
        machine.path("/root/homebox.socket").rename(machine.path(f"{UNITS_AT}/homebox.socket"))
    until(lambda: homebox("service", "status", "--user").startswith("running: tiny ready"))
    left = homebox("service", "uninstall", "--user")
    assert "kept        /home/zoe/.local/share/homebox" in left and "sudo" not in left
