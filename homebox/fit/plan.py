"""In what form is a model kept, and how many bytes is each part of it then?

A `Plan` says by which kernels, in how many bits, and how much is computed at a time. The bytes of weights are exact:
they are those of the layouts that the kernels read (kernels/cpu/native/linear.h, kernels/grouped.py), and tests compare
them with loaded models.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from homebox.fit.model import EMBEDDING, HEAD, Matrix, Model
from homebox.model.spec import DecoderSpec

Kernels = Literal["native", "reference", "gpu"]
Quantize = Literal["auto", "none", "int8", "int4", "fp8"]
Kept = Literal["fp32", "bf16", "int8", "int4", "fp8"]
Kv = Literal["fp32", "bf16", "int8", "fp8"]

TILE = 16  # outputs of a tile of the native kernels, which pad to whole ones
GROUP = 32  # inputs that share a scale
MOST_DIMENSIONS = 512  # of a head, of the native kernels
_LINE = 64  # bytes of a cache line

FP8_SCALE_BYTES = 4  # of a weight in fp8: an fp32 scale for each output
# Bytes of a group of 32 inputs of one output: 32 codes, an fp16 scale, with 4 bits an fp16 minimum too.
GROUP_BYTES: Mapping[Kept, int] = {"int8": 32 + 2, "int4": 16 + 2 + 2}
_ELEMENT_BYTES: Mapping[Kept, int] = {"fp32": 4, "bf16": 2}
_KV_BYTES: Mapping[Kv, int] = {"fp32": 4, "bf16": 2, "int8": 1, "fp8": 1}
_KV_SCALE_BYTES = 4  # of 8-bit keys or values: an fp32 scale for each token and head


@dataclass(frozen=True)
class Plan:
    """`kv` None: as the kernels like it best; on a processor it has to be. `threads` matter on a processor only,
    `fp8_products` on a GPU: whether it multiplies such numbers, None where that is not known. A block of keys and values holds
    `block_tokens`."""

    kernels: Kernels
    quantize: Quantize = "auto"
    kv: Kv | None = None
    max_running: int = 32
    max_chunk_tokens: int = 512
    threads: int = 1
    block_tokens: int = 16
    fp8_products: bool | None = None

    @property
    def on_gpu(self) -> bool:
        return self.kernels == "gpu"


class Refused(NamedTuple):
    """`why` a plan cannot be, and what could be set `instead`."""

    why: str
    instead: str


def uneven(model: Model, plan: Plan) -> Refused | None:
    """Why a model's matrices cannot be kept so on a GPU."""
    for matrix, kind in lying(model, plan) if plan.on_gpu else ():
        if kind in GROUP_BYTES and matrix.inputs % GROUP:
            why = f"{matrix.tensor} has {matrix.inputs:,} inputs, and {kind} is groups of {GROUP}"
            return Refused(f'quantize = "{plan.quantize}": {why}', 'quantize = "none"')
    return None


def refused(plan: Plan) -> Refused | None:
    """What a plan asks of a processor that only the kernels for a GPU have."""
    if plan.on_gpu:
        return None
    if plan.quantize == "fp8":
        return Refused(
            'quantize = "fp8": no kernel for a processor multiplies such weights', 'quantize = "int8"'
        )
    if plan.kv is not None:
        why = "on a processor keys and values are kept in bf16, beside fp32 weights in fp32"
        return Refused(f'kv_type = "{plan.kv}": {why}', 'kv_type = "auto"')
    return None


def fits_native(spec: DecoderSpec) -> bool:
    """Whether the native kernels can compute a model of this shape."""
    return (
        spec.head_dim % TILE == 0
        and spec.head_dim <= MOST_DIMENSIONS
        and not any(size % GROUP for size in (spec.hidden, spec.mlp, spec.heads * spec.head_dim))
    )


class Lying(NamedTuple):
    """A matrix as it lies in memory."""

    matrix: Matrix
    kind: Kept


