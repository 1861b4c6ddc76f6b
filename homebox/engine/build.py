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

from homebox.engine.blocks import Group, KVSpace
from homebox.engine.budget import StepTime, chunk_load
from homebox.engine.core import Engine
from homebox.engine.runner import Runner
from homebox.engine.scheduler import Limits, Scheduler
from homebox.errors import DeviceMissing, UsageError
from homebox.kernels.attention import Attention, PagedCache
from homebox.kernels.reference import ReferenceAttention
from homebox.model.decoder import Decoder
from homebox.model.loader import Report, load, weight_bytes
from homebox.model.spec import DecoderSpec
from homebox.wire.frames import FromEngine, Ready, Start

AUTO_KV_BYTES = 2 * 2**30
LEAST_BLOCKS = 8
_DTYPE = torch.float32  # of activations, keys and values
_MEASURED_TOKENS = (1, 1, 16, 16, 128, 128)


class Built(NamedTuple):
    engine: Engine
    ready: Ready


class Parts(NamedTuple):
    """What computes, in the configuration that `Start` asks for; when is another question."""

    decoder: Decoder
    attention: Attention
    groups: list[Group]
    blocks: int  # of each group


def build(start: Start, emit: Callable[[FromEngine], None], report: Report) -> Built:
    """Raises what `parts` raises."""
    decoder, attention, groups, blocks = parts(start, report)
    runner = Runner(decoder, attention, start.max_running)
    step_time = _measure(runner, blocks * start.block_size, report)
    space = KVSpace(groups, [blocks] * len(groups), start.block_size)
    max_context = min(decoder.spec.context, space.capacity_tokens())
    limits = Limits(decoder.spec.context, start.max_running, start.max_chunk_tokens)
    engine = Engine(Scheduler(limits, space, step_time), runner, emit, depth=start.depth)
    ready = Ready(
        pid=os.getpid(),
        device=f"cpu ({torch.get_num_threads()} threads)",
        max_context=max_context,
        vocab_size=decoder.spec.vocab_size,
        block_size=start.block_size,
        total_blocks=blocks,
        kv_bytes=blocks * _block_bytes(start, decoder.spec, groups, _DTYPE),
        weight_bytes=weight_bytes(decoder),
        max_running=start.max_running,
        attention=attention.name,
        notes=_notes(decoder, max_context),
    )
    return Built(engine, ready)


def parts(start: Start, report: Report) -> Parts:
    """Raises BadFile for a model that we cannot run, UsageError for settings that cannot be, DeviceMissing where the
    GPU that is asked for is not there (yet)."""
    if start.device.startswith("cuda") and not torch.cuda.is_available():
        raise DeviceMissing(f"torch sees no GPU for device {start.device!r}")
    if start.device not in ("auto", "cpu"):
        raise UsageError(
            f"device {start.device!r} is not supported yet; this engine computes on the CPU",
            hint='Use "auto" or "cpu".',
        )
    torch.set_num_threads(start.threads or len(os.sched_getaffinity(0)))
    device = torch.device("cpu")
    decoder = load(Path(start.model_dir), _DTYPE, device, report)
    groups = layer_groups(decoder.spec)
    cache, blocks = _cache(start, decoder.spec, groups, _DTYPE, device)
    attention = ReferenceAttention(cache, tuple(g.window for g in groups), decoder.spec.heads)
    return Parts(decoder, attention, groups, blocks)


def layer_groups(spec: DecoderSpec) -> list[Group]:
    """Layers that see equally far share a block table."""
    layers: dict[int | None, list[int]] = {}
    for layer, window in enumerate(spec.windows):
        layers.setdefault(window, []).append(layer)
    return [Group(tuple(members), window) for window, members in layers.items()]


def _block_bytes(start: Start, spec: DecoderSpec, groups: list[Group], dtype: torch.dtype) -> int:
    layers = sum(len(group.layers) for group in groups)
    return PagedCache.block_bytes(layers, start.block_size, spec.kv_heads, spec.head_dim, dtype)


def _cache(
    start: Start, spec: DecoderSpec, groups: list[Group], dtype: torch.dtype, device: torch.device
) -> tuple[PagedCache, int]:
    """The KV memory, and how many blocks each group has in it."""
    block_bytes = _block_bytes(start, spec, groups, dtype)
    kv_bytes = start.kv_bytes or min(AUTO_KV_BYTES, _available_bytes() // 2)
    most = start.max_running * -(-spec.context // start.block_size)
    blocks = min(kv_bytes // block_bytes, most)
    if blocks < LEAST_BLOCKS:
        raise UsageError(
            f"{kv_bytes >> 10} KiB for KV memory hold {blocks} blocks of {start.block_size} tokens "
            f"({block_bytes >> 10} KiB each); at least {LEAST_BLOCKS} are needed",
            hint=f"Set kv_memory to at least {LEAST_BLOCKS * block_bytes >> 10}KiB.",
        )
    owner = {layer: index for index, group in enumerate(groups) for layer in group.layers}
    cache = PagedCache(
        layer_groups=tuple(owner[layer] for layer in range(spec.layers)),
        blocks=(blocks,) * len(groups),
        block_size=start.block_size,
        kv_heads=spec.kv_heads,
        head_dim=spec.head_dim,
        dtype=dtype,
        device=device,
    )
    return cache, blocks


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


def _notes(decoder: Decoder, max_context: int) -> list[str]:
    notes = ["attention runs on the reference kernel: correct, and slow with long contexts"]
    if max_context < decoder.spec.context:
        notes.append(
            f"the KV memory holds {max_context} tokens, so that is the longest conversation here; the model was "
            f"trained for {decoder.spec.context}"
        )
    if torch.cuda.is_available():
        notes.append("a GPU is here and not used yet: this engine computes on the CPU")
    return notes
