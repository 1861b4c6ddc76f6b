"""What can be typed, as plain data: every command with its words, options and help?

Read from the very declarations that parse a command line, so that completions and man pages cannot say anything else.
Imports every command's module; nothing that has to be quick asks for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

import typer

from homebox.cli.main import COMMANDS, build, load


@dataclass(frozen=True)
class Option:
    """`takes` is what follows it, in a word; nothing for a flag. `choices`: all that may follow."""

    names: tuple[str, ...]
    about: str
    takes: str = ""
    choices: tuple[str, ...] = ()
    several: bool = False


@dataclass(frozen=True)
class Argument:
    name: str
    about: str
    required: bool
    several: bool
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Command:
    """`path` is without `homebox`; `about` its one line; `help` the paragraphs below it, `examples` the last of them."""

    path: tuple[str, ...]
    about: str
    help: str
    examples: tuple[str, ...]
    options: tuple[Option, ...]
    arguments: tuple[Argument, ...]
    commands: tuple[Command, ...]

    @property
    def name(self) -> str:
        return " ".join(("homebox", *self.path))

    def all(self) -> Iterator[Command]:
        """This one and every one below it."""
        yield self
        for each in self.commands:
            yield from each.all()


def whole() -> Command:
    """The tree, from `homebox` down."""
    root = build()
    below = tuple(_read(load(name, entry), (name,), entry.about) for name, entry in COMMANDS.items())
    found = _read(root, (), str(root.help))
    version = Option(("--version",), "The same as the command.")
    return Command((), found.about, "", (), (*found.options, version), (), below)


def _read(command: Any, path: tuple[str, ...], about: str = "") -> Command:
    first, _, rest = str(command.help or "").partition("\n\n")
    text, _, examples = rest.partition("Example")
    context = typer.Context(command, **command.context_settings)
    params = [each for each in command.get_params(context) if not getattr(each, "hidden", False)]
    subs = {} if not path else getattr(command, "commands", {})
    return Command(
        path=path,
        about=about or " ".join(first.split()),
        help=text.strip(),
        examples=tuple(line.strip() for line in examples.splitlines()[1:] if line.strip(" \b")),
        options=tuple(_option(each, context) for each in params if each.param_type_name == "option"),
        arguments=tuple(_argument(each) for each in params if each.param_type_name == "argument"),
        commands=tuple(_read(sub, (*path, name)) for name, sub in subs.items() if not sub.hidden),
    )


def _option(param: Any, context: Any) -> Option:
    record = param.get_help_record(context)
    return Option(
        names=tuple(sorted((*param.opts, *param.secondary_opts), key=len)),  # -h and --help come as a set
        about=" ".join((record[1] if record else param.help or "").split()),
        takes="" if param.is_flag else param.metavar or "VALUE",
        choices=_choices(param),
        several=param.multiple,
    )


def _argument(param: Any) -> Argument:
    name = (param.metavar or param.name).upper()
    return Argument(name, param.help or "", param.required, param.nargs == -1, _choices(param))


def _choices(param: Any) -> tuple[str, ...]:
    annotation = getattr(getattr(param, "type_descriptor", None), "annotation", None)
    return tuple(map(str, get_args(annotation))) if get_origin(annotation) is Literal else ()
