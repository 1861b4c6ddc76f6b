"""`homebox audit`: who did what on this box, and when?

Asks the daemon for the newest lines of its record and shows them in columns, or as they are with `--json`. For
administrators; names and counts, never what was asked.
"""

from __future__ import annotations

import datetime
import sys
import time
from typing import Annotated, Any
from urllib.parse import urlencode

import typer

from homebox.cli import columns, terminal
from homebox.cli.durations import seconds
from homebox.client import connection
from homebox.client.sanitise import clean, safe_json
from homebox.errors import UsageError

MOST = 10_000


def audit(
    person: Annotated[
        str | None,
        typer.Option("--person", metavar="NAME", help="Only what this person did, or was done to."),
    ] = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="TIME", help="Nothing older: 30m, 2h, 7d.")
    ] = None,
    lines: Annotated[int, typer.Option("-n", "--lines", metavar="N", help="At most so many.")] = 50,
    json: Annotated[bool, typer.Option("--json", help="A JSON object a line, as it was written.")] = False,
) -> int:
    """Who did what on this box, and when: answers, refusals, acts of administration.

    For administrators. The newest comes last.

    Examples:

    \b
      homebox audit --since 2h
      homebox audit --person mia -n 200
      homebox audit --json | jq 'select(.what == "refused")'
    """
    if not 1 <= lines <= MOST:
        raise UsageError(f"-n {lines} is not between 1 and {MOST}")
    query: dict[str, Any] = {"limit": lines}
    if person is not None:
        query["person"] = person
    if since is not None:
        query["since"] = time.time() - seconds(since, "--since")
    terminal.prepare_stdout()
    found = connection.from_environment().json("GET", f"/homebox/audit?{urlencode(query)}")["lines"]
    if json:
        import json as library

        sys.stdout.write("".join(safe_json(library.dumps(each)) + "\n" for each in found))
        return 0
    if not found:
        terminal.say("nothing is on record")
    within = columns.room()
    for each in found:
        head, *rest = (clean(part) for part in row(each))
        sys.stdout.write("\n".join(columns.flow(f"{head}  ", rest, within, len(head) + 2)) + "\n")
    return 0


def row(line: dict[str, Any]) -> list[str]:
    """Its parts: `2026-11-02 10:22:33  anna          answer         POST /v1/chat/completions  tiny  12 in, 34 out  stop  0.8 s`."""
    who = str(line.get("person", "-"))
    if line.get("spoken_by"):
        who = f"{who} (by {line['spoken_by']})"
    parts = [_clock(str(line.get("at", ""))), f"{who:12}", f"{line.get('what', '')!s:13}"]
    parts += [str(line[name]) for name in ("target", "route", "model") if line.get(name)]
    if "tokens_in" in line:
        parts.append(f"{line['tokens_in']} in, {line.get('tokens_out', 0)} out")
    parts += [
        str(line[name]) for name in ("code", "status") if line.get("what") == "refused" and name in line
    ]
    if line.get("outcome") == "left_out":
        parts.append(f"{line.get('count', 0)} more, not written one by one")
    if line.get("what") == "answer":
        parts.append(str(line.get("code") or line.get("outcome")))
    if isinstance(line.get("ms"), int | float):
        parts.append(f"{line['ms'] / 1000:.1f} s")
    return [" ".join(part.split("\n")) for part in parts]


def _clock(stamp: str) -> str:
    """The record's universal time as this person's clock shows it."""
    try:
        at = datetime.datetime.fromisoformat(stamp.replace("Z", "+00:00"))
    except ValueError:
        return stamp
    return at.astimezone().strftime("%Y-%m-%d %H:%M:%S")
