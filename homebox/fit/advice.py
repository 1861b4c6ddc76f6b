"""It does not fit: by how much, and what would?

Tries what a person could change and says what each change comes to. Knows nothing of how it is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from homebox.errors import NoMemory
from homebox.fit.demand import Demand
from homebox.fit.model import Model
from homebox.fit.plan import Plan, Quantize, uneven, weight_bytes
from homebox.fit.room import LEAST_BLOCKS, Fit, room
from homebox.fit.words import numbers, share, size, tokens

_SMALL_CHUNK = 128
# Not fp8: as large as int8, and further off (docs/decisions/032).
_QUANTIZE: tuple[Quantize, ...] = ("auto", "int8", "int4")
_WORTH = 0.95  # of the memory that it takes now: what saves less is not worth a word

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
    kv_bytes = wanted * found.demand.kv_token
    instead = [share(people, found.tokens // people)]
    instead += [share(found.tokens // context, context)] if found.tokens >= context else []
    if found.most_tokens >= wanted:
        hint = f'What would fit: {"; ".join(instead)}. For all: kv_memory = "{-(-kv_bytes // 2**20)}MiB"'
    else:
        instead += remedies(model, plan, found, ask, wanted)
        hint = _hint(instead, found.needed_for(wanted) - found.memory.free)
    raise NoMemory(
        f"{model.name} has room for {tokens(found.tokens)} tokens here; {share(people, context)} are "
        f"{tokens(wanted)}, {size(kv_bytes - found.kv_bytes)} too much",
        hint=hint,
        numbers=numbers(found) | {"wanted_tokens": wanted},
    )


def remedies(model: Model, plan: Plan, found: Fit, ask: Ask, wanted: int) -> list[str]:
    """Each change that would hold `wanted` tokens in this memory, or each two; if none does, what comes nearest."""
    now = found.needed_for(wanted)
    nearest = now, ""
    for changes in (_one(model, plan), _two(model, plan)):
        enough = []
        for words, other in changes:
            it = room(ask(other), found.memory)
            nearest = min(nearest, (it.needed_for(wanted), words))
            if not it.short and it.most_tokens >= wanted:
                enough.append(f"{words} (room for {tokens(it.most_tokens)} tokens)")
        if enough:
            return enough
    needed, words = nearest
    return [f"{words} with {size(needed)} free"] if needed < _WORTH * now else []


def _one(model: Model, plan: Plan) -> Iterator[tuple[str, Plan]]:
    """What could be set otherwise."""
    if plan.max_chunk_tokens > _SMALL_CHUNK:
        yield f"max_chunk_tokens = {_SMALL_CHUNK}", replace(plan, max_chunk_tokens=_SMALL_CHUNK)
    if plan.on_gpu and plan.kv not in ("int8", "fp8"):
        yield 'kv_type = "int8"', replace(plan, kv="int8")
    if plan.kernels == "reference":  # fp32 whatever is asked for
        return
    weights = weight_bytes(model, plan)
    for quantize in _QUANTIZE:
        smaller = replace(plan, quantize=quantize)
        if weight_bytes(model, smaller) < weights and not uneven(model, smaller):
            weights = weight_bytes(model, smaller)
            yield f'quantize = "{quantize}"', smaller


def _two(model: Model, plan: Plan) -> Iterator[tuple[str, Plan]]:
    for words, other in _one(model, plan):
        if other.quantize != plan.quantize:
            yield from (
                (f"{words} with {more}", both) for more, both in _one(model, other) if both.kv != other.kv
            )


def _hint(instead: list[str], more: int) -> str:
    return f"What would fit: {'; '.join([*instead, f'{size(more)} more memory', 'a smaller model'])}."
