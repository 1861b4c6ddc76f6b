"""How is it said? The bill line by line, and the verdict in a sentence. Numbers in, plain text out."""

from __future__ import annotations

from typing import Any

from homebox.fit.plan import Plan
from homebox.fit.room import Fit

_ALWAYS = ("free", "weights", "activations", "left", "keys, values")
PLACES = {
    "host": "in this machine's memory",
    "gpu": "on a GPU",
    "unified": "in memory that GPU and system share",
}


def size(count: int) -> str:
    """Bytes as memory is counted."""
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"


def tokens(count: int) -> str:
    """`38k`, `2.5k`, `900`; never more than there are."""
    if count < 1000:
        return str(count)
    return f"{count // 1000:,}k" if count >= 4000 else f"{count // 100 / 10:g}k"


def bill(found: Fit, plan: Plan) -> list[tuple[str, str, str]]:
    """What, how much, and why."""
    d, kind = found.demand, found.memory.kind
    inside = kind != "gpu"
    chunk = f"a chunk of {plan.max_chunk_tokens} tokens beside {plan.max_running} answers"
    lines = [
        ("free", found.memory.free, PLACES[kind]),
        ("kept free", found.memory.margin, _margin(kind)),
        ("weights", d.weights, d.kinds),
        ("activations", d.activations, chunk),
        ("CUDA graphs", d.graphs, "recorded steps"),
        ("CUDA context", d.context, "driver, libraries, kernels"),
        ("process", d.process if inside else 0, "Python and torch"),
        ("moved-out chats", d.host_kv if inside else 0, "kv_host_memory"),
        ("left", max(found.left, 0), ""),
        (
            "keys, values",
            found.kv_bytes,
            f"{tokens(found.tokens)} tokens in {d.kv_kind}, {_kib(d.kv_token)} each",
        ),
    ]
    return [(what, size(much), why) for what, much, why in lines if much or what in _ALWAYS]


def beside(found: Fit) -> str:
    """What a GPU's model takes of the machine's own memory, or any model for a moment while it is loaded."""
    d = found.demand
    if found.memory.kind != "gpu":
        return f"while it is loaded: {size(d.loading)} beside the weights, for a moment"
    parts = [f"{size(d.process)} for the process", f"{size(d.loading)} while it is loaded"]
    parts += [f"{size(d.host_kv)} for moved-out chats"] if d.host_kv else []
    return f"of the machine's own memory {size(found.beside)}: {', '.join(parts)}"


def verdict(found: Fit, context: int, people: int) -> str:
    """`fits with 38k tokens: 6 people at 6k`. `context` is the model's, in tokens."""
    each = found.tokens // people
    if each >= context:
        return (
            f"fits with {tokens(found.tokens)} tokens: {share(people, context)}, which is all that the model was "
            f"trained for; room for {found.tokens // context:,} such"
        )
    said = f"fits with {tokens(found.tokens)} tokens: {share(people, each)}"
    if found.tokens >= context:
        return f"{said}, or {share(found.tokens // context, context)}"
    return f"{said}; one conversation can have {tokens(found.tokens)} here, the model was trained for {tokens(context)}"


def granted(found: Fit, people: int, context: int) -> str:
    """Of a wish that can be met."""
    return f"fits: {share(people, context)} take {tokens(people * context)} of {tokens(found.tokens)} tokens"


def share(people: int, each: int) -> str:
    return f"{people:,} {'person' if people == 1 else 'people'} at {tokens(each)}"


def lowered(found: Fit) -> str:
    """Why keys and values get less than was asked for."""
    return (
        f"{size(found.wanted_kv)} of KV memory are wanted; {size(found.memory.free)} are free, and beside weights "
        f"({size(found.demand.weights)}), activations and what is kept free {size(found.kv_bytes)} are left: "
        f"{tokens(found.tokens)} tokens"
    )


def numbers(found: Fit) -> dict[str, Any]:
    """For programs: bytes and tokens."""
    d = found.demand
    return {
        "memory": found.memory.kind, "free_bytes": found.memory.free, "margin_bytes": found.memory.margin,
        "weight_bytes": d.weights, "weights": d.kinds, "activation_bytes": d.activations, "graph_bytes": d.graphs,
        "context_bytes": d.context, "process_bytes": d.process, "loading_bytes": d.loading,
        "host_kv_bytes": d.host_kv, "kv": d.kv_kind, "kv_token_bytes": d.kv_token, "kv_bytes": found.kv_bytes,
        "tokens": found.tokens, "most_tokens": found.most_tokens, "needed_bytes": found.needed,
        "short_bytes": found.short, "beside_bytes": found.beside, "fits": not found.short,
    }  # fmt: skip


def _margin(kind: str) -> str:
    return {
        "host": "for the daemon and other programs",
        "gpu": "for the screen and gaps",
        "unified": "for the system",
    }[kind]


def _kib(count: int) -> str:
    return f"{count / 1024:,.1f}".removesuffix(".0") + " KiB"
