"""What does the arithmetic where there is a GPU, and is there one that we can use?

Triton is imported here and nowhere before: a box without a GPU has none, and needs none.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from homebox.engine import chunks
from homebox.engine.compute import Choice, Compute, Parts, layer_groups, owners, plan_for
from homebox.engine.core import MeasuredRunner
from homebox.errors import DeviceMissing, UsageError
from homebox.fit.machine import free_bytes
from homebox.fit.model import Model
from homebox.fit.plan import Kv, Plan, kinds, kv_kind, uneven, weight_bytes
from homebox.fit.room import Memory
from homebox.kernels import flash
from homebox.kernels.attention import KvKind, PagedCache
from homebox.kernels.cpu import cache as caches
from homebox.kernels.device import Device, device_for
from homebox.kernels.fp8 import multiplies
from homebox.kernels.host import HostBlocks
from homebox.model.loader import Report
from homebox.model.spec import DecoderSpec
from homebox.wire.frames import Start

# A chunk of a prompt where nobody reads: a GPU is fast enough that whoever comes next need not wait longer than this.
PREFILL_MS = 100.0
# bf16 is what is computed in.
KV_KINDS: Mapping[Kv, KvKind] = {"bf16": KvKind.AS_IS, "int8": KvKind.INT8, "fp8": KvKind.FP8}
DEPTH = 2  # one step is computed while the next one is planned


@dataclass(frozen=True)
class Gpu:
    device: torch.device
    name: str
    unified: bool = False  # its memory is the machine's own
    # Of what is computed; fp32 where a processor pretends, and texts are compared.
    dtype: torch.dtype = torch.bfloat16

    def memory(self) -> Memory:
        """What is free now."""
        if self.device.type == "cpu":
            return Memory(free_bytes())
        free, _ = torch.cuda.mem_get_info(self.device)
        return Memory(free, "unified" if self.unified else "gpu")

    def total(self) -> int:
        """Of its memory, whoever has it now."""
        if self.device.type == "cpu":
            return free_bytes()
        return torch.cuda.mem_get_info(self.device)[1]

    def capability(self) -> tuple[int, int] | None:
        """None: it is not one of NVIDIA's."""
        if self.device.type == "cpu" or torch.version.hip:
            return None
        return torch.cuda.get_device_capability(self.device)


def find(asked: str) -> Gpu | str:
    """The GPU that `device` means, or why the processor computes, empty where there is none to speak of. Raises DeviceMissing where
    a GPU is asked for and there is none that we can use (yet), UsageError where nobody knows such a device."""
    known = re.fullmatch(r"auto|cpu|cuda(?::([0-9]+))?", asked)
    if known is None:
        raise UsageError(f"device {asked!r} is not known", hint='Use "auto", "cpu", "cuda" or "cuda:1".')
    if asked == "cpu":
        return ""
    number = int(known[1] or 0)
    why = _why_not(number)
    if not why:
        device = torch.device("cuda", number)
        properties = torch.cuda.get_device_properties(device)
        return Gpu(device, properties.name, bool(getattr(properties, "is_integrated", False)))
    if asked != "auto":
        raise DeviceMissing(f"device {asked!r}: {why}")
    return why if torch.cuda.is_available() else ""


def _why_not(number: int) -> str:
    if not torch.cuda.is_available():
        return "torch sees no GPU"
    if number >= torch.cuda.device_count():
        return f"torch sees {torch.cuda.device_count()} GPUs, counted from 0"
    if importlib.util.find_spec("triton") is None:
        return "a GPU is here, but not Triton, which our kernels for it need (torch for CUDA brings it along)"
    if torch.version.hip is None and not torch.cuda.is_bf16_supported(including_emulation=False):
        major, minor = torch.cuda.get_device_capability(number)
        return f"the GPU here (capability {major}.{minor}) cannot compute in bf16, which our kernels need"
    return ""


