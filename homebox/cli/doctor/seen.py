"""What do the checks look at, and what do they say?

A `Machine` is everything outside this program that a check may ask: files below a root, the environment, the account,
programs, the GPU library. `Seen` is what several checks need and is asked for once. A `Finding` is what one check says.
"""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from homebox import config
from homebox.client.connection import Daemon
from homebox.config import Settings

PROGRAM_S = 1.0  # a program that says nothing for so long is not waited for
SERVICE_STATE = "/var/lib/homebox"


class Finding(msgspec.Struct, frozen=True):
    """`fix` is the next step. Where nothing is wrong it is empty, or advice."""

    check: str
    ok: bool
    found: str
    fix: str = ""


@dataclass(frozen=True)
class Group:
    name: str
    gid: int
    members: tuple[str, ...]


def group_of(which: str | int) -> Group | None:
    """The group of this name or number."""
    try:
        found = grp.getgrnam(which) if isinstance(which, str) else grp.getgrgid(which)
    except (KeyError, OverflowError):
        return None
    return Group(found.gr_name, found.gr_gid, tuple(found.gr_mem))


def account_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid-{uid}"


def nvml() -> Any:
    """NVIDIA's library, begun; None where there is no driver that it could speak to."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml


def addresses() -> list[str]:
    """The IPv4 addresses of this machine."""
    import psutil

    found = psutil.net_if_addrs().values()
    return [each.address for every in found for each in every if each.family == socket.AF_INET]


@dataclass(frozen=True)
class Machine:
    """This machine, or one that a test has made up."""

    root: Path = Path("/")
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    uid: int = field(default_factory=os.getuid)
    groups: frozenset[int] = field(default_factory=lambda: frozenset([os.getgid(), *os.getgroups()]))
    python: str = sys.executable
    group_of: Callable[[str | int], Group | None] = group_of
    account_of: Callable[[int], str] = account_of
    nvml: Callable[[], Any] = nvml
    addresses: Callable[[], list[str]] = addresses
    now: Callable[[], float] = time.time

    @property
    def name(self) -> str:
        return self.account_of(self.uid)

    def at(self, path: str | Path) -> Path:
        return self.root / str(path).lstrip("/")

    def run(self, *command: str) -> str | None:
        """What a program says; None where it is not there, fails, or takes too long."""
        program = shutil.which(command[0], path=self.environ.get("PATH"))
        if program is None:
            return None
        try:
            done = subprocess.run(
                [program, *command[1:]],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=PROGRAM_S,
                check=False,
                env={**self.environ, "LC_ALL": "C"},
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout if done.returncode == 0 else None

    @property
    def has_systemd(self) -> bool:
        return self.at("/run/systemd/system").is_dir()


@dataclass(frozen=True)
class Units:
    """What systemd knows of the service and its socket. `scope` is "" for the system's, "--user " for a person's own."""

    service: Mapping[str, str]
    socket: Mapping[str, str]
    scope: str = ""

    @property
    def installed(self) -> bool:
        return "loaded" in (self.service.get("LoadState"), self.socket.get("LoadState"))

    @property
    def for_all(self) -> bool:
        """Installed for the machine, and run by an account of its own."""
        return self.installed and not self.scope


_PROPERTIES = "Id,LoadState,ActiveState,SubState,UnitFileState,Result,NRestarts,ExecStart"


def units(machine: Machine) -> Units:
    """The system's units, or a person's own where only those are installed."""
    found = Units({}, {})
    if not machine.has_systemd:
        return found
    for scope in ((), ("--user",)):
        said = machine.run(
            "systemctl", *scope, "show", "homebox.service", "homebox.socket", f"-p{_PROPERTIES}"
        )
        blocks = [
            dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
            for block in (said or "").split("\n\n")
        ]
        by_id = {block.get("Id", ""): block for block in blocks}
        found = Units(
            by_id.get("homebox.service", {}), by_id.get("homebox.socket", {}), "--user " if scope else ""
        )
        if found.installed:
            return found
    return found


@dataclass
class Seen:
    """`full`: read every byte of every model. `health` is what the daemon says of itself, once it was asked."""

    machine: Machine
    daemon: Daemon
    settings: Settings
    full: bool = False
    health: dict[str, Any] | None = None

    @cached_property
    def units(self) -> Units:
        return units(self.machine)

    @property
    def state(self) -> Path:
        """The state directory of the daemon that is meant: the service's, where one is installed for all."""
        environ = self.machine.environ
        named = self.settings.state_dir or environ.get("HOMEBOX_STATE_DIR") or environ.get("STATE_DIRECTORY")
        if named:
            return Path(named)
        return self.machine.at(SERVICE_STATE) if self.units.for_all else config.state_dir(self.settings)

    @property
    def ready(self) -> bool:
        return self.health is not None and self.health.get("state") == "ready"


def size_of(folder: Path) -> tuple[int, int]:
    """Bytes and number of the plain files in a folder. Raises OSError where it cannot be looked into."""
    found = [0, 0]
    for entry in os.scandir(folder):
        with contextlib.suppress(FileNotFoundError):
            if entry.is_file(follow_symlinks=False):
                found[0] += entry.stat(follow_symlinks=False).st_size
                found[1] += 1
    return found[0], found[1]
