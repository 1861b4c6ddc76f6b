"""`homebox doctor`: what is wrong, and what is to be done about it?

Each check looks at one thing on this machine and says what it found and, where that is bad, the fix. Nothing is
changed and nothing heavy is imported: torch is looked for, not loaded. It ends with 1 if anything is wrong.
"""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from homebox import config
from homebox.cli import terminal
from homebox.cli.status import NO_DEVICE, PAUSED, RESTARTING, UNLOADED, health, line
from homebox.client import connection
from homebox.client.sanitise import clean, safe_json
from homebox.errors import HomeboxError

_GIB = 2**30
MIN_DISK_BYTES = 1 * _GIB  # a small model, its download beside it, and room to breathe
MIN_MEMORY_BYTES = 1 * _GIB


class Finding(msgspec.Struct, frozen=True):
    """`fix` is empty where nothing is wrong."""

    check: str
    ok: bool
    found: str
    fix: str = ""


class Seen(msgspec.Struct):
    """What the checks share: asked once."""

    daemon: connection.Daemon
    settings: config.Settings
    health: dict[str, Any] | None = None


def doctor(json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False) -> int:
    """Find out what is wrong, and what to do about it.

    Ends with 0 if everything is in order, else 1.

    Example:

    \b
      homebox doctor
    """
    terminal.prepare_stdout()
    findings = examine()
    good = all(finding.ok for finding in findings)
    if json:
        body = msgspec.json.encode({"ok": good, "findings": findings}).decode()
        sys.stdout.write(safe_json(body) + "\n")
        return 0 if good else 1
    for finding in findings:
        sys.stdout.write(f"{'ok  ' if finding.ok else 'FAIL'} {finding.check:8} {clean(finding.found)}\n")
        if finding.fix:
            sys.stdout.write(f"     {'':8} -> {clean(finding.fix)}\n")
    return 0 if good else 1


def examine() -> list[Finding]:
    """All checks, in the order in which one would put things right."""
    settings = config.load().settings
    seen = Seen(connection.from_environment(), settings)
    checks: dict[str, Callable[[Seen], Finding]] = {
        "socket": _socket,
        "model": _model,
        "torch": _torch,
        "engine": _engine,
        "disk": _disk,
        "memory": _memory,
    }
    findings = []
    for name, check in checks.items():
        try:
            findings.append(check(seen))
        except HomeboxError as error:
            findings.append(Finding(name, False, error.message, error.hint or ""))
    return findings


def _socket(seen: Seen) -> Finding:
    seen.health = health(seen.daemon)
    return Finding("socket", True, f"{seen.daemon.place} answers")


def _model(seen: Seen) -> Finding:
    from homebox.library.catalogue import how_to_get
    from homebox.library.store import Library

    library, wanted = Library(_state_dir(seen)), seen.settings.model
    for name, error in library.damaged().items():
        return Finding(
            "model", False, f"{name}: {error.message}", error.hint or f"homebox models verify {name}"
        )
    names = [model.name for model in library.models()]
    have = f"the library has {', '.join(names)}" if names else "the library is empty"
    if wanted in names:
        return Finding("model", True, f"{have}; the default is {wanted}")
    return Finding("model", False, f"{have}; the default {wanted} is missing", how_to_get(wanted))


def _torch(seen: Seen) -> Finding:
    where = sys.executable
    if importlib.util.find_spec("torch") is not None:
        return Finding("torch", True, f"found for {where}")
    if seen.health is not None and seen.health.get("state") == "ready":
        return Finding("torch", True, "not in this interpreter; the daemon's engine has its own")
    return Finding("torch", False, f"not found for {where}", f"{where} -m pip install 'homebox[engine]'")


def _engine(seen: Seen) -> Finding:
    if seen.health is None:
        return Finding("engine", False, "not known: no daemon answers", "Put the socket right first.")
    said = line(seen.health)
    state = seen.health.get("state")
    if state in ("ready", UNLOADED):
        return Finding("engine", True, said)
    if state == NO_DEVICE:
        fix = (
            'Does nvidia-smi show it? The engine starts by itself once it is there; else set device = "cpu".'
        )
        return Finding("engine", False, said, fix)
    if state in PAUSED:
        return Finding("engine", False, said, "homebox resume")
    if state in ("starting", "loading"):
        return Finding("engine", False, said, "Wait for it: homebox status --wait 120")
    if state == RESTARTING:
        return Finding(
            "engine", False, said, "It is being replaced; look at the daemon's log if this goes on."
        )
    return Finding(
        "engine", False, said, "Look at the daemon's log, put right what it names, and restart the daemon."
    )


def _disk(seen: Seen) -> Finding:
    place = _state_dir(seen)
    while not place.exists() and place != place.parent:
        place = place.parent
    free = shutil.disk_usage(place).free
    found = f"{free / _GIB:.1f} GiB free at {place}"
    fix = "" if free >= MIN_DISK_BYTES else "Make room, or point state_dir at a larger disk."
    return Finding("disk", not fix, found, fix)


def _state_dir(seen: Seen) -> Path:
    """Raises what `serve` would. A daemon that answers has looked already, and may be somebody else's."""
    place = config.state_dir(seen.settings)
    if seen.health is None:
        config.check_state_dir(place)
    return place


def _memory(seen: Seen) -> Finding:
    import psutil

    memory = psutil.virtual_memory()
    found = f"{memory.available / _GIB:.1f} of {memory.total / _GIB:.1f} GiB available"
    loaded = seen.health is not None and seen.health.get("state") == "ready"
    fix = (
        ""
        if loaded or memory.available >= MIN_MEMORY_BYTES
        else "Close what else runs, or use a smaller model."
    )
    return Finding("memory", not fix, found, fix)
