"""`homebox restore`: a household out of a file. What happens to the files is `homebox/backup`'s business."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from homebox.cli import terminal
from homebox.cli.progress import Stages
from homebox.client.sanitise import clean, safe_json

if TYPE_CHECKING:
    from homebox.backup.restore import Restored


def restore(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="As homebox backup wrote it.", show_default=False)
    ],
    state: Annotated[
        Path | None, typer.Option("--state", metavar="DIR", help="The state directory, if not the usual one.")
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Move what is there aside into before-restore-DATE.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="What was restored, as one JSON object.")] = False,
) -> int:
    """Bring back what a backup holds. The daemon must not run meanwhile.

    Every checksum is compared before anything is touched, and nothing is overwritten. A configuration file that
    exists stays; the saved one is put beside it as NAME.restored.

    Examples:

    \b
      homebox restore homebox-2026-11-05-031500.tar.gz
      sudo homebox restore homebox.tar.gz --state /var/lib/homebox --replace
    """
    from homebox import config
    from homebox.backup.restore import restore as put_back

    target = state or config.state_dir(config.load().settings)
    stages = Stages(only_bar=True)
    try:
        done = put_back(file, target, replace=replace, progress=stages)
    finally:
        stages.clear()
    terminal.prepare_stdout()
    if json:
        _print_json(target, done)
    else:
        _tell(target, done)
    return 0


def _tell(target: Path, done: Restored) -> None:
    from homebox.cli.backup import contents
    from homebox.library.catalogue import how_to_get

    print(clean(f"restored to {target}: {contents(done.manifest)}"))
    if done.aside:
        print(clean(f"what was there before: {done.aside}"))
    for path in done.configuration:
        print(clean(f"configuration: {path}"))
    for path in done.unwritten:
        terminal.say(
            f"{path} may not be written by this account: run it with sudo, or take it from the archive"
        )
    for name in done.manifest.damaged:
        terminal.say(f"{name} was damaged already when it was saved")
    for name in done.missing_models:
        terminal.say(f"the model {name} is not installed here: {how_to_get(name)}")


def _print_json(target: Path, done: Restored) -> None:
    import msgspec

    body = {
        "state": str(target),
        "aside": str(done.aside) if done.aside else None,
        "configuration": [str(path) for path in done.configuration],
        "unwritten": [str(path) for path in done.unwritten],
        "missing_models": done.missing_models,
        "manifest": msgspec.to_builtins(done.manifest),
    }
    sys.stdout.write(safe_json(msgspec.json.encode(body).decode()) + "\n")
