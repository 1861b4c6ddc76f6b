"""How is systemd asked and told? `systemctl` and `journalctl` as processes, and what their answers mean."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from homebox.errors import HomeboxError, UsageError
from homebox.service.units import SERVICE, SOCKET, UNITS

BOOTED = Path("/run/systemd/system")  # sd_booted(3)
_SHOWN = (
    "Id", "LoadState", "ActiveState", "SubState", "Result", "UnitFileState", "StatusText", "MainPID", "NRestarts",
    "ExecMainStatus", "ExecMainCode", "NeedDaemonReload", "StartLimitBurst", "StartLimitIntervalUSec", "ActiveEnterTimestamp",
)  # fmt: skip


def check_booted() -> None:
    """Raises UsageError on a machine that systemd does not run."""
    if not BOOTED.is_dir():
        raise UsageError(
            "this machine does not run systemd (a container, or WSL without it)",
            hint="homebox serve runs it in the foreground. Under WSL: systemd=true in /etc/wsl.conf, [boot], turns it on.",
        )


def command(user: bool, *arguments: str) -> list[str]:
    return ["systemctl", *(["--user"] if user else []), *arguments]


def run(argv: Sequence[str]) -> str:
    """Its standard output. Raises HomeboxError with what it said when it fails."""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
    except OSError as error:
        raise HomeboxError(f"{argv[0]} cannot be run: {error.strerror or error}") from None
    if done.returncode:
        said = done.stderr.strip() or done.stdout.strip() or f"exit status {done.returncode}"
        hint = None
        if "connect to bus" in said.lower():
            hint = (
                "A login session of that person is needed: log in (not `su`), or: loginctl enable-linger NAME"
            )
        raise HomeboxError(f"{' '.join(argv)}: {said.splitlines()[0]}", hint=hint)
    return done.stdout


def show(user: bool) -> dict[str, dict[str, str]]:
    """For each of our units, what systemd knows of it; LoadState is `not-found` where there is none."""
    said = run(command(user, "show", "-p", ",".join(_SHOWN), *UNITS))
    found = {}
    for block in said.strip().split("\n\n"):
        pairs = dict(line.partition("=")[::2] for line in block.splitlines())
        found[pairs.get("Id", "")] = pairs
    return {name: found.get(name, {}) for name in (SOCKET, SERVICE)}


def journal_command(user: bool, *arguments: str) -> list[str]:
    which = ["--user-unit" if user else "--unit", SERVICE]
    return ["journalctl", *which, *arguments]


def last_words(user: bool, lines: int = 8) -> list[str]:
    """The newest lines that the daemon wrote, oldest first; none where they may not be read."""
    ours = f"{'_SYSTEMD_USER_UNIT' if user else '_SYSTEMD_UNIT'}={SERVICE}"  # not what systemd says about it
    argv = ["journalctl", ours, "-n", str(lines), "-o", "cat", "--no-pager", "-q"]
    try:
        return [line for line in run(argv).splitlines() if line.strip()]
    except HomeboxError:
        return []
