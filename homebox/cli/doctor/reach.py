"""Who can reach the box, and who should not be able to? The socket, the group in this session, the network."""

from __future__ import annotations

import ipaddress
import pwd
import socket as sockets
import stat
from pathlib import Path

import msgspec

from homebox.cli.doctor.seen import Finding, Group, Seen
from homebox.config import Settings
from homebox.errors import DaemonUnreachable, HomeboxError, UsageError

GROUP = "homebox"
ANSWER_S = 2.0


def socket(seen: Seen) -> Finding:
    """Asks the daemon; what it says is kept for the other checks."""
    path, remote = seen.daemon.socket_path, seen.daemon.remote
    try:
        said = seen.daemon.json("GET", "/health", timeout_s=ANSWER_S, accept=(503,))
    except HomeboxError as error:
        fix = error.hint or ""
        if isinstance(error, DaemonUnreachable) and seen.units.for_all and not remote:
            fix = "sudo systemctl start homebox.socket"
        return Finding("socket", False, error.message, fix)
    seen.health = said if isinstance(said, dict) else {}
    _take_settings(seen)
    if remote:
        return Finding("socket", True, f"{seen.daemon.place} answers")
    try:
        status = path.stat()
    except OSError:  # it went away since
        return Finding("socket", True, f"{path} answers")
    mode, owner = stat.S_IMODE(status.st_mode), seen.machine.account_of(status.st_uid)
    group = seen.machine.group_of(status.st_gid)
    name = group.name if group else str(status.st_gid)
    who = f"open to {owner}" + (f" and the group {name}" if mode & stat.S_IWGRP else "")
    said = f"{path} answers; mode {mode:04o}, {who}"
    if mode & stat.S_IWOTH and _open_to_all(path):
        return Finding(
            "socket", False, f"{said}, and to every account of this machine", f"sudo chmod 0660 {path}"
        )
    return Finding("socket", True, said)


def _take_settings(seen: Seen) -> None:
    """An administrator of a running daemon is told which settings it really uses, flags included."""
    try:
        ours = seen.machine.uid in (0, seen.daemon.socket_path.stat().st_uid)
        if ours and not seen.daemon.remote:
            said = seen.daemon.json("GET", "/homebox/config", timeout_s=ANSWER_S)
            seen.settings = msgspec.convert(said["settings"], Settings)
    except (OSError, HomeboxError, KeyError, TypeError, msgspec.ValidationError):
        return  # another version, or somebody who may not: what the files say will do


def _open_to_all(path: Path) -> bool:
    """Whether every directory above lets others through."""
    try:
        return all(parent.stat().st_mode & stat.S_IXOTH for parent in path.absolute().parents)
    except OSError:
        return False


def group(seen: Seen) -> Finding:
    """Membership counts for a session from its beginning: who was added since must log in again."""
    machine = seen.machine
    wanted = _socket_group(seen)
    if wanted is None:
        return Finding("group", True, f"this machine has no group {GROUP}; the socket belongs to one account")
    if machine.uid == 0:
        return Finding(
            "group", True, f"root needs no group; members of {wanted.name}: {_list(wanted.members)}"
        )
    if wanted.gid in machine.groups:
        return Finding("group", True, f"{machine.name} is in the group {wanted.name}")
    if machine.name in wanted.members:
        return Finding(
            "group",
            False,
            f"{machine.name} is in the group {wanted.name}, but this session began before that",
            f"Log out and in again (or, for one shell: newgrp {wanted.name})",
        )
    if seen.health is not None:
        return Finding(
            "group", True, f"{machine.name} is not in the group {wanted.name}, and does not need it"
        )
    if wanted.name != GROUP and _is_one_accounts(seen):
        return Finding(
            "group", True, f"the socket belongs to one account; its group {wanted.name} is no door"
        )
    add = f"sudo gpasswd -a {machine.name} {wanted.name}"
    return Finding(
        "group", False, f"{machine.name} is not in the group {wanted.name}", f"{add}   (then log in again)"
    )


def _socket_group(seen: Seen) -> Group | None:
    try:
        status = seen.daemon.socket_path.stat()
    except OSError:
        return seen.machine.group_of(GROUP)
    if status.st_uid == seen.machine.uid:
        return None  # one's own
    return seen.machine.group_of(status.st_gid)


def _is_one_accounts(seen: Seen) -> bool:
    """Whether the socket's group is that of the account that owns it: nothing to be joined by others."""
    try:
        status = seen.daemon.socket_path.stat()
        return pwd.getpwuid(status.st_uid).pw_gid == status.st_gid
    except (OSError, KeyError):
        return False


def _list(names: tuple[str, ...]) -> str:
    return ", ".join(names) if names else "nobody"


def lan(seen: Seen) -> Finding:
    """What the network can see of the box."""
    listen = seen.settings.listen
    if not listen:
        return Finding("lan", True, "closed: only accounts of this machine can ask")
    host, _, port = listen.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdigit():
        raise UsageError(f"listen is {listen!r}", hint='Write it like "192.168.1.5:11480".')
    said, bad = _keys(seen)
    if bad:
        return Finding("lan", False, f"{listen}: {said}", bad)
    if host == "localhost" or _is_loopback(host):
        return Finding("lan", True, f"{listen}: this machine only; {said}")
    reachable = seen.machine.addresses() if host in ("0.0.0.0", "::") else [host]
    if public := [address for address in reachable if _is_public(address)]:
        return Finding(
            "lan",
            False,
            f"{listen} can be reached from the internet at {public[0]}; {said}",
            f'Set listen to the address of the home network, like "192.168.1.5:{port}", or close the port in a firewall.',
        )
    names = ", ".join([sockets.gethostname(), *seen.settings.allowed_hosts])
    return Finding(
        "lan", True, f"{listen}: open to the home network; {said}; it answers to its address and {names}"
    )


def _keys(seen: Seen) -> tuple[str, str]:
    """How many keys there are, in words, and the fix where there is none."""
    from homebox.daemon.keys import Keys

    try:
        count = len(Keys(seen.state).all())
    except HomeboxError:
        return "its keys cannot be counted by this account", ""
    except PermissionError:
        return "its keys cannot be counted by this account", ""
    if not count:
        return "nobody has a key, so it stays closed", "Make one: homebox people keys new NAME"
    return f"{count} {'key' if count == 1 else 'keys'}", ""


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _is_public(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_global
    except ValueError:
        return False
