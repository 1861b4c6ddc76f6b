"""`homebox models`: which models are on this machine, and how do they come and go?

Works on the library's files, with or without a daemon. Names, sizes and paths go to standard output; how far a
download is goes to standard error, as a bar on a terminal and as one line a stage elsewhere. What happens to the
files is `homebox/library`'s business.
"""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from homebox.cli import fit, terminal
from homebox.cli.progress import Stages
from homebox.cli.progress import size as as_size
from homebox.client.sanitise import clean
from homebox.errors import UsageError

if TYPE_CHECKING:
    from homebox.library.manifest import Manifest
    from homebox.library.store import Library

app = typer.Typer(
    help="The models on this machine: list, show, fit, pull, adopt, remove, verify.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
)

_NAME = typer.Argument(metavar="NAME", help="As `homebox models list` shows it.", show_default=False)


@app.command("list")
def list_models(json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False) -> int:
    """What is installed, and what could be fetched by name. With HOMEBOX_URL: what the box there serves.

    Example:

    \b
      homebox models list
    """
    import msgspec

    if os.environ.get("HOMEBOX_URL"):
        return _list_remote(json)
    from homebox.library.catalogue import CATALOGUE

    library = _library()
    models, damaged = library.models(), library.damaged()
    offered = [
        entry for entry in CATALOGUE.values() if entry.name not in {m.name for m in models} | set(damaged)
    ]
    if json:
        terminal.answer_json(
            {
                "models": [msgspec.to_builtins(model) for model in models],
                "damaged": {name: error.as_dict() for name, error in damaged.items()},
                "catalogue": [{"name": entry.name, "about": entry.about} for entry in offered],
            }
        )
        return 0
    width = max((len(model.name) for model in models), default=0)
    terminal.answer(*[_row(model, width) for model in models])
    for name, error in damaged.items():
        terminal.say(f"{name} cannot be used: {error}")
    if not models:
        terminal.say("no model is installed")
    for entry in offered:
        terminal.say(f"to be had: homebox models pull {entry.name}   ({entry.about})")
    return 0


def _list_remote(json: bool) -> int:
    """The library of another computer is its owner's; what it serves can be asked for by anybody with a key."""
    from homebox.client import connection

    daemon = connection.from_environment()
    served = daemon.json("GET", "/v1/models")["data"]
    if json:
        terminal.answer_json({"models": served})
        return 0
    terminal.say(f"served by {daemon.place}; to change that, log in there")
    terminal.answer(*(f"{model['id']}  {model['max_model_len']:>7,} tokens" for model in served))
    return 0


@app.command("show")
def show(
    name: Annotated[str, _NAME],
    json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> int:
    """All that is known of one model.

    Example:

    \b
      homebox models show smollm2-135m
    """
    import msgspec

    library = _library()
    model = library.read(name)
    where = str(library.path(name))
    if json:
        terminal.answer_json(msgspec.to_builtins(model) | {"path": where})
        return 0
    terminal.answer(
        f"name          {model.name}",
        f"source        {model.source}",
        f"licence       {model.licence or 'not stated'}",
        f"architecture  {model.architecture}",
        f"parameters    {model.parameters:,}",
        f"weights       {model.format}, mostly {model.quantisation}",
        f"context       {model.context:,} tokens",
        f"vocabulary    {model.vocab_size:,} tokens",
        f"installed     {time.strftime('%Y-%m-%d %H:%M', time.localtime(model.installed_at))}",
        f"path          {where}",
        *(f"file          {file.name}  {as_size(file.size)}  sha256 {file.sha256}" for file in model.files),
    )
    return 0


app.command("fit")(fit.fit)


@app.command("pull")
def pull(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name of the catalogue.", show_default=False)],
) -> int:
    """Fetch a model of the catalogue. After an interruption the same command goes on; afterwards no network is needed.

    Example:

    \b
      homebox models pull smollm2-135m
    """
    from homebox.library import pull as pulling
    from homebox.library.store import valid_name

    library = _library()
    if valid_name(name) and library.installed(name):
        terminal.answer(f"{name} is installed already: {library.path(name)}")
        return 0
    stages = Stages()
    try:
        where = pulling.pull(library, name, stages)
    finally:
        stages.clear()
    terminal.answer(f"{name} is installed: {where}")
    return 0


@app.command("adopt")
def adopt(
    path: Annotated[
        str, typer.Argument(metavar="PATH", help="A GGUF file or a safetensors folder.", show_default=False)
    ],
    name: Annotated[
        str | None, typer.Option("--name", metavar="N", help="What to call it here.", show_default=False)
    ] = None,
) -> int:
    """Take in a model that is on this disk already. A GGUF file, or a folder with config.json, tokenizer.json and
    *.safetensors. Weights are linked, not copied, where that is possible.

    Examples:

    \b
      homebox models adopt ~/Downloads/model.gguf --name mine
      homebox models adopt ~/models/Llama-3.2-1B-Instruct
    """
    from pathlib import Path

    from homebox.library import adopt as adopting

    stages = Stages()
    try:
        where = adopting.adopt(_library(), Path(path), name, stages)
    finally:
        stages.clear()
    terminal.answer(f"{where.name} is installed: {where}")
    return 0


@app.command("rm")
def remove(
    name: Annotated[str, _NAME],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> int:
    """Remove a model from this machine.

    Example:

    \b
      homebox models rm smollm2-135m --yes
    """
    library = _library()
    if not yes and not _agreed(library, name):
        terminal.say("nothing was removed")
        return 0
    freed = library.remove(name)
    terminal.answer(f"{name} is removed: {as_size(freed)} freed")
    return 0


@app.command("verify")
def verify(name: Annotated[str, _NAME]) -> int:
    """Read every file of a model again and compare it with its checksum.

    Example:

    \b
      homebox models verify smollm2-135m
    """
    stages = Stages()
    try:
        model = _library().verify(name, stages)
    finally:
        stages.clear()
    terminal.answer(
        f"{name} is whole: {len(model.files)} files, {as_size(sum(file.size for file in model.files))}"
    )
    return 0


def _library() -> Library:
    from homebox import config
    from homebox.library.store import Library

    return Library(config.state_dir(config.load().settings))


def _agreed(library: Library, name: str) -> bool:
    from homebox.errors import BadFile

    try:
        size = as_size(sum(file.size for file in library.read(name).files))
    except BadFile:
        size = "damaged"  # to remove it is the way out
    if not sys.stdin.isatty():
        raise UsageError("removing needs a yes, and there is no terminal to ask on", hint="Add --yes.")
    return typer.confirm(clean(f"Remove {name} ({size})?"), err=True)


def _row(model: Manifest, width: int) -> str:
    size = as_size(sum(file.size for file in model.files))
    return f"{model.name:{width}}  {size:>10}  {model.quantisation:5}  {model.context:>7,} tokens  {model.architecture}"
