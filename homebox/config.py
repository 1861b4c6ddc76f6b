"""Which setting holds, and where did it come from?

defaults < /etc/homebox/config.toml < /etc/homebox/conf.d/*.toml < HOMEBOX_* < flags. Every key is typed; an unknown
key or a wrong type is an error that names the file, the line and the nearest known key. Paths of a box that is not
installed system-wide follow XDG.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import platformdirs

from homebox.errors import UsageError

SYSTEM_SOCKET = Path("/run/homebox/api.sock")
_UNITS = {"": 1, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "KB": 10**3, "MB": 10**6, "GB": 10**9, "B": 1}


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The daemon's settings. Sizes are text with a unit ("2GiB") in files, bytes through `size_bytes`."""

    socket: str = ""  # empty: see `socket_path`
    listen: str = ""  # "HOST:PORT" opens TCP; a key is needed for every request there
    allowed_hosts: list[
        str
    ] = []  # names of this box that TCP clients may use, beside its address and host name
    state_dir: str = ""
    model: str = "smollm2-135m"
    device: str = "auto"
    kv_memory: str = "auto"
    max_running: int = 32
    max_chunk_tokens: int = 512
    threads: int = 0
    queue_per_person: int = 32
    queue_total: int = 256
    max_answer_tokens: int = 0  # 0: to the end of the context
    max_context: int = 0  # 0: the model's
    drain_s: float = 20.0
    log_format: str = "text"
    step_log: str = ""  # a file that gets one JSON line for each step of the engine


@dataclass(frozen=True)
class Loaded:
    """Settings and, for each key, where its value came from."""

    settings: Settings
    origin: Mapping[str, str]


def state_dir(settings: Settings | None = None) -> Path:
    """Where models, keys and chats live: the setting, systemd's STATE_DIRECTORY, /var/lib/homebox for root's
    installed box, else the person's own XDG directory."""
    named = (settings.state_dir if settings else "") or os.environ.get("HOMEBOX_STATE_DIR", "")
    named = named or os.environ.get("STATE_DIRECTORY", "")
    return Path(named) if named else Path(platformdirs.user_data_path("homebox"))


def socket_path(settings: Settings | None = None) -> Path:
    """The socket that a daemon without systemd would open: the setting or $XDG_RUNTIME_DIR/homebox/api.sock."""
    if settings and settings.socket:
        return Path(settings.socket)
    with (
        warnings.catch_warnings()
    ):  # without a login session there is no XDG_RUNTIME_DIR: the fallback is fine
        warnings.simplefilter("ignore")
        return Path(platformdirs.user_runtime_path("homebox")) / "api.sock"


def find_socket() -> Path:
    """The socket that a client should speak to: HOMEBOX_SOCKET, the system's, then the person's own."""
    if named := os.environ.get("HOMEBOX_SOCKET"):
        return Path(named)
    if SYSTEM_SOCKET.exists():
        return SYSTEM_SOCKET
    return socket_path()


def size_bytes(text: str) -> int:
    """`"2GiB"` in bytes; `"auto"` is 0. Raises UsageError for anything else."""
    if text.strip().lower() == "auto":
        return 0
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", text)
    if not match or match[2].upper() not in _UNITS:
        raise UsageError(f"{text!r} is not a size", hint='Write it like "2GiB", "500MB" or "auto".')
    return int(float(match[1]) * _UNITS[match[2].upper()])


def load(
    flags: Mapping[str, Any] | None = None,
    *,
    config: Path | None = None,
    environ: Mapping[str, str] | None = None,
    root: Path = Path("/etc/homebox"),
) -> Loaded:
    """Merge all sources. `flags` holds only what was really given. Raises UsageError."""
    environ = os.environ if environ is None else environ
    values: dict[str, Any] = {}
    origin: dict[str, str] = {}
    for file in [config] if config else [root / "config.toml", *sorted((root / "conf.d").glob("*.toml"))]:
        if config is None and not file.exists():
            continue
        for key, value in _read(file).items():
            values[key], origin[key] = value, str(file)
    for key in Settings.__struct_fields__:
        if (name := f"HOMEBOX_{key.upper()}") in environ:
            value = environ[name].split(",") if key == "allowed_hosts" else environ[name]
            values[key], origin[key] = value, f"environment {name}"
    for key, value in (flags or {}).items():
        if value is not None:
            values[key], origin[key] = value, "flag"
    try:
        settings = msgspec.convert(values, Settings, strict=False)
    except msgspec.ValidationError as error:
        match = re.search(r"`\$\.(\w+)`", str(error))
        key = match[1] if match else ""
        raise UsageError(f"{origin.get(key, 'configuration')}: {key or 'a setting'}: {error}") from None
    size_bytes(settings.kv_memory)
    for key in ("max_running", "max_chunk_tokens", "queue_per_person", "queue_total"):
        if getattr(settings, key) < 1:
            raise UsageError(
                f"{origin.get(key, 'default')}: {key} is {getattr(settings, key)}; it must be at least 1"
            )
    return Loaded(settings, {k: origin.get(k, "default") for k in Settings.__struct_fields__})


def _read(file: Path) -> dict[str, Any]:
    try:
        text = file.read_text()
        data = tomllib.loads(text)
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{file}: {error}") from None
    for key in data:
        if key not in Settings.__struct_fields__:
            line = next(
                (
                    n
                    for n, t in enumerate(text.splitlines(), 1)
                    if re.match(rf"\s*\[?\[?{re.escape(key)}\b", t)
                ),
                0,
            )
            near = difflib.get_close_matches(key, Settings.__struct_fields__, 1)
            hint = (
                f"Did you mean {near[0]!r}?"
                if near
                else f"Known keys: {', '.join(Settings.__struct_fields__)}."
            )
            raise UsageError(f"{file}, line {line}: unknown key {key!r}", hint=hint)
    return data
