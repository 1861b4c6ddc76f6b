"""What does a model ask of a memory, line by line?

The weights are exact (`plan.py`), what is computed in between is counted from the buffers of the step that takes most:
a chunk of the largest size beside as many answers as may run. What no header tells, a process with torch in it, a CUDA
context, is a constant here, with its reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from homebox.fit.model import EMBEDDING, HEAD, Model
from homebox.fit.plan import (
    GROUP,
    GROUP_BYTES,
    Kept,
    Lying,
    Plan,
    kinds,
    kv_kind,
    kv_token_bytes,
    lying,
    weight_bytes,
)

MIB = 2**20

# Python with torch and our own code, before there is a model: 229 MiB resident, measured on x86-64 with torch 2.13 for
# CPUs. A torch for GPUs brings the libraries of CUDA along; to be measured (scripts/gpu_check).
PROCESS_BYTES, GPU_PROCESS_BYTES = 230 * MIB, 1024 * MIB
# What appears with a model whatever its size: code of the kernels, the scheduler's own objects, gaps of the allocator.
WITH_A_MODEL_BYTES = 8 * MIB
# What CUDA takes that is no tensor: the driver's context, there before anybody can ask how much is free; and, as they are
# first used, torch's kernels and ours and cuBLAS's workspace (32 MiB on Hopper). Together 300 to 500 MiB are commonly
# seen; to be measured.
CONTEXT_BYTES, LIBRARY_BYTES = 320 * MIB, 192 * MIB
# Ten sizes of decoding and about as many of mixed steps. They share one pool of buffers, counted as activations; what
# each has of its own, parameters of a few hundred launches, is commonly seen at 5 to 10 MiB; to be measured.
GRAPHS, GRAPH_BYTES = 20, 8 * MIB

_FLOAT = 4
_QUERIES = 48  # queries times heads of a piece of native attention
_SPLIT = 512  # keys of a split
_PADDING = 16  # rows behind the last one
_MOST_FEW = 64  # with more rows a quantised weight is unpacked on a GPU
_BF16 = 2
_CODES = 16  # of what a product of fp8 wants inputs and outputs to be a multiple
_TOGETHER = {
    **{f"self_attn.{x}_proj": "qkv" for x in "qkv"},
    **{f"mlp.{x}_proj": "gate_up" for x in ("gate", "up")},
}


@dataclass(frozen=True)
class Demand:
    """Bytes. `loading`: what is needed beside the weights for a moment, while the largest of them is read; `host_kv`: keys
    and values that are kept in the machine's own memory. On a GPU `process`, `loading` and `host_kv` lie beside it.
    `kinds`, `kv_kind`: in which types weights and KV are kept, in words."""

    weights: int
    activations: int
    kv_token: int
    block_tokens: int
    loading: int
    graphs: int = 0
    context: int = 0
    process: int = 0
    host_kv: int = 0
    kinds: str = ""
    kv_kind: str = ""

    @property
    def kv_block(self) -> int:
        return self.kv_token * self.block_tokens


def demand(model: Model, plan: Plan, *, started: bool = False, host_kv: int = 0) -> Demand:
    """`started`: the process that asks is the engine's, and what it has taken is not free any more."""
    process = GPU_PROCESS_BYTES if plan.on_gpu else PROCESS_BYTES
    return Demand(
        weights=weight_bytes(model, plan),
        activations=activation_bytes(model, plan),
        kv_token=kv_token_bytes(model, plan),
        block_tokens=plan.block_tokens,
        loading=loading_bytes(model, plan),
        graphs=GRAPHS * GRAPH_BYTES if plan.on_gpu else 0,
        context=LIBRARY_BYTES + (0 if started else CONTEXT_BYTES) if plan.on_gpu else 0,
        process=WITH_A_MODEL_BYTES + (0 if started else process),
        host_kv=host_kv,
        kinds=kinds(model, plan),
        kv_kind=kv_kind(model, plan),
    )


def activation_bytes(model: Model, plan: Plan) -> int:
    """Of the largest step: buffers that pass from one matmul to the next, attention's, and logits."""
    rows = plan.max_chunk_tokens + plan.max_running
    if plan.kernels == "native":
        return _native_step(model, plan, rows)
    if plan.kernels == "reference":
        return _reference_step(model, plan, rows)
    return _gpu_step(model, plan, rows)


