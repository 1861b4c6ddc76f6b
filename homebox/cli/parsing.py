"""How do the words of a command line become values without loading a validation library?

Typer turns option values into Python's through pydantic, whose import costs more than everything else that
`homebox ask` does before its request is sent. Nearly all options are plain: text, a number, a flag, one of a few words,
a list of those. Those are converted here; an option of any other kind keeps Typer's own way, as does every option if a
later Typer arranges its parts differently (then only slower). It knows Typer's parameters and no command.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, get_args, get_origin

import typer


def quicken(command: Any) -> None:
    """Give the plain options of a command the quick conversion."""
    for param in command.get_params(
        typer.Context(command, **command.context_settings)
    ):  # with --help, kept there
        descriptor = getattr(param, "type_descriptor", None)
        if descriptor is None or not hasattr(param, "_runtime_param"):
            continue
        convert = _converter(descriptor.annotation)
        if convert is not None and _is_plain(descriptor.parameter_info):
            param._runtime_param = _Plain(convert)


class _Plain:
    """What Typer asks of a conversion: `coerce`."""

    def __init__(self, convert: Callable[[Any], Any]) -> None:
        self._convert = convert

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        several = param.multiple or param.nargs == -1
        if value is None:
            return () if several else None
        try:
            return [self._convert(item) for item in value] if several else self._convert(value)
        except ValueError as error:
            raise typer.BadParameter(str(error), ctx=ctx, param=param) from None


def _is_plain(info: Any) -> bool:
    return not any(getattr(info, name, None) is not None for name in ("parser", "min", "max"))


def _converter(annotation: Any) -> Callable[[Any], Any] | None:
    if get_origin(annotation) is list:
        return _converter(get_args(annotation)[0])
    if get_origin(annotation) is Literal:
        return _choice(get_args(annotation))
    plain: dict[Any, Callable[[Any], Any]] = {str: str, int: _integer, float: _number, bool: _flag}
    return plain.get(annotation)


def _choice(choices: tuple[Any, ...]) -> Callable[[Any], Any]:
    def convert(value: Any) -> Any:
        if value not in choices:
            raise ValueError(f"{value!r} is not one of: {', '.join(choices)}")
        return value

    return convert


def _integer(value: Any) -> int:
    try:
        return int(value)
    except ValueError:
        raise ValueError(f"{value!r} is not a whole number") from None


def _number(value: Any) -> float:
    try:
        return float(value)
    except ValueError:
        raise ValueError(f"{value!r} is not a number") from None


def _flag(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    raise ValueError(f"{value!r} is not a flag")
