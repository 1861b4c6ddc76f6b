"""What has to be done so that this machine runs homebox as a service, or no longer does?

A plan is a list of steps; each knows what it is (a verb and its object), whether it is still due, and does it. A second run finds
nothing due. Drop-ins, state and configuration belong to the machine's owner: nothing here touches them.
"""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from homebox import config
from homebox.errors import HomeboxError, NotAllowed, UsageError
from homebox.service import systemctl
from homebox.service.units import SERVICE, SOCKET, UNITS, Place, files

USER, GROUPS = "homebox", ("homebox", "homebox-admin")
# ProtectHome= and PrivateTmp= hide these from the service.
_HIDDEN = tuple(map(Path, ("/home", "/root", "/run/user", "/tmp", "/var/tmp")))


@dataclass(frozen=True)
class Write:
    path: Path
    text: str

    @property
    def what(self) -> tuple[str, str]:
        return "write", str(self.path)

    @property
    def due(self) -> bool:
        try:
            return self.path.read_text() != self.text
        except (OSError, UnicodeDecodeError):
            return True

    def do(self) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            partial = self.path.with_name(f".{self.path.name}.new")
            partial.write_text(self.text)
            partial.chmod(0o644)
            partial.replace(self.path)
        except OSError as error:
            raise _refused(self.path, error) from None


@dataclass(frozen=True)
class Remove:
    path: Path

    @property
    def what(self) -> tuple[str, str]:
        return "remove", str(self.path)

    @property
    def due(self) -> bool:
        return os.path.lexists(self.path)

    def do(self) -> None:
        try:
            self.path.unlink()
        except OSError as error:
            raise _refused(self.path, error) from None


@dataclass(frozen=True)
class Run:
    argv: tuple[str, ...]
    due: bool

    @property
    def what(self) -> tuple[str, str]:
        return "run", " ".join(self.argv)

    def do(self) -> None:
        systemctl.run(self.argv)


Step = Write | Remove | Run


def program() -> Path:
    """The `homebox` of the installation that runs now."""
    return Path(sys.prefix) / "bin" / "homebox"


def check_readable(place: Place) -> None:
    """Raises UsageError where the service's user could not read this installation and its interpreter."""
    if place.user:
        return
    for path in (program(), Path(sys.executable), Path(sys.base_prefix), Path(config.__file__)):
        for real in (path, path.resolve()):
            hidden = next((top for top in _HIDDEN if real.is_relative_to(top)), None)
            closed = hidden or next((p for p in (*real.parents, real) if not _open_to_all(p)), None)
            if closed is not None:
                raise UsageError(
                    f"the service's user cannot read {real}: {closed} is closed to it",
                    hint="scripts/install (from the sources) makes an installation in /opt/homebox. "
                    "For yourself alone: homebox service install --user",
                )


def install(place: Place, *, start: bool) -> list[Step]:
    """`start`: also start it now, which only makes sense with a model."""
    writes = [Write(path, text) for path, text in files(place, program()).items()]
    units = _known(place.user)
    steps: list[Step] = list(writes)
    if place.sysusers is not None:
        made = Run(("systemd-sysusers", str(place.sysusers)), due=not _people_exist())
        steps.insert(1, made)
    stale = any(write.due for write in writes) or any(
        unit.get("NeedDaemonReload") == "yes" for unit in units.values()
    )
    enabled = all(unit.get("UnitFileState") == "enabled" for unit in units.values())
    active = all(unit.get("ActiveState") == "active" for unit in units.values())
    steps += [
        Run(tuple(systemctl.command(place.user, "daemon-reload")), due=stale),
        Run(tuple(systemctl.command(place.user, "enable", *UNITS)), due=not enabled),
    ]
    if start:
        steps.append(Run(tuple(systemctl.command(place.user, "start", *UNITS)), due=not active))
    return steps


def uninstall(place: Place) -> list[Step]:
    there = [path for path in files(place, program()) if os.path.lexists(path)]
    known = any(path.name in UNITS for path in there)
    steps: list[Step] = []
    if known:
        steps += [
            # The socket first in name, but systemd stops the service before it: nobody starts it again in between.
            Run(tuple(systemctl.command(place.user, "disable", "--now", SOCKET, SERVICE)), due=True),
        ]
    steps += [Remove(path) for path in there]
    if known:
        steps.append(Run(tuple(systemctl.command(place.user, "daemon-reload")), due=True))
    return steps


def model_missing(place: Place) -> str:
    """The configured model where the library has none of that name, else nothing. Raises UsageError for a
    configuration that cannot be."""
    settings = config.load(environ={}).settings
    state = Path(settings.state_dir) if settings.state_dir else place.state
    return "" if (state / "models" / settings.model).is_dir() else settings.model


def kept(place: Place) -> Iterator[tuple[str, Path]]:
    """What an uninstall leaves behind, and where."""
    for what, path in (
        ("models, chats and keys", place.state),
        ("configuration", place.configuration),
        ("caches", place.cache),
    ):
        with contextlib.suppress(OSError):
            if path.exists():
                yield what, path


def check_root(place: Place, verb: str) -> None:
    """Raises NotAllowed where the machine's service is meant and we are not root."""
    if not place.user and os.geteuid() != 0:
        raise NotAllowed(
            f"homebox service {verb} changes this machine's service, which only root may",
            hint=f"sudo homebox service {verb}, or for a box of your own: homebox service {verb} --user",
        )


def _known(user: bool) -> dict[str, dict[str, str]]:
    """What systemd knows of our units; nothing where it cannot be asked, so that a plan can be shown everywhere."""
    try:
        if systemctl.BOOTED.is_dir():
            return systemctl.show(user)
    except HomeboxError:
        pass  # a real run is told by its first command
    return {name: {} for name in UNITS}


def _people_exist() -> bool:
    try:
        pwd.getpwnam(USER)
        for name in GROUPS:
            grp.getgrnam(name)
    except KeyError:
        return False
    return True


def _open_to_all(path: Path) -> bool:
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return bool(mode & 0o001) if path.is_dir() else bool(mode & 0o004)


def _refused(path: Path, error: OSError) -> HomeboxError:
    return NotAllowed(f"{path}: {error.strerror or error}", hint="Run it with sudo, or with --user.")
