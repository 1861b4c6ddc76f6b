"""`homebox usage`: how much was used, by day and person?"""

from __future__ import annotations

import sys
from typing import Annotated

import msgspec
import typer

from homebox.cli import terminal
from homebox.cli.columns import table
from homebox.client import connection
from homebox.client.sanitise import safe_json
from homebox.errors import UsageError
from homebox.wire.people import UsageRow


def usage(
    days: Annotated[int, typer.Option("--days", metavar="N", help="So many days, with today.")] = 7,
    everybody: Annotated[bool, typer.Option("--all", help="Everybody's: for administrators.")] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON array.")] = False,
) -> None:
    """Requests and tokens by day. COUNTED is what counts toward limits: prompt tokens that were not cached, and answers.

    Examples:

    \b
      homebox usage
      homebox usage --all --days 30
    """
    if not 1 <= days <= 3660:
        raise UsageError(f"--days {days} is not between 1 and 3660")
    terminal.prepare_stdout()
    path = f"/homebox/usage?days={days}" + ("&all=1" if everybody else "")
    rows = msgspec.convert(connection.from_environment().json("GET", path), dict[str, list[UsageRow]])[
        "usage"
    ]
    if json:
        sys.stdout.write(safe_json(msgspec.json.encode(rows).decode()) + "\n")
        return
    if not rows:
        terminal.say(f"nothing was used in {days} day{'s' if days > 1 else ''}")
        return
    lines: list[tuple[str, ...]] = [
        ("DAY", "PERSON", "REQUESTS", "REFUSED", "IN", "CACHED", "OUT", "COUNTED")
    ]
    for row in rows:
        numbers = (row.requests, row.refused, row.tokens_in, row.cached, row.tokens_out, row.counted)
        lines.append((row.day, row.person, *map(str, numbers)))
    sys.stdout.write("\n".join(table(lines)) + "\n")
