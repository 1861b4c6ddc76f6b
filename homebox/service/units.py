"""What is in the unit files, for the machine and for one person's own box?

The texts live in `units/`, which is the repository's `systemd/`. A person's own box gets the same ones without what
only the machine's systemd can do: another user, directories under /var, device and mount rules.
"""

from __future__ import annotations

import importlib.resources
import os
import re
from dataclasses import dataclass
from pathlib import Path

import platformdirs

SOCKET, SERVICE = "homebox.socket", "homebox.service"
UNITS = (SOCKET, SERVICE)
SYSUSERS = "homebox.sysusers"
PROGRAM = "/opt/homebox/venv/bin/homebox"  # as the files in `units/` have it

# What a person's systemd has instead; None: the line goes, with the comment above it.
_FOR_ONE_PERSON: dict[str, str | None] = {
    "After": "homebox.socket",
    "ListenStream": "%t/homebox/api.sock",
    "SocketUser": None,
    "SocketGroup": None,
    "SocketMode": "0600",
    "DirectoryMode": "0700",
    "User": None,
    "Group": None,
    "StateDirectory": None,
    "StateDirectoryMode": None,
    "CacheDirectory": None,
    "CacheDirectoryMode": None,
    "ConfigurationDirectory": None,
    "RuntimeDirectory": None,
    "RuntimeDirectoryMode": None,
    "OOMScoreAdjust": None,
    "LimitMEMLOCK": None,
    "LimitNOFILE": None,
    "CapabilityBoundingSet": None,
    "AmbientCapabilities": None,
    "DevicePolicy": None,
    "DeviceAllow": None,
    "PrivateDevices": None,
    "ProtectSystem": None,
    "ProtectHome": None,
    "PrivateTmp": None,
    "ProtectProc": None,
    "ProtectClock": None,
    "ProtectControlGroups": None,
    "ProtectHostname": None,
    "ProtectKernelLogs": None,
    "ProtectKernelModules": None,
    "ProtectKernelTunables": None,
    "RemoveIPC": None,
}
_WANTED_BY = {"multi-user.target": "default.target"}


@dataclass(frozen=True)
class Place:
    """Where one box has what: the machine's, or one person's."""

    user: bool
    units: Path
    sysusers: Path | None
    state: Path
    cache: Path
    configuration: Path
    socket: str


def machine() -> Place:
    return Place(
        user=False,
        units=Path("/etc/systemd/system"),
        sysusers=Path("/etc/sysusers.d/homebox.conf"),
        state=Path("/var/lib/homebox"),
        cache=Path("/var/cache/homebox"),
        configuration=Path("/etc/homebox"),
        socket="/run/homebox/api.sock",
    )


def person() -> Place:
    configuration = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return Place(
        user=True,
        units=configuration / "systemd" / "user",
        sysusers=None,
        state=Path(platformdirs.user_data_path("homebox")),
        cache=Path(platformdirs.user_cache_path("homebox")),
        configuration=Path("/etc/homebox"),
        socket=f"/run/user/{os.getuid()}/homebox/api.sock",
    )


def files(place: Place, program: Path) -> dict[Path, str]:
    """Every file of an installation whose program is `program`, with its text, in the order to write them."""
    found = {} if place.sysusers is None else {place.sysusers: _source(SYSUSERS)}
    for name in UNITS:
        text = _source(name).replace(PROGRAM, _escaped(program))
        found[place.units / name] = _for_one_person(text) if place.user else text
    return found


def drop_ins(place: Place) -> list[Path]:
    """What the owner of the machine has added to our units; never ours to touch."""
    return sorted(file for name in UNITS for file in (place.units / f"{name}.d").glob("*.conf"))


def _source(name: str) -> str:
    return (importlib.resources.files("homebox.service") / "units" / name).read_text()


def _escaped(program: Path) -> str:
    text = str(program).replace("%", "%%")
    return f'"{text}"' if re.search(r"\s", text) else text


def _for_one_person(text: str) -> str:
    out: list[str] = []
    comments: list[str] = []
    for line in text.splitlines():
        if line.startswith("#"):
            comments.append(line)
            continue
        key, equals, value = line.partition("=")
        wanted = _FOR_ONE_PERSON.get(key, value) if equals else value
        if wanted is not None:
            out += [*comments, f"{key}={_WANTED_BY.get(wanted, wanted)}" if equals else line]
        comments = []
    return "\n".join(out) + "\n"