def lying(model: Model, plan: Plan) -> Iterator[Lying]:
    """All of them. Where embedding and head are one in the file, and the head is multiplied from a layout of its own, there
    are two: with the reference kernels, and on a GPU for a quantised head, since an embedding stays plain there."""
    for matrix in model.matrices:
        kind = _kind(matrix, plan)
        if matrix.name != EMBEDDING:
            yield Lying(matrix, kind)
            continue
        yield Lying(matrix, "bf16" if plan.on_gpu else kind)
        if model.spec.tied_head and (plan.kernels == "reference" or (plan.on_gpu and kind in GROUP_BYTES)):
            yield Lying(replace(matrix, name=HEAD), kind)


def kinds(model: Model, plan: Plan) -> str:
    """The types that the matrices are kept in, most bytes first: "int4 and int8"."""
    sizes: dict[str, int] = {}
    for each in lying(model, plan):
        sizes[each.kind] = sizes.get(each.kind, 0) + _matrix_bytes(*each, plan)
    return " and ".join(sorted(sizes, key=lambda kind: -sizes[kind]))


def weight_bytes(model: Model, plan: Plan) -> int:
    """Of all weights as they lie in memory."""
    total = sum(_matrix_bytes(*each, plan) for each in lying(model, plan))
    return total + model.norm_elements * (2 if plan.on_gpu else 4)


def kv_kind(model: Model, plan: Plan) -> Kv:
    if plan.kv is not None:
        return plan.kv
    if plan.on_gpu:
        return "bf16"
    return "fp32" if kinds(model, plan) == "fp32" else "bf16"


def kv_token_bytes(model: Model, plan: Plan) -> int:
    """What one token takes over all layers, keys and values together."""
    spec, kind = model.spec, kv_kind(model, plan)
    each = spec.head_dim * _KV_BYTES[kind] + (_KV_SCALE_BYTES if kind in ("int8", "fp8") else 0)
    return 2 * spec.layers * spec.kv_heads * each


def _kind(matrix: Matrix, plan: Plan) -> Kept:
    if plan.kernels == "reference":
        return "fp32"
    floats: Kept = "bf16" if plan.on_gpu else "fp32"
    if matrix.stored in ("int8", "int4"):
        return floats if plan.quantize == "none" else matrix.stored
    if plan.quantize in ("int8", "int4", "fp8"):
        return "int8" if matrix.name in (EMBEDDING, HEAD) else plan.quantize
    return "bf16" if matrix.stored == "bf16" and plan.quantize == "auto" else floats


def _matrix_bytes(matrix: Matrix, kind: Kept, plan: Plan) -> int:
    if plan.kernels != "native":
        bias = matrix.outputs * (2 if plan.on_gpu else 4)
        return matrix.count * (_plain_bytes(matrix, kind) + (bias if matrix.bias else 0))
    tiles = -(-matrix.outputs // TILE)
    bias = tiles * TILE * 4
    return matrix.count * (tiles * _tile_bytes(matrix.inputs, kind) + (bias if matrix.bias else 0))


def _plain_bytes(matrix: Matrix, kind: Kept) -> int:
    if kind in _ELEMENT_BYTES:
        return matrix.elements * _ELEMENT_BYTES[kind]
    if kind == "fp8":
        return matrix.elements + matrix.outputs * FP8_SCALE_BYTES
    return matrix.elements // GROUP * GROUP_BYTES[kind]


def _tile_bytes(inputs: int, kind: Kept) -> int:
    if kind in _ELEMENT_BYTES:
        return inputs * TILE * _ELEMENT_BYTES[kind]
    groups = inputs // GROUP
    if kind == "int4":
        return groups * TILE * GROUP_BYTES[kind]
    return -(-groups * TILE * 2 // _LINE) * _LINE + groups * TILE * GROUP  # scales are padded to whole lines
