"""It does not fit: by how much, and what would?

Tries what a person could change and says what each change comes to. Knows nothing of how it is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from homebox.errors import NoMemory
from homebox.fit.demand import Demand
from homebox.fit.model import Model
from homebox.fit.plan import Plan, weight_bytes
from homebox.fit.room import LEAST_BLOCKS, Fit, room
from homebox.fit.words import numbers, share, size, tokens

_SMALL_CHUNK = 128

Ask = Callable[[Plan], Demand]


def check(found: Fit, model: Model, plan: Plan, ask: Ask) -> Fit:
    """The same. Raises NoMemory where it does not fit. `ask`: the demand of the model under another plan."""
    if not found.short:
        return found
    where = "on the GPU" if found.memory.kind == "gpu" else "in memory"
    raise NoMemory(
        f"{model.name} needs {size(found.needed)} free {where}, {size(found.demand.weights)} of it for weights in "
        f"{found.demand.kinds}; {size(found.memory.free)} are free, {size(found.short)} too few",
        hint=_hint(remedies(model, plan, found, ask, LEAST_BLOCKS * plan.block_tokens), found.short),
        numbers=numbers(found),
    )


def check_wish(found: Fit, model: Model, plan: Plan, ask: Ask, people: int, context: int) -> None:
    """Raises NoMemory where so many people cannot have so many tokens each."""
    wanted = people * -(-context // plan.block_tokens) * plan.block_tokens
    if found.tokens >= wanted:
        return
    missing = (wanted - found.tokens) * found.demand.kv_token
    instead = [share(people, found.tokens // people)]
    instead += [share(found.tokens // context, context)] if found.tokens >= context else []
    if found.most_tokens >= wanted:
        instead.append(f'kv_memory = "{-(-wanted * found.demand.kv_token // 2**20)}MiB"')
    else:
        instead += remedies(model, plan, found, ask, wanted)
    raise NoMemory(
        f"{model.name} has room for {tokens(found.tokens)} tokens here; {share(people, context)} are "
        f"{tokens(wanted)}, {size(missing)} too much",
        hint=_hint(instead, missing),
        numbers=numbers(found) | {"wanted_tokens": wanted},
    )


def remedies(model: Model, plan: Plan, found: Fit, ask: Ask, wanted: int) -> list[str]:
    """Each change that would hold `wanted` tokens in this memory; if none does, that which comes nearest."""
    tried = [(words, room(ask(other), found.memory)) for words, other in _changes(model, plan)]
    enough = [
        f"{words} (room for {tokens(it.most_tokens)} tokens)"
        for words, it in tried
        if not it.short and it.most_tokens >= wanted
    ]
    if enough:
        return enough
    words, best = min(tried, key=lambda each: each[1].needed, default=("", found))
    return [f"{words} with {size(best.needed)} free"] if best.needed < found.needed else []


def _changes(model: Model, plan: Plan) -> Iterator[tuple[str, Plan]]:
    """What could be set otherwise, in the order in which an answer suffers little."""
    weights = weight_bytes(model, plan)
    if plan.on_gpu and plan.kv not in ("int8", "fp8"):
        yield "keys and values in int8", replace(plan, kv="int8")
    if plan.max_chunk_tokens > _SMALL_CHUNK:
        yield f"max_chunk_tokens = {_SMALL_CHUNK}", replace(plan, max_chunk_tokens=_SMALL_CHUNK)
    if plan.kernels == "reference":
        return
    for bits in ("int8", "int4"):
        smaller = replace(plan, quantize=bits)
        if weight_bytes(model, smaller) < weights:
            yield f'quantize = "{bits}"', smaller
    if weight_bytes(model, replace(plan, quantize="auto")) < weights:
        yield 'quantize = "auto"', replace(plan, quantize="auto")


def _hint(instead: list[str], missing: int) -> str:
    return f"What would fit: {'; '.join([*instead, f'{size(missing)} more memory, or a smaller model'])}."
