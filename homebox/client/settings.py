"""Which daemon does this person mean, and with which key? And how do they want their screens?

The environment (HOMEBOX_URL, HOMEBOX_KEY, HOMEBOX_CA, HOMEBOX_SOCKET), else the person's own
`~/.config/homebox/config.toml` with `url`, `key`, `ca` and `socket`, else the daemon of this machine. A key in the file
goes nowhere but to the address in the file, and the file must then be closed to others. `[ui]` and `[keys]` there are
about the screens. It opens no connection.
"""

from __future__ import annotations

import difflib
import os
import re
import stat
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import platformdirs

from homebox.errors import UsageError

KEYS = ("url", "key", "ca", "socket")
UI: Mapping[str, type] = {"theme": str, "mouse": bool, "ascii": bool}
_SECRETS = re.compile(r"(?<=hb_[0-9A-Za-z]{8}_)[0-9A-Za-z]+|(?<=://)[^/@]*(?=@)")


@dataclass(frozen=True)
class Reach:
    """How to reach the daemon. `origin` says for each value that is set where it was said."""

    url: str | None
    key: str | None
    ca: str | None  # a file with the certificates that an https:// address is checked against
    socket: Path | None
    origin: Mapping[str, str]


@dataclass(frozen=True)
class Screens:
    """`[ui]` and `[keys]`: what is not said is None or missing. `keys`: from the id of a binding to its keys."""

    theme: str | None = None
    mouse: bool | None = None
    ascii: bool | None = None
    keys: Mapping[str, str] = field(default_factory=dict)


def path() -> Path:
    """The person's own configuration file; it need not exist."""
    return Path(platformdirs.user_config_path("homebox")) / "config.toml"


def shown(url: str) -> str:
    """The address as a screen or a report may show it: a key in its path (`/k/KEY`) or a name before an @ left out."""
    return _SECRETS.sub("...", url)


def load(environ: Mapping[str, str] = os.environ, file: Path | None = None) -> Reach:
    """Raises UsageError for a file that cannot be read, that others may read with a key in it, or that says what
    nobody knows."""
    place = file or path()
    said = {name: value for name, value in _read(place).items() if name in KEYS}
    values: dict[str, str | None] = {name: environ.get(f"HOMEBOX_{name.upper()}") or None for name in KEYS}
    origin = {name: f"HOMEBOX_{name.upper()}" for name, value in values.items() if value}
    elsewhere = values["socket"] or (values["url"] and values["url"] != said.get("url"))
    for name, value in said.items():
        if not values[name] and not (name == "socket" and values["url"]) and not elsewhere:
            values[name], origin[name] = value, f"{place}: {name}"
    socket = values["socket"]
    return Reach(values["url"], values["key"], values["ca"], Path(socket) if socket else None, origin)


def screens(file: Path | None = None) -> Screens:
    """Raises UsageError as `load` does."""
    said = _read(file or path())
    return Screens(**said.get("ui", {}), keys=said.get("keys", {}))


def _read(place: Path) -> dict[str, Any]:
    try:
        with place.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            data = tomllib.load(file)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise UsageError(f"{place}: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{place}: {error}") from None
    known = (*KEYS, "ui", "keys")
    for name, value in data.items():
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"Did you mean {near[0]!r}?" if near else f"Known keys: {', '.join(known)}."
            raise UsageError(f"{place}: unknown key {name!r}", hint=hint)
        if name in ("ui", "keys"):
            _check_table(place, name, value)
        elif not isinstance(value, str) or not value:
            raise UsageError(f"{place}: {name} must be text in quotes")
    if "key" in data and stat.S_IMODE(mode) & 0o077:
        raise UsageError(
            f"{place} holds a key and may be read by others (mode {stat.S_IMODE(mode):04o})",
            hint=f"chmod 600 {place}",
        )
    return data


def _check_table(place: Path, name: str, value: object) -> None:
    if not isinstance(value, dict):
        raise UsageError(f"{place}: {name} is a table: write [{name}] on a line of its own")
    for each, said in value.items():
        wanted = UI.get(each) if name == "ui" else str
        if wanted is None:
            raise UsageError(f"{place}: unknown key {each!r} in [ui]", hint=f"Known keys: {', '.join(UI)}.")
        if type(said) is not wanted:
            kind = "true or false" if wanted is bool else "text in quotes"
            raise UsageError(f"{place}: {each} in [{name}] must be {kind}")
