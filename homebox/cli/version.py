"""`homebox version`: which version is this, and which one runs the box?"""

from __future__ import annotations

import platform
import sys
from typing import Annotated, Any

import msgspec
import typer

import homebox
from homebox.cli.status import health
from homebox.client import connection
from homebox.client.sanitise import clean, safe_json
from homebox.errors import HomeboxError
from homebox.wire.events import SCHEMA


def version(json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False) -> int:
    """Versions of this program and of the daemon.

    Example:

    \b
      homebox version --json
    """
    found: dict[str, Any] = {
        "homebox": homebox.__version__,
        "schema": SCHEMA,
        "python": platform.python_version(),
        "daemon": _daemon_version(),
    }
    if json:
        sys.stdout.write(safe_json(msgspec.json.encode(found).decode()) + "\n")
    else:
        sys.stdout.write(f"homebox {found['homebox']} (Python {found['python']})\n")
        sys.stdout.write(clean(f"daemon {found['daemon'] or 'not reachable'}") + "\n")
    return 0


def _daemon_version() -> str | None:
    """The running daemon's version; None if none can be asked, which is an answer here and not a failure."""
    try:
        said = health(connection.from_environment()).get("version")
    except HomeboxError:
        return None
    return str(said) if said else None
