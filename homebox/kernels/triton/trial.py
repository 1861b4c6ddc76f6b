"""Does a library compute what our kernels compute, for chunks of prompts in a model's shapes, and is it there sooner?

On this very device: random keys and values in blocks in no order, first for right or wrong, then against the clock, both
launched as a captured step launches them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import NamedTuple

import torch
import triton
from torch.nn.functional import pad

from homebox.kernels.attention import BatchShape, PagedCache
from homebox.kernels.chunks import Chunks
from homebox.kernels.device import Device, Work
from homebox.kernels.triton.attention import TritonAttention

Rows = tuple[tuple[int, int], ...]  # tokens that are cached, tokens that are new

# What two roundings leave of values around 1, each within the bound that our kernels are held to against fp32.
BOUND = {torch.float16: 4e-3, torch.bfloat16: 3e-2}
CHECKED: Rows = ((0, 1), (0, 300), (700, 1), (37, 64), (1000, 200), (2500, 100))
TIMED: Rows = ((0, 512), (4096, 512))
# The border of a window shows where it goes through the few keys that count for a query: of so many queries some have it there.
# A window wider than WIDEST is checked with fewer tokens than it has, so its border is not.
BORDER, WIDEST = 512, 8192
_REPEATS, _REPLAYS = 9, 4
# Scores this large leave a query few keys that count, so that one key too many or too few is seen.
_PEAKED = 4.0


class Shapes(NamedTuple):
    """Of a model's attention. `layers`: how many have which window; `slots`: rows of a step, most of them padding."""

    heads: int
    kv_heads: int
    head_dim: int
    layers: tuple[tuple[int | None, int], ...]
    block_size: int
    dtype: torch.dtype
    slots: int
    softcap: float = 0.0


def own_build() -> str:
    """Changes with our kernels and with what compiles them."""
    digest = hashlib.sha256()
    for file in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(file.read_bytes())
    return f"{digest.hexdigest()[:12]} triton {triton.__version__}"


def error(chunks: Chunks, shapes: Shapes, device: Device, rows: Rows = ()) -> float:
    """How far its answers are from ours where they differ most, to be held to BOUND; `rows`: some others than it has by itself.
    Raises whatever the library raises."""
    worst = 0.0
    for window, _ in shapes.layers:
        ours, theirs, q = _both(chunks, shapes, window, device, rows or _checked(window))
        worst = max(worst, _apart(ours, theirs, q, device))
    return worst


def _checked(window: int | None) -> Rows:
    return CHECKED if window is None else (*CHECKED, (min(window, WIDEST) + 90, BORDER))


def _apart(ours: TritonAttention, theirs: TritonAttention, q: torch.Tensor, device: Device) -> float:
    """Infinitely far where anything is not a number."""
    found: list[torch.Tensor] = []

    def compare() -> None:
        right, other = ours.attend(0, q).float(), theirs.attend(0, q).float()
        found.append(((other - right).abs() / (1 + right.abs())).nan_to_num(nan=torch.inf).max())

    with torch.inference_mode():
        device.run(compare)
        return float(device.read(found[0]))


def milliseconds(
    chunks: Chunks, shapes: Shapes, device: Device, rows: Rows = TIMED,
    clock: Callable[[Device, list[Work]], list[float]] | None = None,
) -> tuple[float, float]:  # fmt: skip
    """What all layers of a chunk take, by us and by them, summed over `rows`. `clock`: what each of these takes."""
    sums = [0.0, 0.0]
    for window, layers in shapes.layers:
        for row in rows:
            ours, theirs, q = _both(chunks, shapes, window, device, (row,))
            works: list[Work] = [lambda by=by, q=q: by.attend(0, q) for by in (ours, theirs)]  # type: ignore[misc]
            with torch.inference_mode():
                took = (clock or medians)(device, works)
            sums = [total + layers * each for total, each in zip(sums, took, strict=True)]
    return sums[0], sums[1]


def medians(device: Device, works: list[Work]) -> list[float]:
    """Milliseconds of each, captured, taking turns."""
    for work in works:
        device.run(work)  # what is compiled on first use
    graphs = [device.capture(work) for work in works]
    took: list[list[float]] = [[] for _ in works]
    for _ in range(_REPEATS):
        for graph, times in zip(graphs, took, strict=True):
            begin = device.mark()
            for _ in range(_REPLAYS):
                device.replay(graph)
            end = device.mark()
            device.wait(end)
            times.append(device.elapsed_ms(begin, end) / _REPLAYS)
    return [median(times) for times in took]


def _both(
    chunks: Chunks, shapes: Shapes, window: int | None, device: Device, rows: Rows
) -> tuple[TritonAttention, TritonAttention, torch.Tensor]:
    """Our attention and theirs over the same random keys and values, planned for these rows, and their queries."""
    size = shapes.block_size
    needed = [-(-(start + count) // size) for start, count in rows]
    blocks = torch.randperm(sum(needed), generator=torch.Generator().manual_seed(1)).tolist()
    tables = [[blocks.pop() for _ in range(count)] for count in needed]
    for (start, _), table in zip(rows, tables, strict=True):
        behind = 0 if window is None else max(start + 1 - window, 0) // size
        table[:behind] = [-1] * behind  # given back, as the engine does

    def made() -> tuple[TritonAttention, TritonAttention, torch.Tensor]:
        generator = torch.Generator(device.device).manual_seed(1)
        cache = PagedCache(
            layer_groups=(0,), blocks=(sum(needed),), block_size=size, kv_heads=shapes.kv_heads, head_dim=shapes.head_dim,
            dtype=shapes.dtype, device=device.device,
        )  # fmt: skip
        for x in (cache.k[0], cache.v[0]):
            x.normal_(generator=generator)
        tokens = sum(count for _, count in rows)
        q = torch.empty(tokens, shapes.heads, shapes.head_dim, dtype=shapes.dtype, device=device.device)
        q.normal_(std=_PEAKED, generator=generator)
        attention = [
            TritonAttention(cache, (window,), shapes.heads, softcap=shapes.softcap, chunks=who)
            for who in (None, chunks)
        ]
        for each in attention:
            each.plan(BatchShape.of([start for start, _ in rows], [count for _, count in rows], [tables]))
            placed, many = each.placed()
            padded = pad(placed.rows, (0, 0, 0, max(shapes.slots - len(rows), 0)))
            each.use(placed._replace(rows=padded), many)
        return attention[0], attention[1], q

    with torch.inference_mode():
        return device.make(made)
