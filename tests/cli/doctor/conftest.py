"""A machine that a test makes up: its files, programs, accounts and GPU. What the checks do with it is real."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from homebox.cli.doctor.seen import Finding, Group, Machine, Seen
from homebox.client.connection import Daemon
from homebox.config import Settings

Check = Callable[[Seen], Finding]


class MadeUp:
    """`root` is its file system; `has` makes files, `says` a program."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "root"
        self.bin = folder / "bin"
        self.state = folder / "state"
        self.socket = folder / "run" / "api.sock"
        self.bin.mkdir(parents=True)
        self.root.mkdir()
        self.groups: dict[str | int, Group] = {}
        self.machine = Machine(
            root=self.root,
            environ={"PATH": str(self.bin), "HOMEBOX_STATE_DIR": str(self.state)},
            uid=1000,
            groups=frozenset([1000]),
            group_of=lambda which: self.groups.get(which),
            account_of=lambda uid: {0: "root", 1000: "anna"}.get(uid, "homebox"),
            nvml=lambda: None,
            addresses=lambda: ["127.0.0.1", "192.168.1.5"],
        )
        self.settings: dict[str, Any] = {}
        self.health: dict[str, Any] | None = None
        self.daemon = Daemon(socket_path=self.socket)
        self.full = False

    def has(self, path: str, text: str = "", mode: int = 0o644) -> Path:
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(mode)
        return file

    def says(self, program: str, script: str) -> None:
        file = self.bin / program
        file.write_text(f"#!/bin/sh\n{script}\n")
        file.chmod(0o755)

    def is_(self, **changes: Any) -> None:
        self.machine = replace(self.machine, **changes)

    def group(self, name: str, gid: int, *members: str) -> None:
        self.groups[name] = self.groups[gid] = Group(name, gid, members)

    def systemd(self, service: Mapping[str, str], socket: Mapping[str, str], scope: str = "system") -> None:
        """A `systemctl show` that knows these units in this scope, and none in the other."""
        (self.root / "run" / "systemd" / "system").mkdir(parents=True, exist_ok=True)
        known = _blocks({"LoadState": "loaded", **service}, {"LoadState": "loaded", **socket})
        absent = _blocks({"LoadState": "not-found"}, {"LoadState": "not-found"})
        mine, other = (known, absent) if scope == "user" else (absent, known)
        self.says("systemctl", f'case "$*" in *--user*) printf "{mine}";; *) printf "{other}";; esac')

    @property
    def seen(self) -> Seen:
        return Seen(self.machine, self.daemon, Settings(**self.settings), self.full, self.health)

    def find(self, check: Check) -> Finding:
        return check(self.seen)


def _blocks(service: Mapping[str, str], socket: Mapping[str, str]) -> str:
    def block(name: str, values: Mapping[str, str]) -> str:
        return "".join(f"{key}={value}\\n" for key, value in {"Id": name, **values}.items())

    return f"{block('homebox.service', service)}\\n{block('homebox.socket', socket)}"


@pytest.fixture
def it(tmp_path: Path) -> MadeUp:
    if os.getuid() == 0:
        tmp_path.chmod(0o755)
    return MadeUp(tmp_path)
