"""`homebox doctor`: what is wrong, and what is to be done about it?

Runs every check and writes what it found, with the fix where something is wrong. Works without a daemon and as any
account; nothing is changed. It ends with 1 if anything is wrong.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Annotated

import msgspec
import typer

from homebox import config
from homebox.cli import terminal
from homebox.cli.doctor import disk, hardware, reach, service
from homebox.cli.doctor.seen import Finding, Machine, Seen
from homebox.client import connection
from homebox.client.sanitise import clean, safe_json
from homebox.config import Settings
from homebox.errors import HomeboxError

Check = Callable[[Seen], Finding]
# In the order in which one would put things right; the socket before all that want to know what the daemon says.
CHECKS: Mapping[str, Check] = {
    "config": disk.settings,
    "socket": reach.socket,
    "unit": service.unit,
    "group": reach.group,
    "python": service.interpreter,
    "model": disk.model,
    "torch": service.torch,
    "engine": service.engine,
    "version": service.version,
    "driver": hardware.driver,
    "gpu": hardware.gpu,
    "disk": disk.disk,
    "memory": hardware.memory,
    "state": disk.state,
    "lan": reach.lan,
    "clock": hardware.clock,
}
OF_ANOTHER_MACHINE = ("socket", "engine", "version", "clock")  # what can be said of a box that is elsewhere


def doctor(
    json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
    full: Annotated[
        bool, typer.Option("--full", help="Read every byte of every model and compare the checksums.")
    ] = False,
) -> int:
    """Find out what is wrong, and what to do about it.

    Ends with 0 if everything is in order, else 1.

    Examples:

    \b
      homebox doctor
      homebox doctor --full
    """
    terminal.prepare_stdout()
    findings = examine(Machine(), full=full)
    good = all(finding.ok for finding in findings)
    if json:
        body = msgspec.json.encode({"ok": good, "findings": findings}).decode()
        sys.stdout.write(safe_json(body) + "\n")
        return 0 if good else 1
    for finding in findings:
        mark = "FAIL" if not finding.ok else "note" if finding.fix else "ok  "
        sys.stdout.write(clean(f"{mark} {finding.check:8} {finding.found}") + "\n")
        if finding.fix:
            sys.stdout.write(clean(f"     {'':8} -> {finding.fix}") + "\n")
    return 0 if good else 1


def examine(machine: Machine, *, full: bool = False) -> list[Finding]:
    """What every check found on this machine."""
    settings, unreadable = Settings(), []
    try:
        settings = config.load(environ=machine.environ, root=machine.at(config.SYSTEM_CONFIG)).settings
    except HomeboxError as error:
        unreadable = [disk.unreadable(error)]
    try:
        daemon = connection.from_environment()
    except HomeboxError as error:  # the client's own file, or a URL that cannot be meant
        return [*unreadable, Finding("client", False, error.message, error.hint or "")]
    seen = Seen(machine, daemon, settings, full)
    names = OF_ANOTHER_MACHINE if daemon.remote else tuple(CHECKS)
    found = {name: run(name, CHECKS[name], seen) for name in names}
    if unreadable and not daemon.remote:
        found["config"] = unreadable[0]
    return list(found.values())


def run(name: str, check: Check, seen: Seen) -> Finding:
    """One check; whatever goes wrong in it is a finding, and no reason to leave out the others."""
    try:
        return check(seen)
    except HomeboxError as error:
        return Finding(name, False, error.message, error.hint or "")
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return Finding(
            name,
            False,
            f"{where}{error.strerror or error}",
            "Try it as an administrator: sudo homebox doctor",
        )
    except Exception as error:
        said = " ".join(f"{type(error).__name__}: {error}".split())
        return Finding(
            name,
            False,
            f"this could not be looked at: {said}",
            "Please report it; everything else was looked at.",
        )
