"""`homebox top`: who runs what, how fast, in how much memory?

One picture with `--once`, else a new one below the last every so often until Ctrl-C; as text of at most 80 columns or
as JSON for scripts. Others are seen by name and counters, never by their words.
"""

from __future__ import annotations

import shutil
import sys
import time
from typing import Annotated

import msgspec
import typer

from homebox.cli import figures, terminal
from homebox.client import connection
from homebox.client.sanitise import safe_json
from homebox.errors import UsageError
from homebox.wire.events import Snapshot, decode_snapshot


def top(
    once: Annotated[bool, typer.Option("--once", help="One picture, then leave.")] = False,
    json: Annotated[bool, typer.Option("--json", help="One snapshot as a JSON object, then leave.")] = False,
    jsonl: Annotated[bool, typer.Option("--jsonl", help="A JSON object a line for every snapshot.")] = False,
    interval: Annotated[float, typer.Option("--interval", metavar="SECS", help="Time between two.")] = 2.0,
) -> int:
    """Watch the box: who runs what, how fast, in how much memory.

    Examples:

    \b
      homebox top --once
      homebox top --interval 5
      homebox top --jsonl | jq .tok_s_out
    """
    if json and jsonl:
        raise UsageError("--json and --jsonl are two different outputs", hint="Give one of them.")
    if not 0.1 <= interval <= 3600:
        raise UsageError(f"--interval {interval:g} is not between 0.1 and 3600 seconds")
    terminal.prepare_stdout()
    daemon = connection.from_environment()
    if once or json:
        _show(snapshot(daemon), json=json or jsonl, goes_on=False)
        return 0
    with daemon.open(
        "GET", f"/homebox/monitor?interval={interval:g}", timeout_s=interval + connection.SILENCE_S
    ) as reply:
        for line in reply.lines():
            _show(decode_snapshot(line), json=jsonl, goes_on=True)
    return 0


def snapshot(daemon: connection.Daemon) -> Snapshot:
    """The box at this moment."""
    return msgspec.convert(daemon.json("GET", "/homebox/monitor"), Snapshot)


def _show(now: Snapshot, *, json: bool, goes_on: bool) -> None:
    if json:
        sys.stdout.write(safe_json(msgspec.json.encode(now).decode()) + "\n")
    else:
        width = min(80, shutil.get_terminal_size((80, 24)).columns) if sys.stdout.isatty() else 80
        at = time.strftime("%H:%M:%S", time.localtime(now.at))
        lines = figures.screen(now, width=width)
        leave = " - Ctrl-C leaves" if goes_on and sys.stdout.isatty() else ""
        sys.stdout.write("\n".join([*lines, f" at {at}{leave}", ""]) + "\n")
    sys.stdout.flush()
