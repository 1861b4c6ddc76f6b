"""How does the service stand, and if it is down, why and what now?"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from homebox.errors import HomeboxError, NotFound
from homebox.service import systemctl
from homebox.service.units import SERVICE, SOCKET

_TRIPPED = ("start-limit-hit", "service-start-limit-hit", "trigger-limit-hit")


class State(StrEnum):
    RUNNING = "running"
    LISTENING = "listening"  # the first client starts it
    STARTING = "starting"
    STOPPED = "stopped"
    RESTARTING = "restarting"  # it ended, and systemd is about to start it again
    FAILED = "failed"
    TRIPPED = "tripped"  # it failed so often that systemd starts it no more


DOWN = (State.RESTARTING, State.FAILED, State.TRIPPED)


class Standing(msgspec.Struct, frozen=True):
    """`said` is the daemon's own status, `last_words` the end of its journal where it is down."""

    state: State
    said: str
    pid: int | None
    restarts: int
    at_boot: bool
    since: str
    socket: str
    service: str
    why: str = ""
    next_step: str = ""
    last_words: tuple[str, ...] = ()


def look(user: bool) -> Standing:
    """Raises NotFound where it is not installed."""
    units = systemctl.show(user)
    socket, service = units[SOCKET], units[SERVICE]
    if "not-found" in (socket.get("LoadState"), service.get("LoadState")):
        raise NotFound(
            "homebox is not installed as a service here", hint=f"{_ours('install', user)} does that."
        )
    state = _state(socket, service)
    down = state in DOWN
    pid = int(service.get("MainPID") or 0)
    return Standing(
        state=state,
        said=service.get("StatusText", "") if pid else "",
        pid=pid or None,
        restarts=int(service.get("NRestarts") or 0),
        at_boot=service.get("UnitFileState") == socket.get("UnitFileState") == "enabled",
        since=service.get("ActiveEnterTimestamp", "") if pid else "",
        socket=f"{socket.get('ActiveState')} ({socket.get('SubState')})",
        service=f"{service.get('ActiveState')} ({service.get('SubState')})",
        why=_why(state, socket, service) if down else "",
        next_step=_next_step(state, user) if down else "",
        last_words=tuple(systemctl.last_words(user)) if down else (),
    )


def failure(user: bool, doing: str) -> HomeboxError | None:
    """What to tell somebody whose `doing` has failed because the daemon does not stay up; None where it is not that."""
    try:
        now = look(user)
    except NotFound:
        return None
    if now.state not in (*DOWN, State.STARTING):
        return None
    words = now.last_words or systemctl.last_words(user)
    why = now.why or "it ended, and systemd is starting it again"
    step = now.next_step or _next_step(State.RESTARTING, user)
    return HomeboxError(f"{doing} failed: {why}", hint="\n  ".join([step, "Its last words:", *words]))


def _state(socket: dict[str, str], service: dict[str, str]) -> State:
    if service.get("ActiveState") in ("active", "reloading"):
        return State.RUNNING
    if {socket.get("Result"), service.get("Result")} & set(_TRIPPED):
        return State.TRIPPED
    if "failed" in (socket.get("ActiveState"), service.get("ActiveState")):
        return State.FAILED
    if service.get("ActiveState") == "activating":
        return State.RESTARTING if service.get("SubState") == "auto-restart" else State.STARTING
    return State.LISTENING if socket.get("ActiveState") == "active" else State.STOPPED


def _why(state: State, socket: dict[str, str], service: dict[str, str]) -> str:
    ended = _ended(service)
    if state is State.TRIPPED:
        times, within = service.get("StartLimitBurst", "?"), service.get("StartLimitIntervalUSec", "?")
        return f"it crashed {times} times within {within}, so systemd starts it no more ({ended})"
    if state is State.RESTARTING or service.get("ActiveState") == "failed":
        return ended
    return f"the socket failed: {socket.get('Result')}"


def _ended(service: dict[str, str]) -> str:
    result, status = service.get("Result", ""), service.get("ExecMainStatus", "")
    how = {
        "watchdog": "it stood still and the watchdog ended it",
        "timeout": "it did not start or stop in time",
        "oom-kill": "the machine ran out of memory",
    }.get(result)
    # ExecMainCode is si_code: 1 exited, 2 and 3 killed by a signal.
    killed = service.get("ExecMainCode") in ("2", "3")
    return how or (f"it was killed by signal {status}" if killed else f"it ended with exit status {status}")


def _next_step(state: State, user: bool) -> str:
    systemd = " ".join(
        [*([] if user else ["sudo"]), *systemctl.command(user, "reset-failed", SERVICE, SOCKET)]
    )
    if state is State.TRIPPED:
        return f"Put right what its last words say, then: {_ours('reset', user)}   (that is `{systemd}` and a start)"
    if state is State.RESTARTING:
        return f"systemd is about to start it again; {_ours('status', user).removeprefix('sudo ')} shows how that goes."
    return f"Put right what its last words say, then: {_ours('start', user)}"


def _ours(verb: str, user: bool) -> str:
    return f"homebox service {verb} --user" if user else f"sudo homebox service {verb}"
