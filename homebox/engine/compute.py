"""What does the arithmetic on this machine: which kernels, on which threads, with weights and blocks of which type?

`choose` finds the best that can be had and that the settings allow, and says what that will take of the memory, before
anything is loaded. `load` loads the model for it, and `with_blocks` then makes decoder and attention over so many blocks.
All that depends on the kind of kernels is in here, and the rest of the engine does not see it.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch

from homebox.engine.ahead import Ahead
from homebox.engine.blocks import Group
from homebox.engine.core import MeasuredRunner
from homebox.engine.pace import PREFILL_MS
from homebox.engine.runner import Runner
from homebox.errors import DeviceMissing, KernelsMissing, UsageError
from homebox.fit.advice import check
from homebox.fit.demand import Demand, demand
from homebox.fit.machine import free_bytes
from homebox.fit.model import Model, read
from homebox.fit.plan import Kernels, Kv, Plan, Quantize, refused
from homebox.fit.room import Memory, room
from homebox.fit.words import size
from homebox.kernels.attention import Attention, PagedCache
from homebox.kernels.cpu import abi
from homebox.kernels.cpu import cache as caches
from homebox.kernels.cpu.attention import BlockCache, NativeAttention, kv_dtype
from homebox.kernels.cpu.library import Absent, Native, library
from homebox.kernels.cpu.memory import give_back
from homebox.kernels.cpu.placement import Placement, place, topology
from homebox.kernels.cpu.sampling import NativeSampling
from homebox.kernels.host import HostBlocks
from homebox.kernels.reference import ReferenceAttention
from homebox.kernels.sampling import REFERENCE, SamplingKernel
from homebox.model.decoder import AnyDecoder, Decoder
from homebox.model.loader import Report, load, load_native, weight_bytes
from homebox.model.native import NativeDecoder, runs_natively
from homebox.model.spec import DecoderSpec
from homebox.wire.frames import Start

if TYPE_CHECKING:
    from homebox.engine.gpu import Gpu

REFERENCE_NOTE = "attention runs on the reference kernel: correct, and slow with long contexts"

Parts = tuple[AnyDecoder, Attention]


@dataclass(frozen=True)
class Choice:
    """What will compute. `model`, `plan`: what it takes of the memory follows from them (homebox/fit)."""

    model: Model
    plan: Plan
    load: Callable[[], Compute]
    memory: Callable[[], Memory]  # what is free of it now


@dataclass(frozen=True)
class Compute:
    """A loaded model. `name`: of the kernels; `device`, `weights`, `kv`: where it is computed, the types of weights and of keys and
    values, in a person's words; `notes`: what the person at this machine should know. `runner` makes the one that computes on
    these parts and moves blocks to host memory, with `depth` steps launched before the oldest is collected; `prefill_ms`: how
    long a chunk may be where nobody reads; `cut_layers`: how many layers can be computed one by one; `moves_beside`: whether
    blocks move while a step is computed."""

    spec: DecoderSpec
    groups: list[Group]
    name: str
    device: str
    weights: str
    kv: str
    weight_bytes: int
    block_bytes: int  # of one block over the layers of all groups, keys and values together
    with_blocks: Callable[[int], Parts]
    runner: Callable[[Parts, HostBlocks | None], MeasuredRunner]
    depth: int
    prefill_ms: float
    cut_layers: int
    moves_beside: bool
    tier: bool  # whether KV that rests in host memory is somewhere else than KV that is in use
    sampling: SamplingKernel
    notes: list[str]


def choose(start: Start, report: Report) -> Choice:
    """Raises BadFile for a model that these kernels cannot run, UsageError for settings that only a GPU could meet, DeviceMissing
    and NoMemory where there is one that is waited for, KernelsMissing where native ones are asked for and cannot be."""
    from homebox.engine import gpu

    found, folder = gpu.find(start.device), Path(start.model_dir)
    usable = isinstance(found, gpu.Gpu)
    if isinstance(found, gpu.Gpu):
        model = read(folder)
        chosen = _by_gpu(start, model, found, report)
        if isinstance(chosen, Choice):
            return chosen
        found = f"{found.name} is here, and {chosen}"
    if it := refused(plan_for(start, threads=1, kernels="native")):
        why = f"{found}; {it.why}" if found else it.why
        if usable:  # the GPU that these settings are for is here, and may be used another time
            raise DeviceMissing(why, hint=f"Set {it.instead} to go on without it.")
        raise UsageError(why, hint=f'Set {it.instead}, or device = "cuda" where there is a GPU.')
    return _by_processor(start, read(folder), report, [f"{found}: the processor computes"] if found else [])


def _by_gpu(start: Start, model: Model, found: Gpu, report: Report) -> Choice | str:
    """Or why not, where nobody has said that it is to be used. Raises UsageError, and NoMemory where others have its memory now."""
    from homebox.engine import gpu, proof

    if start.device != "auto":
        return gpu.choice(start, model, found, report)
    try:
        choice = gpu.choice(start, model, found, report)
    except UsageError as error:
        return error.message
    # All of its memory, with what we have taken of it already.
    ever = room(demand(model, choice.plan), Memory(found.total(), choice.memory().kind))
    if ever.short:
        return f"this model needs {size(ever.needed)} of its {size(found.total())}"

    def ask(plan: Plan) -> Demand:
        return demand(model, plan, started=True)

    check(room(ask(choice.plan), choice.memory()), model, choice.plan, ask)  # others may have it for now
    why = proof.why_not(found, start, model, report, caches.folder(os.environ))
    return f'{why} (device = "cuda" uses it all the same)' if why else choice


def _by_processor(start: Start, model: Model, report: Report, notes: list[str]) -> Choice:
    folder = Path(start.model_dir)
    placement = place(topology(), start.threads)
    torch.set_num_threads(placement.threads)

    def native(found: Native) -> Choice:
        plan = plan_for(start, placement.threads, "native")
        return Choice(
            model, plan, lambda: _native(start, folder, found, placement, report, notes), host_memory
        )

    def reference(note: str) -> Choice:
        plan = plan_for(start, placement.threads, "reference")
        load = lambda: _reference(start, folder, placement, report, [*notes, note])  # noqa: E731
        return Choice(model, plan, load, host_memory)

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


def host_memory() -> Memory:
    return Memory(free_bytes())


def plan_for(start: Start, threads: int, kernels: Kernels) -> Plan:
    return Plan(
        kernels=kernels,
        quantize=cast(Quantize, start.quantize),
        kv=cast(Kv, start.kv_type) if start.kv_type != "auto" else None,
        max_running=start.max_running,
        max_chunk_tokens=start.max_chunk_tokens,
        threads=threads,
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


def owners(spec: DecoderSpec, groups: list[Group]) -> tuple[int, ...]:
    owner = {layer: index for index, group in enumerate(groups) for layer in group.layers}
    return tuple(owner[layer] for layer in range(spec.layers))


def _on_cpu(start: Start, placement: Placement, sampling: SamplingKernel, layers: int) -> dict[str, Any]:
    """What is the same whichever kernels compute on a processor."""

    def runner(parts: Parts, host: HostBlocks | None) -> MeasuredRunner:
        decoder, attention = parts
        assert isinstance(decoder, Decoder | NativeDecoder)
        made = Runner(decoder, attention, start.max_running, sampling, host)
        return made if start.depth == 1 else Ahead(made)

    return {
        "device": f"cpu ({placement.threads} threads)",
        "runner": runner,
        "depth": start.depth,
        "prefill_ms": PREFILL_MS,
        "cut_layers": layers,
        "moves_beside": False,
        "tier": False,
        "sampling": sampling,
    }


def _native(
    start: Start, folder: Path, found: Native, placement: Placement, report: Report, notes: list[str]
) -> Compute:
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
            layer_groups=owners(spec, groups),
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
        weights=weights.kinds(),
        kv="fp32" if dtype == torch.float32 else "bf16",
        weight_bytes=weights.nbytes,
        block_bytes=BlockCache.block_bytes(spec.layers, spec.kv_heads, spec.head_dim, dtype),
        with_blocks=with_blocks,
        notes=[*notes, found.passed_over] if found.passed_over else notes,
        **_on_cpu(start, placement, NativeSampling(functions), spec.layers),
    )


def _reference(start: Start, folder: Path, placement: Placement, report: Report, notes: list[str]) -> Compute:
    device, dtype = torch.device("cpu"), torch.float32
    decoder = load(folder, dtype, device, report)
    give_back()
    spec = decoder.spec
    groups = layer_groups(spec)

    def with_blocks(blocks: int) -> Parts:
        cache = PagedCache(
            layer_groups=owners(spec, groups),
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
        weights="fp32",
        kv="fp32",
        weight_bytes=weight_bytes(decoder),
        block_bytes=PagedCache.block_bytes(
            spec.layers, start.block_size, spec.kv_heads, spec.head_dim, dtype
        ),
        with_blocks=with_blocks,
        notes=notes,
        **_on_cpu(start, placement, REFERENCE, spec.layers),
    )
