"""Is the service installed, alive and able to live? The unit, the interpreter it runs, the daemon's version, and the
engine as the daemon sees it."""

from __future__ import annotations

import importlib.util
import os
import re
import stat
from pathlib import Path, PurePosixPath

import homebox
from homebox.cli.doctor.seen import Finding, Machine, Seen
from homebox.cli.status import NO_DEVICE, PAUSED, RESTARTING, UNLOADED, line

_HIDDEN = ("/root", "/home", "/run/user")  # from a service, by ProtectHome and by their modes
_JOURNAL = "journalctl {scope}-u homebox.service -n 20"


def unit(seen: Seen) -> Finding:
    if not seen.machine.has_systemd:
        return Finding(
            "unit", True, "this machine does not run systemd; homebox serve runs the daemon by hand"
        )
    units = seen.units
    if not units.installed:
        return Finding(
            "unit",
            True,
            "not installed as a service",
            "To have it start by itself: sudo homebox service install",
        )
    sudo, scope = ("" if units.scope else "sudo "), units.scope
    systemctl = f"{sudo}systemctl {scope}"
    journal = f"{_JOURNAL.format(scope=scope)} says why"
    for name, known in (("homebox.service", units.service), ("homebox.socket", units.socket)):
        if known.get("LoadState") != "loaded":
            said = f"{name} is {known.get('LoadState', 'not known')}"
            again = (
                f"{systemctl}unmask {name}"
                if known.get("LoadState") == "masked"
                else "sudo homebox service install"
            )
            return Finding("unit", False, said, again)
    states = {units.service.get("ActiveState"), units.socket.get("ActiveState")}
    if "failed" in states:
        results = {units.service.get("Result"), units.socket.get("Result")}
        reset = f"{systemctl}reset-failed homebox.service homebox.socket && {systemctl}start homebox.socket"
        if {"start-limit-hit", "service-start-limit-hit"} & results:
            times = units.service.get("NRestarts", "")
            often = f"{times} times in a row" if times not in ("", "0") else "again and again"
            return Finding(
                "unit",
                False,
                f"it ended {often}, and systemd gave up on it (start limit)",
                f"{journal}; then: {reset}",
            )
        result = next((r for r in results if r and r != "success"), "failed")
        return Finding("unit", False, f"it failed ({result})", f"{journal}; then: {reset}")
    if states == {"inactive"}:
        return Finding("unit", False, "installed and stopped", f"{systemctl}start homebox.socket")
    said = f"homebox.service is {units.service.get('ActiveState')} ({units.service.get('SubState')})"
    if (times := units.service.get("NRestarts", "0")) not in ("", "0"):
        said += f", restarted {times} times"
    if units.socket.get("UnitFileState") == "disabled" and units.service.get("UnitFileState") == "disabled":
        boot = f"{systemctl}enable homebox.socket homebox.service"
        return Finding(
            "unit", True, f"{said}; it will not start at boot", f"To have it start at boot: {boot}"
        )
    return Finding("unit", True, said)


def interpreter(seen: Seen) -> Finding:
    """A service has an account of its own: it must be able to read the Python it runs."""
    machine = seen.machine
    started = re.search(r"path=([^ ;]+)", seen.units.service.get("ExecStart", ""))
    if not (seen.units.for_all and started):
        return Finding("python", True, machine.python)
    for path in _run_by(machine, started[1]):
        if why := _unreadable(machine, path):
            return Finding(
                "python",
                False,
                f"the service runs {path}, which its account cannot read: {why}",
                "Install into /opt/homebox with scripts/install, from an interpreter outside all home directories.",
            )
    return Finding("python", True, f"{started[1]}, which the service's account can read")


def _run_by(machine: Machine, path: str) -> list[str]:
    """The program, what its links lead to, and the interpreter that its first line names, with its links."""
    found = _links(machine, path)
    try:
        with machine.at(found[-1]).open("rb") as file:
            first = file.readline(512)
    except OSError:
        return found
    if first.startswith(b"#!") and (words := first[2:].decode("utf-8", "replace").split()):
        found += _links(machine, words[0])
    return found


def _links(machine: Machine, path: str) -> list[str]:
    found = [path]
    while len(found) < 10 and machine.at(found[-1]).is_symlink():
        target = PurePosixPath(found[-1]).parent / machine.at(found[-1]).readlink()
        found.append(os.path.normpath(target))
    return found


def _unreadable(machine: Machine, path: str) -> str:
    if path.startswith(tuple(f"{place}/" for place in _HIDDEN)):
        return "it lies in a home directory"
    for place in [*map(str, reversed(PurePosixPath(path).parents)), path]:
        try:
            mode = machine.at(place).lstat().st_mode
        except OSError as error:
            return f"{place}: {error.strerror}"
        if not stat.S_ISLNK(mode) and not mode & stat.S_IXOTH:
            return f"{place} is closed to others (mode {stat.S_IMODE(mode):04o})"
    return ""


def version(seen: Seen) -> Finding:
    theirs = seen.health.get("version") if seen.health else None
    if theirs is None:
        return Finding("version", True, f"{homebox.__version__}; the daemon's is not known")
    if theirs == homebox.__version__:
        return Finding("version", True, f"{theirs}, like the daemon")
    restart = "sudo systemctl restart homebox" if seen.units.for_all else "start homebox serve again"
    return Finding(
        "version",
        False,
        f"this program is {homebox.__version__}, the daemon {theirs}",
        f"After an upgrade: {restart}. Else install the same version here.",
    )


def torch(seen: Seen) -> Finding:
    where = seen.machine.python
    if importlib.util.find_spec("torch") is not None:
        return Finding("torch", True, f"found for {where}")
    if seen.ready or seen.units.for_all:
        return Finding("torch", True, "not in this interpreter; the daemon's engine has its own")
    return Finding("torch", False, f"not found for {where}", f"{where} -m pip install 'homebox[engine]'")


def engine(seen: Seen) -> Finding:
    if seen.health is None:
        return Finding("engine", False, "not known: no daemon answers", "Put the socket right first.")
    said, state = line(seen.health), seen.health.get("state")
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


def where_installed() -> Path:
    """The code that runs here."""
    return Path(homebox.__file__)
