"""How do the parts of an engine come together for one model on one device?

Loads the weights, decides how much memory the KV blocks get (and says so, with numbers, where that is less than asked
for or than the model's context), and times a few steps so that the scheduler knows what a chunk costs.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch

from homebox.engine.ahead import Ahead
from homebox.engine.blocks import KVSpace
from homebox.engine.budget import StepTime, chunk_load
from homebox.engine.compute import Compute, choose
from homebox.engine.core import Engine
from homebox.engine.runner import Runner
from homebox.engine.scheduler import Limits, Scheduler
from homebox.errors import DeviceMissing, UsageError
from homebox.kernels.attention import Attention
from homebox.kernels.host import HostBlocks
from homebox.model.decoder import Decoder
from homebox.model.loader import Report
from homebox.model.native import NativeDecoder
from homebox.wire.frames import FromEngine, Ready, Start

AUTO_KV_BYTES = 2 * 2**30
LEAST_BLOCKS = 8
_MEASURED_TOKENS = (1, 1, 16, 16, 128, 128)


class Built(NamedTuple):
    engine: Engine
    ready: Ready


class Parts(NamedTuple):
    """What computes, in the configuration that `Start` asks for; when is another question."""

    compute: Compute
    decoder: Decoder | NativeDecoder
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
    host_blocks = _host_blocks(start, compute)
    host = HostBlocks(attention.cache, host_blocks) if host_blocks else None
    runner = Runner(decoder, attention, start.max_running, compute.sampling, host)
    step_time = _measure(runner, blocks * start.block_size, report)
    space = KVSpace(compute.groups, [blocks] * len(compute.groups), start.block_size, host_slots=host_blocks)
    context = compute.spec.context
    max_context = min(context, space.capacity_tokens())
    limits = Limits(context, start.max_running, start.max_chunk_tokens, layers=compute.spec.layers)
    steps = runner if start.depth == 1 else Ahead(runner)
    engine = Engine(Scheduler(limits, space, step_time), steps, emit, depth=start.depth, flush=flush)
    ready = Ready(
        pid=os.getpid(),
        device=f"cpu ({compute.threads} threads)",
        max_context=max_context,
        vocab_size=compute.spec.vocab_size,
        block_size=start.block_size,
        total_blocks=blocks,
        kv_bytes=blocks * compute.block_bytes,
        weight_bytes=compute.weight_bytes,
        max_running=start.max_running,
        attention=compute.name,
        weights=compute.weights,
        notes=[*compute.notes, *_notes(context, max_context)],
        host_blocks=host_blocks,
    )
    return Built(engine, ready)


def parts(start: Start, report: Report) -> Parts:
    """Raises BadFile for a model that we cannot run, UsageError for settings that cannot be, DeviceMissing where the
    GPU that is asked for is not there (yet), KernelsMissing where native kernels are asked for and cannot be."""
    if start.device.startswith("cuda") and not torch.cuda.is_available():
        raise DeviceMissing(f"torch sees no GPU for device {start.device!r}")
    if start.device not in ("auto", "cpu"):
        raise UsageError(
            f"device {start.device!r} is not supported yet; this engine computes on the CPU",
            hint='Use "auto" or "cpu".',
        )
    compute = choose(start, report)
    blocks = _blocks(start, compute)
    return Parts(compute, *compute.with_blocks(blocks), blocks)


def _blocks(start: Start, compute: Compute) -> int:
    """How many blocks of KV memory each group gets."""
    kv_bytes = start.kv_bytes or min(AUTO_KV_BYTES, _available_bytes() // 2)
    most = start.max_running * -(-compute.spec.context // start.block_size)
    blocks = min(kv_bytes // compute.block_bytes, most)
    if blocks < LEAST_BLOCKS:
        raise UsageError(
            f"{kv_bytes >> 10} KiB for KV memory hold {blocks} blocks of {start.block_size} tokens "
            f"({compute.block_bytes >> 10} KiB each); at least {LEAST_BLOCKS} are needed",
            hint=f"Set kv_memory to at least {LEAST_BLOCKS * compute.block_bytes >> 10}KiB.",
        )
    return blocks


def _host_blocks(start: Start, compute: Compute) -> int:
    """How many blocks each group can keep in host memory beside these. By itself none: here the blocks lie in host memory
    already, and the same memory as `kv_memory` is better."""
    kv_host_bytes = start.kv_host_bytes or 0
    if 0 < kv_host_bytes < compute.block_bytes:
        raise UsageError(
            f"{kv_host_bytes >> 10} KiB of host memory for KV hold no block of {start.block_size} tokens "
            f"({compute.block_bytes >> 10} KiB)",
            hint=f"Set kv_host_memory to 0 or to at least {-(-compute.block_bytes >> 10)}KiB.",
        )
    return kv_host_bytes // compute.block_bytes


def _available_bytes() -> int:
    """What this machine can still give, by the kernel's own estimate (proc(5), MemAvailable)."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return AUTO_KV_BYTES


def _measure(runner: Runner, most: int, report: Report) -> StepTime:
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
    if torch.cuda.is_available():
        notes.append("a GPU is here and not used yet: this engine computes on the CPU")
    return notes
