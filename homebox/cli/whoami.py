"""`homebox whoami`: for whom does the daemon take me, and what may I do?"""

from __future__ import annotations

import sys
from typing import Annotated, Any

import msgspec
import typer

from homebox.cli import terminal
from homebox.client import connection
from homebox.client.sanitise import clean, safe_json
from homebox.wire.people import PersonRow


def whoami(json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False) -> None:
    """Your name, your role, your limits and what is used of them, as the daemon sees it.

    Example:

    \b
      homebox whoami
    """
    from homebox.cli.people import described

    terminal.prepare_stdout()
    found: dict[str, Any] = connection.from_environment().json("GET", "/homebox/me")
    if json:
        sys.stdout.write(safe_json(msgspec.json.encode(found).decode()) + "\n")
        return
    row = msgspec.convert(found, PersonRow)
    first, *rest = described(row)
    if row.admin and row.role != "admin":
        first += "  (administers this box)"
    if key := found.get("key"):
        first += f"  by key {key}"
    sys.stdout.write(clean("\n".join([first, *rest])) + "\n")
