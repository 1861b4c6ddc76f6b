"""What does a model's own chat template make of a conversation?

A template is a program that came with somebody's model file, so it runs in jinja2's immutable sandbox, with the few
extras that template authors expect (the ones transformers documents), and within a limit of time and size. It sees
plain data only. It knows nothing of tokens; `text/tokens.py` calls it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from homebox.errors import BadFile, InvalidRequest

MAX_CPU_S = 2.0
MAX_RENDERED_CHARS = 16_000_000
MAX_NUMBER_BITS = 4_096

_deadline: ContextVar[float] = ContextVar("deadline", default=float("inf"))


class ChatTemplate:
    """One compiled template. Raises BadFile where it is not a template at all."""

    def __init__(self, source: str) -> None:
        self.source = source
        environment = _environment()
        try:
            tree = environment.parse(source)
            for loop in tree.find_all(nodes.For):
                loop.iter = nodes.Filter(loop.iter, "within_time", [], [], None, None).set_lineno(loop.lineno)
            self._template = environment.from_string(tree)
        except (jinja2.TemplateError, RecursionError) as error:
            raise BadFile(
                f"the model's chat template cannot be read: {error}",
                hint="Put a working template into chat_template.jinja beside the weights and adopt the model again.",
            ) from None

    def render(self, variables: Mapping[str, Any]) -> str:
        """The text for these variables.

        Raises InvalidRequest, with the template's own words, when it refuses them (roles that do not alternate, a
        field that is missing), and when it takes more than MAX_CPU_S of processor time or MAX_RENDERED_CHARS.
        """
        token = _deadline.set(time.thread_time() + MAX_CPU_S)
        try:
            return "".join(_within_size(self._template.generate(dict(variables))))
        except InvalidRequest:
            raise
        except Exception as error:  # a template is somebody else's program: it may fail in any way there is
            raise InvalidRequest(
                f"the model's chat template does not accept these messages: {error or type(error).__name__}",
                param="messages",
            ) from None
        finally:
            _deadline.reset(token)


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox, with the clock looked at wherever a template can spend time: each turn of a loop, each call."""

    intercepted_binops = frozenset({"*", "**"})

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        _check_time()
        return super().call(context, obj, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "**":
            too_much = (
                abs(left).bit_length() * abs(right) > MAX_NUMBER_BITS if _integers(left, right) else False
            )
        elif _integers(left, right):
            too_much = left.bit_length() + right.bit_length() > MAX_NUMBER_BITS
        else:
            sized, times = (left, right) if hasattr(left, "__len__") else (right, left)
            too_much = hasattr(sized, "__len__") and len(sized) * times > MAX_RENDERED_CHARS
        if too_much:
            raise _excess("makes a value that is too large")
        return super().call_binop(context, operator, left, right)


class _Generation(Extension):
    """`{% generation %}...{% endgeneration %}` marks an assistant's words for training; here it only holds them."""

    tags = {"generation"}  # noqa: RUF012 - jinja2's own way to declare it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> _Environment:
    environment = _Environment(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
    environment.filters["tojson"] = _tojson
    environment.filters["within_time"] = _within_time
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    environment.globals["dict"] = _plain_dict
    return environment


def _integers(left: Any, right: Any) -> bool:
    return isinstance(left, int) and isinstance(right, int)


def _excess(what: str) -> InvalidRequest:
    return InvalidRequest(
        f"the model's chat template {what}",
        param="messages",
        hint="Send less, or use another model: its template is odd.",
    )


def _check_time() -> None:
    if time.thread_time() > _deadline.get():
        raise _excess(f"took more than {MAX_CPU_S:g} s")


@jinja2.pass_context  # not constant: otherwise the compiler would run it
def _within_time(context: Context, items: Iterable[Any]) -> Iterator[Any]:
    for item in items:
        _check_time()
        yield item


def _within_size(chunks: Iterable[str]) -> Iterator[str]:
    size = 0
    for chunk in chunks:
        _check_time()
        size += len(chunk)
        if size > MAX_RENDERED_CHARS:
            raise _excess(f"made more than {MAX_RENDERED_CHARS} characters")
        yield chunk


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter would write < and > as escapes, which is for web pages."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _plain_dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    return dict(*args, **kwargs)
