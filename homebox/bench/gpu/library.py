"""Is an installed library right, and faster than our own kernel, for chunks of prompts? What the engine asks at its start."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch

from homebox.bench.gpu.measures import Row
from homebox.kernels import flash
from homebox.kernels.device import device_for
from homebox.kernels.triton import trial
from homebox.kernels.triton.checks import BLOCK, Check

# Name, heads, key heads, size of a head, window.
SHAPES: list[tuple[str, int, int, int, int | None]] = [
    ("8B", 32, 8, 128, None),
    ("8B, window 1024", 32, 8, 128, 1024),
]


class Said(NamedTuple):
    said: str


def chunks(device: torch.device) -> Iterator[Check | Row | Said]:
    here = device.type == "cuda" and not torch.version.hip
    library = flash.find(torch.cuda.get_device_capability(device) if here else None)
    if not isinstance(library, flash.Library):
        yield Said(library or "flash-attn is not installed")
        return
    theirs = library.load()
    for name, heads, kv_heads, head_dim, window in SHAPES:
        shapes = trial.Shapes(heads, kv_heads, head_dim, ((window, 1),), BLOCK, torch.bfloat16, slots=32)
        one = device_for(device)
        off = trial.error(theirs, shapes, one)
        yield Check(f"{library.name}, {name}, beside ours", off, trial.BOUND[shapes.dtype])
        ours_ms, theirs_ms = trial.milliseconds(theirs, shapes, one)
        yield Row(
            name,
            f"a layer of chunks by {library.name}, {name}",
            theirs_ms,
            "ms",
            ours_ms,
            "of our own",
            better="less",
        )
