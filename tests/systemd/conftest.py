"""One booted machine for all tests here, with our service installed by our own command, and a fresh start for each."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import httpx
import pytest

from tests.daemon.tiny_model import build

from .machine import CannotRun, Machine

T = TypeVar("T")

DROP_INS = "/etc/systemd/system/homebox.service.d"
SCRIPTED = "/opt/homebox/src/tests/systemd/serve_scripted.py"
MEMBER, STRANGER = "anna", "mia"


def until(condition: Callable[[], T], within_s: float = 20.0) -> T:
    """The first true value of `condition`."""
    deadline = time.monotonic() + within_s
    while not (value := condition()):
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.05)
    return value


class Service:
    """The installed service in its machine."""

    SOCKET = "/run/homebox/api.sock"

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.http = httpx.Client(
            transport=httpx.HTTPTransport(uds=str(machine.path(self.SOCKET))),
            base_url="http://box",
            timeout=20,
        )

    def fresh(self) -> None:
        """As after an installation, stopped, with the socket listening: nothing is left of the test before."""
        machine = self.machine
        machine.run("systemctl", "kill", "--signal=KILL", "homebox.service")
        shutil.rmtree(machine.path(DROP_INS), ignore_errors=True)
        self.configure(model="tiny")
        self.drop_in(ExecStart=["", f"/opt/homebox/venv/bin/python {SCRIPTED}"], RestartSec="100ms")
        machine.run("systemctl", "stop", "homebox.socket", "homebox.service")
        machine.run("systemctl", "reset-failed", "homebox.service", "homebox.socket")
        machine.ok("systemctl", "start", "homebox.socket")

    def configure(self, **settings: Any) -> None:
        lines = (f"{key} = {value!r}\n" for key, value in settings.items())
        self.machine.write("/etc/homebox/config.toml", "".join(lines))

    def drop_in(self, name: str = "test", section: str = "Service", **settings: str | list[str]) -> None:
        lines = [f"[{section}]"]
        for key, value in settings.items():
            lines += [f"{key}={one}" for one in ([value] if isinstance(value, str) else value)]
        self.machine.write(f"{DROP_INS}/{name}.conf", "\n".join(lines) + "\n")
        self.machine.ok("systemctl", "daemon-reload")

    # ---- what is asked of it

    def homebox(self, *arguments: str, user: str = "", stdin: str = "") -> Any:
        return self.machine.run("homebox", *arguments, user=user, stdin=stdin)

    def start(self) -> None:
        self.machine.ok("systemctl", "start", "homebox.service")
        until(lambda: self.health()["state"] == "ready")

    def health(self) -> dict[str, Any]:
        return self.http.get("/health").json()  # type: ignore[no-any-return]

    def state(self, unit: str = "homebox.service") -> str:
        return self.machine.show(unit, "ActiveState")

    def said(self) -> str:
        return self.machine.show("homebox.service", "StatusText")

    def begin(self, question: str, *options: str, user: str = MEMBER) -> Any:
        """An `ask` of that person, which has got its first tokens."""
        before = self.tokens()
        asking = self.machine.popen("homebox", "ask", *options, question, user=user, stdout=-1, stderr=-1)
        until(lambda: self.tokens() > before)
        return asking

    def cancel_all(self) -> None:
        for row in self.http.get("/homebox/streams").json()["streams"]:
            self.http.delete(f"/homebox/turns/{row['id']}")

    def tokens(self) -> int:
        rows = self.http.get("/homebox/streams").json()["streams"]
        return sum(row["tokens_out"] for row in rows)


@pytest.fixture(scope="session")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    try:
        machine = Machine(tmp_path_factory.mktemp("machine"))
    except CannotRun as reason:
        pytest.skip(f"no systemd of our own: {reason}")
    try:
        _put_homebox(machine)
        yield machine
    finally:
        machine.close()


@pytest.fixture(scope="session")
def installed(machine: Machine, tmp_path_factory: pytest.TempPathFactory) -> Machine:
    """The service installed by `homebox service install`, with a tiny model, and two people."""
    shutil.copytree(build(tmp_path_factory.mktemp("tiny")), machine.path("/var/lib/homebox/models/tiny"))
    machine.write("/etc/homebox/config.toml", "model = 'tiny'\n")
    machine.ok("homebox", "service", "install")
    for person in (MEMBER, STRANGER):
        machine.ok("useradd", "--create-home", person)
    machine.ok("gpasswd", "-a", MEMBER, "homebox")
    return machine


@pytest.fixture
def service(installed: Machine) -> Iterator[Service]:
    found = Service(installed)
    found.fresh()
    yield found
    found.http.close()


def _put_homebox(machine: Machine) -> None:
    """An installation in /opt/homebox such as scripts/install makes, of the interpreter and the packages that run this
    test. Skips where the interpreter does not run from another place."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    venv = "/opt/homebox/venv"
    machine.write(f"{venv}/pyvenv.cfg", f"home = /opt/homebox/python/bin\nversion = {version}\n")
    machine.write(
        f"{venv}/lib/python{version}/site-packages/here.pth", "/opt/homebox/src\n/opt/homebox/site\n"
    )
    machine.path(f"{venv}/bin").mkdir()
    machine.path(f"{venv}/bin/python").symlink_to(f"/opt/homebox/python/bin/python{version}")
    entry = f"#!{venv}/bin/python\nfrom homebox.cli.main import main\nmain()\n"
    machine.write(f"{venv}/bin/homebox", entry, 0o755)
    link = machine.path("/usr/local/bin/homebox")
    link.unlink(missing_ok=True)
    link.symlink_to(f"{venv}/bin/homebox")
    # An interpreter with a shared library looks for it where it was built, which may be closed to a service user, and
    # would find another one of this machine.
    machine.write("/etc/ld.so.conf.d/00-homebox-test.conf", "/opt/homebox/python/lib\n")
    machine.ok("ldconfig")
    tried = machine.run("setpriv", "--reuid=nobody", "--clear-groups", "--", "homebox", "--version")
    if "homebox" not in tried.stdout:
        pytest.skip(f"this interpreter does not run for a service user: {tried.stderr.strip()[-300:]}")
