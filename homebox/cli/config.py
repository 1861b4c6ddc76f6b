"""`homebox config`: which settings hold, and where does each come from?

Shows what a daemon that starts now would use, with the origin of each value; with `--daemon` what the one that runs is
using. Reads and checks only; a file is edited with an editor.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from homebox.cli import terminal
from homebox.client import connection
from homebox.client import settings as client
from homebox.client.sanitise import clean, safe_json
from homebox.errors import UsageError

if TYPE_CHECKING:
    from homebox.config import Loaded

app = typer.Typer(
    help="Which settings hold, and where they come from.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
)
ConfigFile = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="Read this file, not /etc/homebox.")
]


@app.command("show")
def show(
    origin: Annotated[bool, typer.Option("--origin", help="Say where each value comes from.")] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON object, origins included.")] = False,
    config: ConfigFile = None,
    daemon: Annotated[
        bool, typer.Option("--daemon", help="What the running daemon uses; for administrators.")
    ] = False,
) -> int:
    """Every setting with its value. Those of a daemon that would start now, and of this client.

    Examples:

    \b
      homebox config show --origin
      homebox config show --daemon
      homebox config show --json | jq .settings.model
    """
    if daemon and (config or origin):
        raise UsageError(
            "--daemon shows values that are in use, and not where they came from", hint="Leave out the other."
        )
    terminal.prepare_stdout()
    found = connection.from_environment().json("GET", "/homebox/config") if daemon else gathered(config)
    if json:
        import msgspec

        sys.stdout.write(safe_json(msgspec.json.encode(found).decode()) + "\n")
        return 0
    _write(found["settings"], found["origin"] if origin else {})
    if reach := found.get("client"):
        sys.stdout.write("\n# this client\n")
        _write(reach["settings"], reach["origin"] if origin else {})
    return 0


@app.command("check")
def check(file: Annotated[Path, typer.Argument(metavar="FILE", help="A configuration file.")]) -> int:
    """Whether a daemon could run with this file. Ends with 2 and the reason if not.

    Example:

    \b
      homebox config check /etc/homebox/config.toml
    """
    loaded = _load(file, {})
    said = sum(origin == str(file) for origin in loaded.origin.values())
    sys.stdout.write(clean(f"ok: {file}: {said} {'key' if said == 1 else 'keys'}") + "\n")
    return 0


@app.command("path")
def path() -> int:
    """Which files are read, in this order; a later one wins.

    Example:

    \b
      $EDITOR "$(homebox config path | head -1)"
    """
    from homebox.config import files

    for each in files():
        sys.stdout.write(clean(f"{each}") + "\n")
    sys.stdout.write(clean(f"{client.path()}") + "\n")
    return 0


def gathered(config: Path | None) -> dict[str, Any]:
    """What this process would use: settings and origins of the daemon, and of this client (its key is not shown)."""
    import msgspec

    loaded = _load(config, None)
    reach = client.load()
    url = client.shown(reach.url) if reach.url else None
    values = {"url": url, "key": "(hidden)" if reach.key else None, "socket": reach.socket}
    return {
        "settings": msgspec.to_builtins(loaded.settings),
        "origin": dict(loaded.origin),
        "client": {
            "settings": {name: str(value) if value else "" for name, value in values.items()},
            "origin": {name: reach.origin.get(name, "default") for name in values},
        },
    }


def _load(config: Path | None, environ: dict[str, str] | None) -> Loaded:
    from homebox import config as configuration

    return configuration.load(config=config, environ=environ)


def _write(settings: dict[str, Any], origin: dict[str, str]) -> None:
    lines = {name: f"{name} = {_toml(value)}" for name, value in settings.items()}
    width = min(48, max(map(len, lines.values()), default=0))
    for name, line in lines.items():
        said = f"  # {origin[name]}" if name in origin else ""
        sys.stdout.write(clean(f"{line:{width}}{said}".rstrip()) + "\n")


def _toml(value: Any) -> str:
    """A value as the file would say it."""
    import json

    if isinstance(value, dict):
        return "{" + ", ".join(f"{name} = {_toml(each)}" for name, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value, ensure_ascii=False)