def _native_step(model: Model, plan: Plan, rows: int) -> int:
    """The buffers of native/step.cpp, which are kept between steps, and what Python holds around them."""
    spec = model.spec
    q, kv = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
    # Of a row that meets a weight: itself, its two bytes a value, and scale, sum and shift of its groups.
    meeting = sum(size * (_FLOAT + 2) + size // GROUP * 12 for size in (spec.hidden, q, spec.mlp))
    step = (rows + _PADDING) * (meeting + (q + 2 * kv + spec.head_dim) * _FLOAT)
    scratch = plan.threads * _QUERIES * (64 + 3 * spec.head_dim + 128) * _FLOAT
    parts = (plan.max_running + spec.context // _SPLIT) * spec.heads * (spec.head_dim + 2) * _FLOAT
    return step + scratch + parts + 2 * rows * spec.hidden * _FLOAT + _logits(model, plan)


def _reference_step(model: Model, plan: Plan, rows: int) -> int:
    """At the height of a layer: its input, normed and rotated copies, gate and up with their product, or attention over
    a whole context, whose keys and values are copied and whose mask is spread over the heads that share a key."""
    spec = model.spec
    q, kv = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
    mlp = rows * (3 * spec.hidden + 4 * spec.mlp)
    keys = 2 * spec.context * kv
    mask = 2 * plan.max_chunk_tokens * spec.context * (spec.heads // spec.kv_heads)
    attention = rows * (3 * spec.hidden + 3 * (q + 2 * kv)) + keys + mask
    return max(mlp, attention) * _FLOAT + _logits(model, plan)


def _gpu_step(model: Model, plan: Plan, rows: int) -> int:
    """Buffers of one layer in bf16, used by all; attention's partial sums; the largest weight unpacked."""
    spec = model.spec
    q, kv = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
    step = rows * (4 * spec.hidden + 2 * q + 2 * kv + 3 * spec.mlp) * 2
    shared = max(16, 1 << (spec.heads // spec.kv_heads - 1).bit_length())
    parts = (plan.max_running + spec.context // _SPLIT) * spec.kv_heads * shared
    return step + parts * (spec.head_dim + 2) * _FLOAT + _unpacked(model, plan) + _logits(model, plan)


def _unpacked(model: Model, plan: Plan) -> int:
    """What the quantised weight that asks most has beside it while many rows meet it: the whole of it unpacked, or these rows in
    other forms."""
    sizes = []
    for name, kind, outputs, inputs, bias in multiplied(model, plan):
        rows = plan.max_running + (0 if name == HEAD else plan.max_chunk_tokens)
        if kind == "fp8":
            sizes.append(fp8_bytes(outputs, inputs, rows, bias, plan.fp8_products))
        elif kind in GROUP_BYTES and rows > _MOST_FEW:
            sizes.append(outputs * inputs * _BF16)
    return max(sizes, default=0)


class Multiplied(NamedTuple):
    """A weight that a step multiplies with."""

    name: str
    kind: Kept
    outputs: int
    inputs: int
    bias: bool


def multiplied(model: Model, plan: Plan) -> Iterator[Multiplied]:
    """Queries, keys and values are one where they are kept alike, so are gate and up."""
    found: dict[tuple[int | None, str], list[Lying]] = {}
    for each in lying(model, plan):
        name = each.matrix.name
        if name != EMBEDDING:
            found.setdefault((each.matrix.layer, _TOGETHER.get(name, name)), []).append(each)
    for (_, name), parts in found.items():
        alike = [parts] if len({part.kind for part in parts}) == 1 else [[part] for part in parts]
        for group in alike:
            first, kind = group[0]
            outputs = sum(part.matrix.outputs for part in group)
            yield Multiplied(name, kind, outputs, first.inputs, first.bias)


def fp8_bytes(outputs: int, inputs: int, rows: int, bias: bool, products: bool | None) -> int:
    """Beside what goes in and what comes out, at the height (kernels/triton/linear.py). Widened: the codes in bf16, or later the
    sums in fp32, before and after the scales. Where codes are multiplied: codes and scales of the rows, and what has no bias
    yet."""
    widened = max(2 * outputs * inputs, 6 * rows * outputs) if rows > _MOST_FEW else 0
    codes = rows * (inputs + _FLOAT + (2 * outputs if bias else 0))
    if outputs % _CODES or inputs % _CODES:
        return widened
    return {True: codes, False: widened, None: max(widened, codes)}[products]


def _logits(model: Model, plan: Plan) -> int:
    """Of as many rows as are chosen for at once, and a copy that logprobs are read from. On a GPU also what the head
    itself gives, and the rows that are drawn from."""
    each = 3 * _FLOAT + 2 if plan.on_gpu else 2 * _FLOAT
    return plan.max_running * model.spec.vocab_size * each


def loading_bytes(model: Model, plan: Plan) -> int:
    """What the matrix that asks most takes on its way, beside the place where it ends up."""
    return max(each.matrix.elements * _on_the_way(each) for each in lying(model, plan)) // 8


def _on_the_way(each: Lying) -> int:
    """Eighths of a byte an element, at the height: the file's own bytes, and the forms in between (model/loader.py)."""
    matrix, kind = each
    file = {"fp64": 64, "fp32": 32, "fp16": 16, "bf16": 16, "int8": 9, "int4": 5}[matrix.stored]
    codes, fp32 = 8, 32
    if matrix.stored in ("int8", "int4"):
        if kind in ("int8", "int4"):
            return file + codes + (codes if kind == "int4" else 1)
        return file + codes + 2 * fp32  # codes as floats, and their product with the scales
    converted = 0 if matrix.stored in ("fp32", kind) else fp32
    return (
        file + converted + (2 * fp32 if kind in ("int8", "int4", "fp8") else 0)
    )  # divided, rounded or bounded
