"""What does the arithmetic on this machine: which kernels, on which threads, with weights and blocks of which type?

`choose` finds the best that can be had and that the settings allow, and says what that will take of the memory, before
anything is loaded. `load` loads the model for it, and `with_blocks` then makes decoder and attention over so many blocks.
All that depends on the kind of kernels is in here, and the rest of the engine does not see it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch

from homebox.engine.blocks import Group
from homebox.errors import KernelsMissing
from homebox.fit.model import Model, read
from homebox.fit.plan import Kernels, Plan, Quantize
from homebox.kernels.attention import Attention, PagedCache
from homebox.kernels.cpu import abi
from homebox.kernels.cpu.attention import BlockCache, NativeAttention, kv_dtype
from homebox.kernels.cpu.library import Absent, Native, library
from homebox.kernels.cpu.memory import give_back
from homebox.kernels.cpu.placement import Placement, place, topology
from homebox.kernels.cpu.sampling import NativeSampling
from homebox.kernels.reference import ReferenceAttention
from homebox.kernels.sampling import REFERENCE, SamplingKernel
from homebox.model.decoder import Decoder
from homebox.model.loader import Report, load, load_native, weight_bytes
from homebox.model.native import NativeDecoder, runs_natively
from homebox.model.spec import DecoderSpec
from homebox.wire.frames import Start

REFERENCE_NOTE = "attention runs on the reference kernel: correct, and slow with long contexts"

Parts = tuple[Decoder | NativeDecoder, Attention]


@dataclass(frozen=True)
class Choice:
    """What will compute. `model`, `plan`: what it takes of the memory follows from them (homebox/fit)."""

    model: Model
    plan: Plan
    load: Callable[[], Compute]


@dataclass(frozen=True)
class Compute:
    """A loaded model. `name`: of the kernels; `weights`: their types in a person's words; `notes`: what the person at this
    machine should know."""

    spec: DecoderSpec
    groups: list[Group]
    name: str
    threads: int
    weights: str
    weight_bytes: int
    block_bytes: int  # of one block over the layers of all groups, keys and values together
    with_blocks: Callable[[int], Parts]
    sampling: SamplingKernel
    notes: list[str]


def choose(start: Start, report: Report) -> Choice:
    """Raises BadFile for a model that these kernels cannot run, KernelsMissing where native ones are asked for and cannot
    be."""
    placement = place(topology(), start.threads)
    torch.set_num_threads(placement.threads)
    folder = Path(start.model_dir)
    model = read(folder)

    def native(found: Native) -> Choice:
        plan = _plan(start, placement, "native")
        return Choice(model, plan, lambda: _native(start, folder, found, placement, report))

    def reference(note: str) -> Choice:
        plan = _plan(start, placement, "reference")
        return Choice(model, plan, lambda: _reference(start, folder, placement, report, [note]))

    if start.kernels == "reference":
        return reference(REFERENCE_NOTE)
    found = library(report)
    why = found.why if isinstance(found, Absent) else _unfit(model.spec, start)
    if start.kernels == "native" and why:
        hint = f"{found.hint}, or set" if isinstance(found, Absent) else "Set"
        raise KernelsMissing(f'kernels = "native", and {why}', hint=f'{hint} kernels = "auto".')
    if isinstance(found, Native) and not why:
        return native(found)
    return reference(
        found.note if isinstance(found, Absent) else f"{why}: the reference kernels run, several times slower"
    )


def _plan(start: Start, placement: Placement, kernels: Kernels) -> Plan:
    return Plan(
        kernels=kernels,
        quantize=cast(Quantize, start.quantize),
        max_running=start.max_running,
        max_chunk_tokens=start.max_chunk_tokens,
        threads=placement.threads,
        block_tokens=start.block_size,
    )


def layer_groups(spec: DecoderSpec) -> list[Group]:
    """Layers that see equally far share a block table."""
    layers: dict[int | None, list[int]] = {}
    for layer, window in enumerate(spec.windows):
        layers.setdefault(window, []).append(layer)
    return [Group(tuple(members), window) for window, members in layers.items()]


def _unfit(spec: DecoderSpec, start: Start) -> str:
    """Why the native kernels cannot run this model, empty if they can."""
    if not runs_natively(spec):
        return (
            f"a model with heads of {spec.head_dim} and layers of {spec.hidden} and {spec.mlp} does not fit the native "
            f"kernels (multiples of {abi.LANES} up to {abi.MOST_DIMENSIONS}, of {abi.GROUP} and of {abi.GROUP})"
        )
    if start.block_size != abi.BLOCK:
        return f"the native kernels have blocks of {abi.BLOCK} tokens, not {start.block_size}"
    return ""


def _owners(spec: DecoderSpec, groups: list[Group]) -> tuple[int, ...]:
    owner = {layer: index for index, group in enumerate(groups) for layer in group.layers}
    return tuple(owner[layer] for layer in range(spec.layers))


def _native(start: Start, folder: Path, found: Native, placement: Placement, report: Report) -> Compute:
    functions = abi.declare(found.functions)
    cpus = (ctypes.c_int * len(placement.cpus))(*placement.cpus) if placement.cpus else None
    functions.hb_threads(placement.threads, cpus)
    nodes = placement.nodes if placement.interleave else ()
    spec, weights = load_native(folder, functions, start.quantize, report, nodes)
    give_back()
    groups = layer_groups(spec)
    dtype = kv_dtype(exact=weights.kinds() == "fp32")

    def with_blocks(blocks: int) -> Parts:
        cache = BlockCache(
            layer_groups=_owners(spec, groups),
            blocks=(blocks,) * len(groups),
            kv_heads=spec.kv_heads,
            head_dim=spec.head_dim,
            dtype=dtype,
        )
        attention = NativeAttention(functions, cache, tuple(g.window for g in groups), spec.heads)
        return NativeDecoder(spec, weights, attention), attention

    return Compute(
        spec=spec,
        groups=groups,
        name=f"native {found.level}",
        threads=placement.threads,
        weights=weights.kinds(),
        weight_bytes=weights.nbytes,
        block_bytes=BlockCache.block_bytes(spec.layers, spec.kv_heads, spec.head_dim, dtype),
        with_blocks=with_blocks,
        sampling=NativeSampling(functions),
        notes=[found.passed_over] if found.passed_over else [],
    )


def _reference(start: Start, folder: Path, placement: Placement, report: Report, notes: list[str]) -> Compute:
    device, dtype = torch.device("cpu"), torch.float32
    decoder = load(folder, dtype, device, report)
    give_back()
    spec = decoder.spec
    groups = layer_groups(spec)

    def with_blocks(blocks: int) -> Parts:
        cache = PagedCache(
            layer_groups=_owners(spec, groups),
            blocks=(blocks,) * len(groups),
            block_size=start.block_size,
            kv_heads=spec.kv_heads,
            head_dim=spec.head_dim,
            dtype=dtype,
            device=device,
        )
        return decoder, ReferenceAttention(cache, tuple(g.window for g in groups), spec.heads)

    return Compute(
        spec=spec,
        groups=groups,
        name=ReferenceAttention.name,
        threads=placement.threads,
        weights="fp32",
        weight_bytes=weight_bytes(decoder),
        block_bytes=PagedCache.block_bytes(
            spec.layers, start.block_size, spec.kv_heads, spec.head_dim, dtype
        ),
        with_blocks=with_blocks,
        sampling=REFERENCE,
        notes=notes,
    )
