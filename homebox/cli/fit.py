"""`homebox models fit`: would this model fit here, or on that card, and for how many people at once?

The bill line by line and the verdict go to standard output; what does not fit is an error with the next step, after the
bill. The arithmetic is `homebox/fit`'s, the same that the engine decides by; here is only what is asked for.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import typer

from homebox.cli import columns, terminal

if TYPE_CHECKING:
    from homebox.config import Settings
    from homebox.fit.demand import Demand
    from homebox.fit.model import Model
    from homebox.fit.plan import Plan
    from homebox.fit.room import Memory

_PEOPLE = 6  # a household
_LEAST_CONTEXT = 16


class _Wish(NamedTuple):
    """`context` 0: as much as there is."""

    people: int
    context: int


def fit(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="An installed model, a folder or file of one, a config.json, or llama-3.1-8b. Left out: the box's own.",
            show_default=False,
        ),
    ] = "",
    memory: Annotated[
        str,
        typer.Option("--memory", metavar="SIZE", help='Free memory, like "24GiB"; left out: measured here.'),
    ] = "",
    context: Annotated[
        int,
        typer.Option(
            "--context", metavar="N", help="Tokens that each conversation shall have.", show_default=False
        ),
    ] = 0,
    people: Annotated[
        int,
        typer.Option(
            "--people",
            metavar="N",
            help="Conversations at a time; left out: 6, or 1 with --context.",
            show_default=False,
        ),
    ] = 0,
    quantize: Annotated[
        Literal["auto", "none", "int8", "int4", "fp8"] | None,
        typer.Option(
            "--quantize",
            metavar="auto|none|int8|int4|fp8",
            help="Weights as the file has them, unrounded, or in so many bits; left out: as the settings say.",
        ),
    ] = None,
    kv: Annotated[
        Literal["auto", "bf16", "int8", "fp8"] | None,
        typer.Option(
            "--kv",
            metavar="auto|bf16|int8|fp8",
            help="Keys and values, on a GPU; left out: as the settings say.",
        ),
    ] = None,
    device: Annotated[
        Literal["auto", "cpu", "gpu"],
        typer.Option("--device", help="auto: a GPU where one is here or --memory is given."),
    ] = "auto",
    unified: Annotated[
        bool,
        typer.Option("--unified", help="GPU and system share this memory; 8 GiB are kept for the system."),
    ] = False,
    table: Annotated[
        bool, typer.Option("--table", help="On cards of 12 to 141 GB, in bf16 and int4.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> int:
    """Whether a model fits, and for how many people. Counted from its headers, line by line; nothing is loaded.

    Examples:

    \b
      homebox models fit smollm2-135m
      homebox models fit llama-3.1-8b --memory 24GiB --quantize int4 --people 6 --context 16000
      homebox models fit ~/models/Llama-3.2-1B --table
    """
    from homebox import config
    from homebox.fit import words
    from homebox.fit.advice import check, check_wish
    from homebox.fit.demand import demand
    from homebox.fit.room import room

    settings = config.load().settings
    model = _model(name or settings.model, settings)
    if table:
        from homebox.fit.cards import table as of_cards

        terminal.answer(*columns.table(of_cards(model), columns.room()))
        return 0
    wish = _wish(people, context, model)
    where = _memory(memory, device, unified)
    plan = _plan(model, settings, where, quantize, kv, wish.people)

    def ask(plan: Plan) -> Demand:
        return demand(model, plan)

    most = plan.max_running * model.spec.context
    found = room(ask(plan), where, kv_bytes=config.size_bytes(settings.kv_memory), most_tokens=most)
    if not json:  # what does not fit has a bill, too
        said = [words.lowered(found)] if found.lowered else []
        terminal.answer(
            model.name, *columns.table(words.bill(found, plan), columns.room()), words.beside(found), *said
        )
    check(found, model, plan, ask)
    verdict = words.verdict(found, model.spec.context, wish.people)
    if wish.context:
        check_wish(found, model, plan, ask, *wish)
        verdict = words.granted(found, *wish)
    if json:
        terminal.answer_json({"model": model.name, "verdict": verdict, **words.numbers(found)})
    else:
        terminal.answer(verdict)
    return 0


def _model(name: str, settings: Settings) -> Model:
    """Raises BadFile for what cannot be run, ModelNotFound for what is not there."""
    from homebox import config
    from homebox.errors import ModelNotFound
    from homebox.fit import cards
    from homebox.fit.model import read
    from homebox.library.store import Library, valid_name

    library = Library(config.state_dir(settings))
    if valid_name(name) and library.installed(name):
        return read(library.path(name))
    path = Path(name).expanduser()
    if path.exists() or "/" in name:
        return read(path)
    if (found := cards.known(name)) is None:
        raise ModelNotFound(
            f"no model {name!r} in the library, and no such file",
            hint=f"Name an installed one (homebox models list), a folder with a config.json, or {', '.join(cards.SHAPES)}.",
        )
    return found


def _wish(people: int, context: int, model: Model) -> _Wish:
    from homebox.errors import UsageError

    if people < 0 or context < 0 or 0 < context < _LEAST_CONTEXT:
        raise UsageError(
            f"--people {people} --context {context} cannot be meant",
            hint=f"At least one person, and {_LEAST_CONTEXT} tokens.",
        )
    if context > model.spec.context:
        raise UsageError(
            f"--context {context:,}: {model.name} was trained for {model.spec.context:,} tokens",
            hint=f"At most --context {model.spec.context}.",
        )
    return _Wish(people or (1 if context else _PEOPLE), context)


def _memory(said: str, device: str, unified: bool) -> Memory:
    """What is said, or else what is free here now. Raises UsageError, or DeviceMissing for a GPU that is not here."""
    from homebox.config import size_bytes
    from homebox.errors import DeviceMissing
    from homebox.fit.cards import here
    from homebox.fit.machine import free_bytes
    from homebox.fit.room import Memory

    bytes_said = size_bytes(said) if said else 0
    if device == "cpu":
        return Memory(bytes_said or free_bytes())
    if unified:
        return Memory(bytes_said or free_bytes(), "unified")
    if bytes_said:
        return Memory(bytes_said, "gpu")
    measured = here()
    if measured is None and device == "gpu":
        raise DeviceMissing("no GPU is here to be measured", hint='Say how much it has: --memory "24GiB".')
    return measured or Memory(free_bytes())


def _plan(
    model: Model, settings: Settings, where: Memory, quantize: str | None, kv: str | None, people: int
) -> Plan:
    """As the engine would have it. Raises UsageError for what a processor's kernels do not have."""
    from typing import cast

    from homebox.errors import UsageError
    from homebox.fit.machine import threads
    from homebox.fit.plan import Kernels, Kv, Plan, Quantize, fits_native, refused, uneven

    kernels: Kernels = "gpu"
    if where.kind == "host":
        native = settings.kernels != "reference" and fits_native(model.spec)
        kernels = "native" if native else "reference"
    kv = kv or settings.kv_type
    plan = Plan(
        kernels=kernels,
        quantize=cast(Quantize, quantize or settings.quantize),
        kv=cast(Kv, kv) if kv != "auto" else None,
        max_running=max(settings.max_running, people),
        max_chunk_tokens=settings.max_chunk_tokens,
        threads=settings.threads or threads(),
    )
    if it := refused(plan):
        raise UsageError(it.why, hint=f'Set {it.instead}, or ask about a GPU: --memory "24GiB".')
    if it := uneven(model, plan):
        raise UsageError(it.why, hint=f"Set {it.instead}.")
    return plan
