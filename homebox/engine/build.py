"""How do the parts of an engine come together for one model on one device?

Decides, before anything is loaded, how much memory the KV blocks get (and says so, with numbers, where that is less than
asked for or than the model's context), loads the weights, and times a few steps so that the scheduler knows what a chunk
costs.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from homebox.engine.blocks import KVSpace
from homebox.engine.budget import StepTime, chunk_load
from homebox.engine.compute import Choice, Compute, choose
from homebox.engine.core import Engine, MeasuredRunner
from homebox.engine.scheduler import Limits, Scheduler
from homebox.errors import OutOfMemory, UsageError
from homebox.fit.advice import check
from homebox.fit.demand import Demand, demand
from homebox.fit.machine import free_bytes
from homebox.fit.plan import Plan
from homebox.fit.room import LEAST_BLOCKS, Fit, room
from homebox.fit.words import lowered
from homebox.kernels.attention import Attention
from homebox.kernels.host import HostBlocks
from homebox.model.decoder import AnyDecoder
from homebox.model.loader import Report
from homebox.wire.frames import FromEngine, Ready, Start

AUTO_HOST_BYTES = 16 * 2**30
_MEASURED_TOKENS = (1, 1, 16, 16, 128, 128)


class Built(NamedTuple):
    engine: Engine
    ready: Ready


class Parts(NamedTuple):
    """What computes, in the configuration that `Start` asks for; when is another question."""

    compute: Compute
    decoder: AnyDecoder
    attention: Attention
    blocks: int  # of each group


def build(
    start: Start,
    emit: Callable[[FromEngine], None],
    report: Report,
    flush: Callable[[], None] = lambda: None,
) -> Built:
    """`emit` may hold frames back until `flush`. Raises what `parts` raises."""
    compute, decoder, attention, blocks = parts(start, report)
    host_blocks, notes = _host_blocks(start, compute), list(compute.notes)
    try:
        host = HostBlocks(attention.cache, host_blocks) if host_blocks else None
    except OutOfMemory as error:
        if start.kv_host_bytes is not None:
            raise
        host, host_blocks = None, 0
        notes.append(f"no conversation rests in this machine's memory: {error.message}")
    runner = compute.runner((decoder, attention), host)
    step_time = _measure(runner, min(blocks * start.block_size, start.max_chunk_tokens), report)
    space = KVSpace(compute.groups, [blocks] * len(compute.groups), start.block_size, host_slots=host_blocks)
    context = compute.spec.context
    max_context = min(context, space.capacity_tokens())
    limits = Limits(
        context, start.max_running, start.max_chunk_tokens, prefill_step_ms=compute.prefill_ms,
        layers=compute.cut_layers, moves_beside=compute.moves_beside,
    )  # fmt: skip
    engine = Engine(Scheduler(limits, space, step_time), runner, emit, depth=compute.depth, flush=flush)
    ready = Ready(
        pid=os.getpid(),
        device=compute.device,
        max_context=max_context,
        vocab_size=compute.spec.vocab_size,
        block_size=start.block_size,
        total_blocks=blocks,
        kv_bytes=blocks * compute.block_bytes,
        weight_bytes=compute.weight_bytes,
        max_running=start.max_running,
        attention=compute.name,
        weights=compute.weights,
        kv=compute.kv,
        notes=[*notes, *_notes(context, max_context)],
        host_blocks=host_blocks,
    )
    return Built(engine, ready)


def parts(start: Start, report: Report) -> Parts:
    """Raises BadFile for a model that we cannot run, UsageError for settings that cannot be, DeviceMissing where the
    GPU that is asked for is not there (yet), KernelsMissing where native kernels are asked for and cannot be, NoMemory for
    a model that is larger than what is free."""
    choice = choose(start, report)
    fit = _fit(start, choice)
    compute = choice.load()
    if fit.lowered:
        compute = replace(compute, notes=[*compute.notes, lowered(fit)])
    blocks = fit.kv_bytes // compute.block_bytes
    return Parts(compute, *compute.with_blocks(blocks), blocks)


def _fit(start: Start, choice: Choice) -> Fit:
    """What of the memory that is free now keys and values get. Raises NoMemory where the model does not fit into it,
    before anything of it is loaded."""
    model, plan = choice.model, choice.plan

    def ask(plan: Plan) -> Demand:
        return demand(model, plan, started=True, host_kv=start.kv_host_bytes or 0)

    most = start.max_running * -(-model.spec.context // start.block_size) * start.block_size
    fit = room(ask(plan), choice.memory(), kv_bytes=start.kv_bytes, most_tokens=most)
    block = fit.demand.kv_block
    if 0 < start.kv_bytes < LEAST_BLOCKS * block:
        raise UsageError(
            f"{start.kv_bytes >> 10} KiB for KV memory hold {start.kv_bytes // block} blocks of {start.block_size} "
            f"tokens ({block >> 10} KiB each); at least {LEAST_BLOCKS} are needed",
            hint=f"Set kv_memory to at least {LEAST_BLOCKS * block >> 10}KiB.",
        )
    return check(fit, model, plan, ask)


def _host_blocks(start: Start, compute: Compute) -> int:
    """How many blocks each group can keep in host memory beside these. By itself none where the blocks lie in host memory
    already: there the same memory as `kv_memory` is better."""
    kv_host_bytes = start.kv_host_bytes
    if kv_host_bytes is None:
        kv_host_bytes = min(free_bytes() // 4, AUTO_HOST_BYTES) if compute.tier else 0
    if 0 < kv_host_bytes < compute.block_bytes:
        raise UsageError(
            f"{kv_host_bytes >> 10} KiB of host memory for KV hold no block of {start.block_size} tokens "
            f"({compute.block_bytes >> 10} KiB)",
            hint=f"Set kv_host_memory to 0 or to at least {-(-compute.block_bytes >> 10)}KiB.",
        )
    return kv_host_bytes // compute.block_bytes


def _measure(runner: MeasuredRunner, most: int, report: Report) -> StepTime:
    step_time = StepTime()
    for i, tokens in enumerate(_MEASURED_TOKENS):
        report("timing", i, len(_MEASURED_TOKENS))
        elapsed = runner.measure(min(tokens, most))
        if i % 2:  # the first of each size pays for first use
            step_time.observe(chunk_load(0, min(tokens, most)), elapsed)
    return step_time


def _notes(context: int, max_context: int) -> list[str]:
    notes = []
    if max_context < context:
        notes.append(
            f"the KV memory holds {max_context} tokens, so that is the longest conversation here; the model was "
            f"trained for {context}"
        )
    return notes
