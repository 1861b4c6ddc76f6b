"""`homebox top`: who runs what, how fast, in how much memory?

On a terminal the monitor's screen; with `--once`, `--json` or `--jsonl`, or where nothing can be drawn, text or JSON for
scripts. Others are seen by name and counters, never by their words.
"""

from __future__ import annotations

import shutil
import sys
import time
from dataclasses import replace
from typing import Annotated

import msgspec
import typer

from homebox.cli import figures, terminal
from homebox.client import connection, settings
from homebox.client.sanitise import safe_json
from homebox.client.streams import Order, View, parse_filter, parse_order
from homebox.errors import UsageError
from homebox.wire.events import Snapshot, decode_snapshot


def top(
    once: Annotated[bool, typer.Option("--once", help="One picture, then leave.")] = False,
    json: Annotated[bool, typer.Option("--json", help="One snapshot as a JSON object, then leave.")] = False,
    jsonl: Annotated[bool, typer.Option("--jsonl", help="A JSON object a line for every snapshot.")] = False,
    interval: Annotated[float, typer.Option("--interval", metavar="SECS", help="Time between two.")] = 2.0,
    sort: Annotated[
        str, typer.Option("--sort", metavar="COL", help="The column to sort by; -COL: the other way round.")
    ] = "age",
    filter: Annotated[
        str, typer.Option("--filter", metavar="EXPR", help="Only some streams: 'user=dad tok_s<10'.")
    ] = "",
    mine: Annotated[bool, typer.Option("--mine", help="Only your own streams.")] = False,
    readonly: Annotated[bool, typer.Option("--readonly", help="Only look: nothing can be stopped.")] = False,
    ascii: Annotated[bool, typer.Option("--ascii", help="No characters beyond ASCII.")] = False,
    theme: Annotated[
        str | None, typer.Option("--theme", metavar="NAME", help="dark, light, ansi, or another.")
    ] = None,
) -> int:
    """Watch the box: who runs what, how fast, in how much memory.

    A filter is words that must all hold: user=dad tok_s<10 state=decode; a word alone is looked for in user, state,
    model, client and id.

    Examples:

    \b
      homebox top
      homebox top --once --sort tok_s
      homebox top --filter "user=dad state=wait"
      homebox top --jsonl | jq .tok_s_out
    """
    if json and jsonl:
        raise UsageError("--json and --jsonl are two different outputs", hint="Give one of them.")
    if not 0.1 <= interval <= 3600:
        raise UsageError(f"--interval {interval:g} is not between 0.1 and 3600 seconds")
    view = View(parse_order(sort), parse_filter(filter), mine)
    terminal.prepare_stdout()
    daemon = connection.from_environment()
    if once or json:
        _show(snapshot(daemon), view, json=json or jsonl, goes_on=False)
    elif jsonl or not _has_screen():
        _follow(daemon, view, interval, json=jsonl)
    else:
        return _open_screen(daemon, view, interval, readonly=readonly, ascii=ascii, theme=theme)
    return 0


def snapshot(daemon: connection.Daemon) -> Snapshot:
    """The box at this moment."""
    return msgspec.convert(daemon.json("GET", "/homebox/monitor"), Snapshot)


def _has_screen() -> bool:
    """The screen is drawn on standard error, so that is one, too."""
    return all(each.isatty() for each in (sys.stdin, sys.stdout, sys.stderr)) and not terminal.is_dumb()


def _open_screen(
    daemon: connection.Daemon, view: View, interval: float, *, readonly: bool, ascii: bool, theme: str | None
) -> int:
    snapshot(daemon)  # no daemon, or no right to look, is said in words before anything is drawn
    from homebox.tui import start

    wanted = settings.screens()
    narrow = ascii or (terminal.only_ascii() if wanted.ascii is None else wanted.ascii)
    look = replace(wanted, theme=theme or wanted.theme, ascii=narrow)
    return start.top(daemon, look, view=view, interval_s=interval, readonly=readonly)


def _follow(daemon: connection.Daemon, view: View, interval: float, *, json: bool) -> None:
    with daemon.open(
        "GET", f"/homebox/monitor?interval={interval:g}", timeout_s=interval + connection.SILENCE_S
    ) as reply:
        for line in reply.lines():
            _show(decode_snapshot(line), view, json=json, goes_on=True)


def _show(now: Snapshot, view: View, *, json: bool, goes_on: bool) -> None:
    if view != View(Order()):
        now = view.narrowed(now)
    if json:
        sys.stdout.write(safe_json(msgspec.json.encode(now).decode()) + "\n")
    else:
        width = min(140, shutil.get_terminal_size((80, 24)).columns) if sys.stdout.isatty() else 80
        at = time.strftime("%H:%M:%S", time.localtime(now.at))
        lines = figures.screen(now, width=width)
        leave = " - Ctrl-C leaves" if goes_on and sys.stdout.isatty() else ""
        sys.stdout.write("\n".join([*lines, f" at {at}{leave}", ""]) + "\n")
    sys.stdout.flush()
