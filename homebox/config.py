"""Which setting holds, and where did it come from?

defaults < /etc/homebox/config.toml < /etc/homebox/conf.d/*.toml < HOMEBOX_* < flags. Every key is typed and has its
range; an unknown key, a wrong type or a value that no daemon could run with is an error that names the key and where it
was said. Paths of a box that is not installed system-wide follow XDG.
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
from typing import Any, NoReturn

import msgspec
import platformdirs

from homebox.errors import HomeboxError, NotAllowed, UsageError
from homebox.rules import Rules, convert_roles

SYSTEM_SOCKET = Path("/run/homebox/api.sock")
SYSTEM_STATE = Path("/var/lib/homebox")
SYSTEM_UNIT = Path("/etc/systemd/system/homebox.socket")
SYSTEM_CONFIG = Path("/etc/homebox")
_UNITS = {"": 1, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "KB": 10**3, "MB": 10**6, "GB": 10**9, "B": 1}
_DEVICE = re.compile(r"auto|cpu|cuda(:[0-9]+)?")
_KERNELS = ("auto", "native", "reference")
_ATTENTION = ("auto", "own")
_QUANTIZE = ("auto", "none", "int8", "int4", "fp8")
_KV_TYPES = ("auto", "bf16", "int8", "fp8")
_LOG_FORMATS = ("text", "json")
_LISTS = ("allowed_hosts", "allowed_origins")
_MIN_KV_BYTES = 2**20
_SOCKET_BYTES = 107  # unix(7): sun_path holds 108 with the NUL
_CORES = os.cpu_count() or 1
# Both ends included.
_RANGES: Mapping[str, tuple[float, float]] = {
    "max_running": (1, 1024),
    "max_chunk_tokens": (1, 65536),
    "threads": (0, 4 * _CORES),
    "queue_per_person": (1, 100_000),
    "queue_total": (1, 100_000),
    "max_answer_tokens": (0, 2**31 - 1),
    "max_context": (0, 2**31 - 1),
    "drain_s": (0, 86400),
    "idle_unload_s": (0, 30 * 86400),
}
MIN_CONTEXT = 16
_IN_WORDS = {
    "`str`": 'text in quotes, like "2GiB"',
    "`int`": "a whole number",
    "`float`": "a number",
    "`bool`": "true or false",
    "`array`": 'a list, like ["box.home"]',
}


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
    kv_host_memory: str = "auto"  # for conversations that have left the device; "0": none
    max_running: int = 32
    max_chunk_tokens: int = 512
    threads: int = 0
    kernels: str = "auto"  # native: refuse to start without the compiled ones; reference: never use them
    attention: str = (
        "auto"  # own: chunks of prompts, on a GPU, by our kernels also where a library is installed
    )
    quantize: str = "auto"  # weights as the file has them; none: as fp32; int8, int4, fp8 (on a GPU): float ones in so many bits
    kv_type: str = "auto"  # of keys and values, on a GPU
    queue_per_person: int = 32
    queue_total: int = 256
    max_answer_tokens: int = 0  # 0: to the end of the context
    max_context: int = 0  # 0: the model's
    drain_s: float = 20.0
    idle_unload_s: float = 0.0  # the engine leaves after so long without a request; 0: never
    log_format: str = "text"
    metrics_people: bool = True  # /metrics counts by person, with names
    step_log: str = ""  # a file that gets one JSON line for each step of the engine
    allowed_origins: list[str] = []  # web pages from elsewhere that may use TCP, like "https://notes.home"
    roles: dict[str, Rules] = {}  # [roles.kid] and so on: what a role may do, where its default is not right
    tls_cert: str = ""  # PEM: the certificate that TCP shows, then its chain; with it goes `tls_key`
    tls_key: str = ""


@dataclass(frozen=True)
class Loaded:
    """Settings and, for each key, where its value came from."""

    settings: Settings
    origin: Mapping[str, str]


@dataclass
class Current:
    """The settings that hold now: one of these a daemon. A reload replaces them, so who needs one asks here each time."""

    settings: Settings


def state_dir(settings: Settings | None = None) -> Path:
    """Where models, keys and chats live: the setting, systemd's STATE_DIRECTORY, /var/lib/homebox where it exists and
    we are root or its owner (so `sudo homebox ...` means the machine's box), else the person's own XDG directory."""
    named = (settings.state_dir if settings else "") or os.environ.get("HOMEBOX_STATE_DIR", "")
    named = named or os.environ.get("STATE_DIRECTORY", "")
    if named:
        return Path(named)
    try:
        if os.geteuid() in (0, SYSTEM_STATE.stat().st_uid):
            return SYSTEM_STATE
    except OSError:
        pass  # there is none
    return Path(platformdirs.user_data_path("homebox"))


def socket_path(settings: Settings | None = None) -> Path:
    """The socket that a daemon without systemd would open: the setting or $XDG_RUNTIME_DIR/homebox/api.sock."""
    if settings and settings.socket:
        return Path(settings.socket)
    with (
        warnings.catch_warnings()
    ):  # without a login session there is no XDG_RUNTIME_DIR: the fallback is fine
        warnings.simplefilter("ignore")
        return Path(platformdirs.user_runtime_path("homebox")) / "api.sock"


def check_socket_path(path: Path) -> None:
    """Raises UsageError for a path that is too long for a socket."""
    if (length := len(os.fsencode(path))) > _SOCKET_BYTES:
        raise UsageError(
            f"the socket's path has {length} bytes; a socket's may have at most {_SOCKET_BYTES}: {path}",
            hint="Name a shorter one with --socket.",
        )


def check_state_dir(state: Path) -> None:
    """Raises UsageError or NotAllowed where nothing can be written under `state`. It is not made, nothing is left."""
    import tempfile

    place = state
    while not os.path.lexists(place) and place != place.parent:
        place = place.parent
    try:
        with tempfile.TemporaryFile(dir=place):
            return
    except OSError as error:
        kind: type[HomeboxError] = NotAllowed if isinstance(error, PermissionError) else UsageError
        why = f"{place}: {error.strerror or error}" if place != state else error.strerror or str(error)
        raise kind(
            f"the state directory {state} cannot be written: {why}",
            hint="Set HOMEBOX_STATE_DIR to a directory of your own.",
        ) from None


def find_socket() -> Path:
    """The socket that a client should speak to: HOMEBOX_SOCKET, the machine's, then the person's own. Where both are
    missing, the one that an installed service would have."""
    if named := os.environ.get("HOMEBOX_SOCKET"):
        return Path(named)
    if SYSTEM_SOCKET.exists():
        return SYSTEM_SOCKET
    own = socket_path()
    return SYSTEM_SOCKET if SYSTEM_UNIT.exists() and not own.exists() else own


def is_auto(text: str) -> bool:
    return text.strip().lower() == "auto"


def size_bytes(text: str) -> int:
    """`"2GiB"` in bytes; `"auto"` is 0. Raises UsageError for anything else."""
    if is_auto(text):
        return 0
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", text)
    if not match or match[2].upper() not in _UNITS:
        raise UsageError(f"{text!r} is not a size", hint='Write it like "2GiB", "500MB" or "auto".')
    return int(float(match[1]) * _UNITS[match[2].upper()])


def files(root: Path = SYSTEM_CONFIG) -> list[Path]:
    """The daemon's configuration files in the order in which they are read; the first need not exist."""
    return [root / "config.toml", *sorted((root / "conf.d").glob("*.toml"))]


def load(
    flags: Mapping[str, Any] | None = None,
    *,
    config: Path | None = None,
    environ: Mapping[str, str] | None = None,
    root: Path = SYSTEM_CONFIG,
) -> Loaded:
    """Merge all sources. `flags` holds only what was really given. Raises UsageError."""
    environ = os.environ if environ is None else environ
    values: dict[str, Any] = {}
    origin: dict[str, str] = {}
    for file in [config] if config else files(root):
        if config is None and not file.exists():
            continue
        for key, value in _read(file).items():
            if key == "roles":  # a file speaks of the roles it names, not of the others
                value = values.get(key, {}) | convert_roles(value, str(file))
            values[key], origin[key] = value, str(file)
    for key in Settings.__struct_fields__:
        if (name := f"HOMEBOX_{key.upper()}") in environ:
            value = environ[name].split(",") if key in _LISTS else environ[name]
            values[key], origin[key] = value, f"environment {name}"
    for key, value in (flags or {}).items():
        if value is not None:
            values[key], origin[key] = value, "flag"
    settings = _typed(values, origin)
    _check(settings, origin)
    return Loaded(settings, {k: origin.get(k, "default") for k in Settings.__struct_fields__})


def _typed(values: Mapping[str, Any], origin: Mapping[str, str]) -> Settings:
    try:
        return msgspec.convert(values, Settings, strict=False)
    except msgspec.ValidationError as error:
        match = re.search(r"`\$\.(\w+)", str(error))
        key = match[1] if match else ""
        wanted = re.search(r"Expected (`\w+`)", str(error))
        words = _IN_WORDS.get(wanted[1], str(error)) if wanted else str(error)
        raise UsageError(f"{_said(key, origin)} is {values.get(key)!r}; it must be {words}") from None


def _check(settings: Settings, origin: Mapping[str, str]) -> None:
    """Raises UsageError for the first value that no daemon could run with."""

    def refuse(key: str, must: str, hint: str | None = None) -> NoReturn:
        raise UsageError(f"{_said(key, origin)} is {getattr(settings, key)!r}; it must be {must}", hint=hint)

    for key, (least, most) in _RANGES.items():
        if not least <= getattr(settings, key) <= most:
            refuse(key, f"between {least:.0f} and {most:.0f}")
    if 0 < settings.max_context < MIN_CONTEXT:
        refuse("max_context", f"at least {MIN_CONTEXT}, or 0 for the model's own")
    if settings.kernels not in _KERNELS:
        refuse("kernels", "auto, native or reference")
    if settings.attention not in _ATTENTION:
        refuse("attention", "auto or own")
    if settings.quantize not in _QUANTIZE:
        refuse("quantize", "auto, none, int8, int4 or fp8")
    if settings.kv_type not in _KV_TYPES:
        refuse("kv_type", "auto, bf16, int8 or fp8")
    if settings.log_format not in _LOG_FORMATS:
        refuse("log_format", " or ".join(_LOG_FORMATS))
    if any("://" not in origin for origin in settings.allowed_origins):
        refuse(
            "allowed_origins",
            'a list of origins, like ["https://notes.home"]',
            "There is none for all pages.",
        )
    if not _DEVICE.fullmatch(settings.device):
        refuse("device", 'auto, cpu, cuda or one of several GPUs, like "cuda:1"')
    try:
        kv_bytes = size_bytes(settings.kv_memory)
    except UsageError as error:
        refuse("kv_memory", "a size", error.hint)
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if not is_auto(settings.kv_memory):
        if kv_bytes < _MIN_KV_BYTES:
            refuse("kv_memory", "at least 1MiB", 'Leave it out, or write "auto", to let the box decide.')
        if kv_bytes > memory:
            refuse("kv_memory", f"less than this machine's memory, which is {memory / 2**30:.1f}GiB")
    try:
        host_bytes = size_bytes(settings.kv_host_memory)
    except UsageError as error:
        refuse("kv_host_memory", "a size, or 0 for none", error.hint)
    if host_bytes > memory:
        refuse("kv_host_memory", f"less than this machine's memory, which is {memory / 2**30:.1f}GiB")
    if bool(settings.tls_cert) != bool(settings.tls_key):
        there, missing = ("tls_cert", "tls_key") if settings.tls_cert else ("tls_key", "tls_cert")
        raise UsageError(f"{_said(there, origin)} is set and {missing} is not", hint="TLS needs both.")
    if settings.socket:
        try:
            check_socket_path(Path(settings.socket))
        except UsageError as error:
            raise UsageError(f"{_said('socket', origin)}: {error.message}", hint=error.hint) from None


def _said(key: str, origin: Mapping[str, str]) -> str:
    """A key as it was written where it was said: `--max-running`, `HOMEBOX_MAX_RUNNING`, `FILE: max_running`."""
    where = origin.get(key, "configuration")
    if where == "flag":
        return f"--{key.replace('_', '-')}"
    return where.removeprefix("environment ") if where.startswith("environment ") else f"{where}: {key}"


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
