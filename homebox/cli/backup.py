"""`homebox backup`: the household in one file.

Says on standard error what it saves and, at the end, what it could not; the archive may go to standard output, for a
pipe that encrypts it. What is in it is `homebox/backup`'s business.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from homebox.cli import terminal
from homebox.cli.progress import Stages, size
from homebox.client.sanitise import clean, safe_json
from homebox.errors import BadFile, NotFound, UsageError

if TYPE_CHECKING:
    from homebox.backup.archive import Manifest
    from homebox.backup.save import Saved


def backup(
    file: Annotated[
        str | None,
        typer.Argument(metavar="[FILE|-]", help="Where to; - is standard output.", show_default=False),
    ] = None,
    state: Annotated[
        Path | None, typer.Option("--state", metavar="DIR", help="The state directory, if not the usual one.")
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Save nothing: read FILE and compare its checksums.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="What was saved, as one JSON object.")] = False,
) -> int:
    """Save chats, people, keys, usage and configuration in one file. The daemon may run meanwhile.

    Only you can read the file. It holds everybody's chats: keep it where you would keep a diary. Models are not in
    it, but their names are; a TLS key is not in it either.

    Examples:

    \b
      homebox backup
      homebox backup /mnt/stick/homebox.tar.gz
      homebox backup - | age -r age1... > homebox.tar.gz.age
      homebox backup --verify homebox.tar.gz
    """
    stages = Stages(only_bar=True)
    try:
        if verify:
            return _verify(file, stages, json)
        return _save(file, state, stages, json)
    finally:
        stages.clear()


def contents(manifest: Manifest) -> str:
    """`3 chats, people, keys` as a person would say it."""
    from homebox.backup.contents import item_of

    counted = Counter(item.about for entry in manifest.files if (item := item_of(entry.name)))
    # One file of chats a person; of the others it matters only whether they are there.
    said = [f"chats of {count} people" if what == "chats" else what for what, count in counted.items()]
    return ", ".join(said).replace("chats of 1 people", "chats of 1 person") or "nothing"


def _verify(file: str | None, stages: Stages, json: bool) -> int:
    from homebox.backup.restore import verify

    if file in (None, "-"):
        raise UsageError("say which file", hint="homebox backup --verify FILE")
    path = Path(str(file))
    found = verify(path, stages)
    stages.clear()
    if json:
        _print_json(path, found, path.stat().st_size)
        return 0
    made = time.strftime("%Y-%m-%d %H:%M", time.localtime(found.created))
    print(clean(f"{path} is whole: {contents(found)}; made {made} on {found.host or 'another machine'}"))
    return 0


def _save(file: str | None, state: Path | None, stages: Stages, json: bool) -> int:
    from homebox import config
    from homebox.backup.save import save_to_file, save_to_stream

    source = state or config.state_dir(config.load().settings)
    if file == "-":
        if json:
            raise UsageError("--json and - would both go to standard output", hint="Name a file.")
        if sys.stdout.isatty():
            raise UsageError("a backup is no text for a terminal", hint="Name a file, or pipe it somewhere.")
        saved = save_to_stream(sys.stdout.buffer, source, progress=stages)
        stages.clear()
        terminal.say(f"saved {contents(saved.manifest)}; not read back: it went to standard output")
    else:
        path = _target(file)
        saved = save_to_file(path, source, progress=stages)
        stages.clear()
        _tell(path, saved, json)
    return _complain(saved)


def _target(file: str | None) -> Path:
    path = Path(file or ".")
    if file and file.endswith("/") and not path.is_dir():
        raise NotFound(f"there is no directory {file}", hint="Is the disk mounted? Make it, or name a file.")
    return path / time.strftime("homebox-%Y-%m-%d-%H%M%S.tar.gz") if path.is_dir() else path


def _tell(path: Path, saved: Saved, json: bool) -> None:
    if json:
        _print_json(path, saved.manifest, saved.bytes)
        return
    terminal.prepare_stdout()
    print(clean(f"{path}  {size(saved.bytes)}  {contents(saved.manifest)}"))
    if saved.manifest.models:
        terminal.say(f"models are not in it: {', '.join(model.name for model in saved.manifest.models)}")


def _complain(saved: Saved) -> int:
    """What is not as it should be comes last, and in the exit code: a nightly job must not overlook it."""
    for name in saved.manifest.damaged:
        terminal.say(f"{name} is damaged; it was saved as it is")
    for reason in saved.left_out:
        terminal.say(f"left out: {reason}")
    if saved.manifest.damaged or saved.left_out:
        raise BadFile("the backup is written, but not everything in it is good", hint="See the lines above.")
    return 0


def _print_json(path: Path, manifest: Manifest, count: int) -> None:
    import msgspec

    terminal.prepare_stdout()
    body = {"file": str(path), "bytes": count, **msgspec.to_builtins(manifest)}
    sys.stdout.write(safe_json(msgspec.json.encode(body).decode()) + "\n")
