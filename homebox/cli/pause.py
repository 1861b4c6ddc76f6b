"""`homebox pause` and `homebox resume`: the machine for something else, for a while.

Asks the daemon, and waits until the engine's process is gone, because what comes next wants its memory. It decides
nothing: who may, what finishes and what is held is the daemon's.
"""

from __future__ import annotations

import re
import sys
import time
from typing import Annotated, Any

import msgspec
import typer

from homebox.cli import terminal
from homebox.cli.status import health
from homebox.client import connection
from homebox.client.sanitise import clean, safe_json
from homebox.errors import HomeboxError, UsageError
from homebox.wire.pause import Pause
from homebox.wire.requests import PauseRequest, PowerState

_POLL_S = 0.2
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?[smhd])+")


def pause(
    now: Annotated[
        bool, typer.Option("--now", help="Hold running answers at once instead of letting them finish.")
    ] = False,
    for_: Annotated[
        str | None,
        typer.Option("--for", metavar="TIME", help="Resume by itself after so long: 90m, 2h, 1h30m."),
    ] = None,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Shown to whoever asks.")] = "",
    json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> int:
    """Free the machine for a game or a render: no engine, no memory, until somebody resumes.

    Running answers may finish for a moment (drain_s in the configuration); what is not finished is held and goes on
    after the pause. New requests are refused with these words. A restart of the daemon does not end the pause. Returns
    when the memory is free.

    Examples:

    \b
      homebox pause --for 2h --reason "game night"
      homebox pause --now && start-the-render; homebox resume
    """
    for_s = None if for_ is None else duration_s(for_)
    terminal.prepare_stdout()
    daemon = connection.from_environment()
    asked = _power(daemon, "pause", PauseRequest(now=now, for_s=for_s, reason=reason))
    if asked.live and not now:
        terminal.say(f"{_answers(asked.live)} may finish, for up to {asked.drain_s:g} s (--now holds them)")
    try:
        found = _until_free(daemon)
    except KeyboardInterrupt:
        terminal.say("the daemon goes on with it; homebox resume takes it back")
        raise
    held = int(found.get("waiting") or 0)
    if json:
        body = {"state": "paused", "pause": found.get("pause"), "held": held}
        sys.stdout.write(safe_json(msgspec.json.encode(body).decode()) + "\n")
        return 0
    words = msgspec.convert(found.get("pause"), Pause).words()
    sys.stdout.write(clean(f"paused {words}; homebox resume ends it") + "\n")
    if held:
        sys.stdout.write(clean(f"{_answers(held)} held until then") + "\n")
    return 0


def resume(json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False) -> int:
    """End a pause: the model is loaded again, and held answers go on.

    Where the engine was unloaded because nobody used it, it is loaded. Returns at once; `homebox status --wait 120`
    waits for the model.

    Example:

    \b
      homebox resume
    """
    terminal.prepare_stdout()
    after = _power(connection.from_environment(), "resume", {})
    if json:
        sys.stdout.write(safe_json(msgspec.json.encode(after).decode()) + "\n")
        return 0
    if not after.changed:
        sys.stdout.write(clean(f"nothing was paused: {after.state}") + "\n")
        return 0
    held = f"; {_answers(after.live)} will go on" if after.live else ""
    sys.stdout.write(clean(f"resumed: {after.state}{held}") + "\n")
    return 0


def duration_s(text: str) -> float:
    """`1h30m` in seconds. Raises UsageError."""
    if not _DURATION.fullmatch(text.lower()):
        raise UsageError(f"--for {text!r} is not a time", hint="Write it like 90m, 2h or 1h30m.")
    parts = re.findall(r"([\d.]+)([smhd])", text.lower())
    return sum(float(count) * _UNITS_S[unit] for count, unit in parts)


def _power(daemon: connection.Daemon, what: str, body: Any) -> PowerState:
    return msgspec.convert(daemon.json("POST", f"/homebox/{what}", body), PowerState)


def _until_free(daemon: connection.Daemon) -> dict[str, Any]:
    """What the daemon says once the engine's process is gone. Raises HomeboxError if somebody resumed meanwhile."""
    while True:
        found = health(daemon)
        if found.get("state") not in ("pausing", "paused"):
            raise HomeboxError(
                f"the pause was taken back meanwhile: {clean(str(found.get('state')))}",
                hint="homebox status shows how the box is.",
            )
        if found["state"] == "paused" and not found.get("engine_pid"):
            return found
        time.sleep(_POLL_S)


def _answers(count: int) -> str:
    return "1 answer" if count == 1 else f"{count} answers"