def choice(start: Start, model: Model, gpu: Gpu, report: Report) -> Choice:
    """This model on this GPU. Raises UsageError for what its kernels cannot do with it."""
    plan = replace(plan_for(start, threads=1, kernels="gpu"), fp8_products=multiplies(gpu.device))
    if it := uneven(model, plan):
        raise UsageError(it.why, hint=f"Set {it.instead}.")
    return Choice(model, plan, lambda: _load(start, model, plan, gpu, report), gpu.memory)


def _load(start: Start, model: Model, plan: Plan, gpu: Gpu, report: Report) -> Compute:
    from homebox.kernels.triton.attention import TritonAttention
    from homebox.kernels.triton.sampling import TritonChooser, TritonSampling
    from homebox.model.device import DeviceDecoder
    from homebox.model.loader import load_for_device

    kv, dtype = kv_kind(model, plan), gpu.dtype
    spec, weights = load_for_device(Path(start.model_dir), dtype, gpu.device, start.quantize, report)
    groups = layer_groups(spec)
    who = _who_does_chunks(start, spec, dtype, KV_KINDS[kv], gpu, report)

    def with_blocks(blocks: int) -> Parts:
        cache = PagedCache(
            layer_groups=owners(spec, groups), blocks=(blocks,) * len(groups), block_size=start.block_size,
            kv_heads=spec.kv_heads, head_dim=spec.head_dim, dtype=dtype, device=gpu.device, kind=KV_KINDS[kv],
        )  # fmt: skip
        windows = tuple(group.window for group in groups)
        attention = TritonAttention(cache, windows, spec.heads, chunks=who.chunks)
        return DeviceDecoder(spec, weights, attention), attention

    def runner(parts: Parts, host: HostBlocks | None) -> MeasuredRunner:
        from homebox.engine.device_runner import DeviceRunner
        from homebox.engine.graphs import padded

        decoder, _ = parts
        assert isinstance(decoder, DeviceDecoder)
        chooser = TritonChooser(padded(start.max_running) or start.max_running, spec.vocab_size, gpu.device)
        return DeviceRunner(
            device_for(gpu.device), decoder, chooser, slots=start.max_running, chunk=start.max_chunk_tokens,
            depth=max(start.depth, DEPTH), host=host,
        )  # fmt: skip

    return Compute(
        spec=spec,
        groups=groups,
        name=who.name,
        device=f"{gpu.device} ({gpu.name})",
        weights=kinds(model, plan),
        kv=kv,
        weight_bytes=weight_bytes(model, plan),
        block_bytes=PagedCache.block_bytes(
            spec.layers, start.block_size, spec.kv_heads, spec.head_dim, dtype, KV_KINDS[kv]
        ),
        with_blocks=with_blocks,
        runner=runner,
        depth=max(start.depth, DEPTH),
        prefill_ms=PREFILL_MS,
        cut_layers=1,
        moves_beside=True,
        tier=not gpu.unified,
        sampling=TritonSampling(),
        notes=who.notes,
    )


def _who_does_chunks(
    start: Start, spec: DecoderSpec, dtype: torch.dtype, kind: KvKind, gpu: Gpu, report: Report
) -> chunks.Chosen:
    if start.attention == "own" or kind != KvKind.AS_IS or dtype not in flash.DTYPES:
        return chunks.OWN
    from homebox.kernels.triton import trial

    capability = gpu.capability()
    library = flash.find(capability)
    shapes = trial.Shapes(
        spec.heads, spec.kv_heads, spec.head_dim, tuple((g.window, len(g.layers)) for g in layer_groups(spec)),
        start.block_size, dtype, start.max_running,
    )  # fmt: skip
    about = {
        "gpu": gpu.name,
        "capability": str(capability),
        "torch": str(torch.__version__),
        "ours": trial.own_build(),
    }

    def device() -> Device:
        report("timing attention", 0, 0)
        return device_for(gpu.device)

    cache = caches.folder(os.environ)
    return chunks.choose(library, shapes, about=about, cache=cache, device=device, trial=trial)
