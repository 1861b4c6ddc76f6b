"""`homebox status`: is the box up, and can it answer?

One line from what the daemon says of itself, or with `--wait` as many tries as it takes until the model is ready.
"""

from __future__ import annotations

import sys
import time
from typing import Annotated, Any

import msgspec
import typer

from homebox.cli import terminal
from homebox.client import connection
from homebox.client.sanitise import clean, safe_json
from homebox.errors import DaemonUnreachable, EngineFailed, Paused, TimedOut, UsageError

READY = "ready"
RESTARTING = "restarting"
PAUSED = ("paused", "pausing")
NO_DEVICE = "waiting for the GPU"
UNLOADED = "unloaded"  # the next request loads it
WITHOUT_A_KEY = "(who asks without a key is told no more: HOMEBOX_KEY)"
_ON_THE_WAY = (READY, UNLOADED, "starting", "loading")
_POLL_S = 0.25


def status(
    json: Annotated[bool, typer.Option("--json", help="What the daemon says, as one JSON object.")] = False,
    wait: Annotated[
        float | None, typer.Option("--wait", metavar="SECS", help="Wait until the model is ready.")
    ] = None,
) -> int:
    """Is the box up, and is the model loaded?

    Ends with 0 when it is ready or on its way (starting, loading, unloaded until the next request), 1 when its engine
    is lost (restarting, failed, waiting for the GPU), it is paused or the daemon goes down, 3 when no daemon answers, 4 when --wait ran out.

    Examples:

    \b
      homebox status
      homebox status --wait 60 && homebox ask "Are you there?"
    """
    if wait is not None and not 0 <= wait <= 86400:
        raise UsageError(f"--wait {wait:g} is not between 0 and 86400 seconds")
    terminal.prepare_stdout()
    daemon = connection.from_environment()
    found = health(daemon) if wait is None else wait_until_ready(daemon, wait)
    if json:
        sys.stdout.write(safe_json(msgspec.json.encode(found).decode()) + "\n")
    else:
        sys.stdout.write(line(found) + "\n")
    return 0 if found.get("state") in _ON_THE_WAY else 1


def health(daemon: connection.Daemon) -> dict[str, Any]:
    """What the daemon says of itself; 503 is an answer too. Raises DaemonUnreachable or NotAllowed."""
    found = daemon.json("GET", "/health", timeout_s=5.0, accept=(503,))
    return found if isinstance(found, dict) else {}


def wait_until_ready(daemon: connection.Daemon, seconds: float) -> dict[str, Any]:
    """The daemon's word once it is ready. Raises what stood in the way when the time is up."""
    deadline = time.monotonic() + seconds
    progress = terminal.StatusLine()
    while True:
        late: DaemonUnreachable | TimedOut
        try:
            found = health(daemon)
            if found.get("state") in (READY, UNLOADED):
                progress.clear()
                return found
            if found.get("state") == "failed":
                raise EngineFailed(
                    f"the engine does not start: {line(found)}",
                    hint="The daemon's log says more; homebox doctor checks.",
                )
            if found.get("state") in PAUSED:
                raise Paused(f"the box is {line(found)}")
            # A log gets a line a stage, a terminal every step of it.
            progress.show(line(found) if progress.on_terminal else line(found).partition(" (")[0])
            late = TimedOut(
                f"not ready within {seconds:g} s: {line(found)}",
                hint="homebox doctor says what stands in the way.",
            )
        except DaemonUnreachable as error:
            late = error
        if time.monotonic() >= deadline:
            progress.clear()
            raise late
        time.sleep(_POLL_S)


def line(found: dict[str, Any]) -> str:
    """`ready  smollm2-135m  2 running  0 waiting  int4 and int8, KV in bf16, native amx`, `loading  smollm2-135m  weights (31%)`,
    `restarting (killed by SIGKILL)  smollm2-135m  loading weights (31%)`."""
    state, detail = str(found.get("state", "unknown")), " ".join(str(found.get("detail") or "").split())
    restarting = state == RESTARTING
    parts = [
        f"{state} ({detail})" if restarting and detail else state,
        str(found.get("model", WITHOUT_A_KEY) or "no model"),
    ]
    for name in ("running", "waiting"):
        if found.get("state") == READY and isinstance(found.get(name), int):
            parts.append(f"{found[name]} {name}")
    if state == READY and (how := computed(found)):
        parts.append(how)
    progress = found.get("progress")
    if isinstance(progress, dict) and progress.get("stage"):
        total = progress.get("total") or 0
        done = f" ({100 * (progress.get('done') or 0) // total}%)" if total else ""
        parts.append(f"{'loading ' if restarting else ''}{progress['stage']}{done}")
    elif detail and not restarting:
        parts.append(detail)
    if state in PAUSED:
        parts.append("(homebox resume ends it)")
    return clean("  ".join(parts))


def computed(found: dict[str, Any]) -> str:
    """Of which types weights, keys and values are and which kernels run, where the engine has said so."""
    engine = found.get("engine")
    if not isinstance(engine, dict):
        return ""
    kv = f"KV in {engine['kv']}" if engine.get("kv") else ""
    said = (engine.get("weights"), kv, engine.get("attention"))
    return ", ".join(" ".join(str(each).split()) for each in said if each)
