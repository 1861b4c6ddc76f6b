"""`homebox completion`: let Tab finish what is typed.

Writes the script for a shell, or puts it where that shell looks; no start file of anybody is changed. `words` is what the
scripts ask for ids and models: it has a moment to answer, and says nothing rather than make anybody wait.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Annotated, Literal

import typer

from homebox.client.lines import inline
from homebox.client.sanitise import clean
from homebox.errors import HomeboxError, UsageError

BUDGET_S = 0.15  # for the daemon to answer while somebody waits with a finger on Tab

app = typer.Typer(
    help="Let Tab finish commands, options, ids and names.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
)
Shell = Annotated[Literal["bash", "zsh", "fish"], typer.Argument(metavar="SHELL", help="bash, zsh or fish.")]


@app.command("show")
def show(shell: Shell) -> int:
    """Write the script of a shell, to be sourced.

    Example:

    \b
      source <(homebox completion show bash)
    """
    sys.stdout.write(_script(shell))
    return 0


@app.command("install")
def install(shell: Shell) -> int:
    """Put the script where the shell finds it, for this account.

    Example:

    \b
      homebox completion install fish
    """
    file, then = _place(shell)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(_script(shell), encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"{file}: {error.strerror or error}",
            hint=f"homebox completion show {shell} writes the script, to be put elsewhere.",
        ) from None
    print(clean(f"written to {file}\n{then}"))
    return 0


@app.command("words", hidden=True)
def words(
    kind: Annotated[Literal["chats", "deleted", "streams", "models"], typer.Argument()],
    begin: Annotated[str, typer.Argument()] = "",
) -> int:
    """Ids or names that begin so, one a line, with a tab and what they are. Without a quick daemon there are none."""
    signal.signal(signal.SIGALRM, _too_late)
    signal.setitimer(signal.ITIMER_REAL, BUDGET_S)
    try:
        found = [f"{inline(name)}\t{inline(about)}" for name, about in _found(kind)]
        signal.setitimer(signal.ITIMER_REAL, 0)
    except (HomeboxError, _TooLate):
        return 0
    sys.stdout.write("".join(f"{line}\n" for line in found if line.startswith(begin)))
    return 0


class _TooLate(Exception):
    """The time is up."""


def _too_late(number: int, frame: FrameType | None) -> None:
    raise _TooLate


def _found(kind: str) -> Iterator[tuple[str, str]]:
    from homebox.client import connection

    daemon = connection.from_environment()
    if kind in ("chats", "deleted"):
        for row in daemon.json("GET", f"/homebox/chats?limit=200&deleted={int(kind == 'deleted')}")["chats"]:
            yield row["id"], row["title"]
    elif kind == "streams":
        for row in daemon.json("GET", "/homebox/streams")["streams"]:
            yield row["id"], f"{row['person']}, {row['state']}"
    else:
        for row in daemon.json("GET", "/v1/models")["data"]:
            yield row["id"], "served"


def _script(shell: str) -> str:
    from homebox.cli import completion_scripts, tree

    return completion_scripts.SHELLS[shell](tree.whole())


def _place(shell: str) -> tuple[Path, str]:
    """The file, and what the person still has to do."""
    home = Path.home()
    data = Path(os.environ.get("XDG_DATA_HOME") or home / ".local" / "share")
    if shell == "bash":
        own = os.environ.get("BASH_COMPLETION_USER_DIR")
        file = (Path(own) if own else data / "bash-completion") / "completions" / "homebox"
        return (
            file,
            f"New shells have it where bash-completion is installed; elsewhere add to ~/.bashrc: . {file}",
        )
    if shell == "zsh":
        folder = data / "zsh" / "site-functions"
        return folder / "_homebox", f"Add to ~/.zshrc, before compinit: fpath=({folder} $fpath)"
    config = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
    return config / "fish" / "completions" / "homebox.fish", "New shells have it."
