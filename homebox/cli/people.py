"""`homebox people`: who may use the box over the network. Keys only, for now; on the Unix socket nobody needs one."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from homebox.errors import HomeboxError

if TYPE_CHECKING:
    from homebox.daemon.keys import Keys

app = typer.Typer(
    help="Who may use the box over the network: keys.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
)
keys = typer.Typer(
    help="Make, list and revoke keys.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
)
app.add_typer(keys, name="keys")


@keys.command("new")
def new(person: Annotated[str, typer.Argument(metavar="PERSON", help="For whom it speaks.")]) -> None:
    """Make a key and print it; it is shown only now.

    Example:

    \b
      homebox people keys new anna
    """
    book = _keys()
    key = book.new(person)
    try:
        print(key, flush=True)
    except OSError as error:
        book.revoke(key.split("_")[1])
        raise HomeboxError(
            f"the key could not be shown, so it was taken back: {(error.strerror or str(error)).lower()}"
        ) from None
    print("Keep it: it cannot be shown again.", file=sys.stderr)


@keys.command("list")
def list_keys() -> None:
    """The keys there are, without their secrets."""
    found = _keys().all()
    if not found:
        print("homebox: nobody has a key", file=sys.stderr)
    for key in found:
        day = time.strftime("%Y-%m-%d", time.localtime(key.created))
        print(f"{key.id}  {day}  {key.person}")


@keys.command("revoke")
def revoke(key_id: Annotated[str, typer.Argument(metavar="ID", help="As `keys list` shows it.")]) -> None:
    """Take a key's rights away: the next request with it is refused.

    Example:

    \b
      homebox people keys revoke k3J9xQ2a
    """
    key = _keys().revoke(key_id)
    print(f"{key.id} of {key.person} opens nothing any more")


def _keys() -> Keys:
    from homebox import config
    from homebox.daemon.keys import Keys

    return Keys(config.state_dir(config.load().settings))
