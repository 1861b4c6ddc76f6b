"""How near does each kernel come to what the device can do? Where to look first when a whole model is slow.

What reads memory is held to what copying moves, what multiplies is held to a dense product of the library. Each is
captured as in a step; layers take turns, so that no cache holds what a step would have to fetch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from statistics import median
from typing import NamedTuple

import torch

from homebox.bench.gpu.measures import Row, Sizes, bandwidth
from homebox.bench.gpu.shapes import SHAPES, weights
from homebox.kernels.attention import BatchShape, KvKind, PagedCache
from homebox.kernels.device import Device, Work, device_for
from homebox.kernels.sampling import Draw, wish
from homebox.kernels.triton.attention import TritonAttention
from homebox.kernels.triton.fused import add_and_norm, silu_and_multiply
from homebox.kernels.triton.sampling import TritonChooser
from homebox.model.spec import DecoderSpec

BLOCK = 16
_REPEATS = 7


class Scale(NamedTuple):
    """`layers` take turns; `rows` meet a weight; `contexts`: how many rows read so many tokens; `chunks`: new tokens over so
    many."""

    shape: str
    layers: int
    rows: tuple[int, ...]
    contexts: tuple[tuple[int, int], ...]
    chunks: tuple[tuple[int, int], ...]


LARGE = Scale(
    "8B", 8, (1, 16, 64, 512), ((32, 1024), (1, 8192), (8, 8192)), ((512, 0), (512, 4096), (512, 32_000))
)
SMALL = Scale("tiny", 2, (1, 3), ((2, 20),), ((4, 0),))


def speeds(device: torch.device, sizes: Sizes, small: bool) -> Iterator[Row]:
    scale, dtype = (SMALL, torch.float32) if small else (LARGE, torch.bfloat16)
    spec, one = SHAPES[scale.shape], device_for(device)
    reads = bandwidth(device, sizes) / 1e9
    for kind in ("dense", "int4", "int8", "fp8"):
        yield from _products(kind, spec, scale, dtype, one, reads)
    for kv in KvKind:
        yield from _reading(kv, spec, scale, dtype, one, reads)
    yield from _chunks(spec, scale, dtype, one)
    yield from _beside(spec, dtype, one)


def _products(
    kind: str, spec: DecoderSpec, scale: Scale, dtype: torch.dtype, device: Device, reads: float
) -> Iterator[Row]:
    """All weights of a layer."""
    few = replace(spec, layers=scale.layers, vocab_size=1024, tied_head=True)
    layers = weights(few, kind, dtype, device.device).layers
    size = sum(
        each.qkv.nbytes + each.output.nbytes + each.gate_up.nbytes + each.down.nbytes for each in layers
    )
    for rows in scale.rows:
        hidden, wide, mixed = (
            torch.randn(rows, inputs, device=device.device).to(dtype)
            for inputs in (spec.hidden, spec.mlp, spec.heads * spec.head_dim)
        )

        def work(
            hidden: torch.Tensor = hidden, wide: torch.Tensor = wide, mixed: torch.Tensor = mixed
        ) -> None:
            for layer in layers:
                layer.qkv(hidden)
                layer.output(mixed)
                layer.gate_up(hidden)
                layer.down(wide)

        moved = size / milliseconds(device, work) / 1e6
        what = f"weights of a layer in {kind}, {rows} row{'s' * (rows > 1)}"
        yield Row(scale.shape, what, moved, "GB/s", reads, "of copying")


def _attention(
    kv: KvKind,
    spec: DecoderSpec,
    scale: Scale,
    dtype: torch.dtype,
    device: Device,
    rows: tuple[tuple[int, int], ...],
) -> tuple[Work, int]:
    """Of all layers, for rows of (new tokens, tokens before them); and the bytes of keys and values."""
    needed = [-(-(new + before) // BLOCK) for new, before in rows]
    blocks = torch.randperm(sum(needed), generator=torch.Generator().manual_seed(1)).tolist()
    tables = [[blocks.pop() for _ in range(count)] for count in needed]

    def made() -> tuple[TritonAttention, torch.Tensor]:
        cache = PagedCache(
            layer_groups=(0,) * scale.layers, blocks=(sum(needed),), block_size=BLOCK, kv_heads=spec.kv_heads,
            head_dim=spec.head_dim, dtype=dtype, device=device.device, kind=kv,
        )  # fmt: skip
        attention = TritonAttention(cache, (None,), spec.heads)
        attention.plan(BatchShape.of([before for _, before in rows], [new for new, _ in rows], [tables]))
        tokens = sum(new for new, _ in rows)
        return attention, torch.randn(tokens, spec.heads, spec.head_dim, device=device.device).to(dtype)

    attention, q = device.make(made)

    def work() -> None:
        for layer in range(scale.layers):
            attention.attend(layer, q)

    size = PagedCache.block_bytes(scale.layers, BLOCK, spec.kv_heads, spec.head_dim, dtype, kv)
    return work, size * sum(needed)


def _reading(
    kv: KvKind, spec: DecoderSpec, scale: Scale, dtype: torch.dtype, device: Device, reads: float
) -> Iterator[Row]:
    for rows, context in scale.contexts:
        work, size = _attention(kv, spec, scale, dtype, device, ((1, context),) * rows)
        moved = size / milliseconds(device, work) / 1e6
        said = f" in {kv.name.lower()}" if kv else ""
        yield Row(scale.shape, f"reading {rows} x {context} keys{said}", moved, "GB/s", reads, "of copying")


def _chunks(spec: DecoderSpec, scale: Scale, dtype: torch.dtype, device: Device) -> Iterator[Row]:
    side = 64 if device.device.type == "cpu" else 4096
    square = torch.randn(side, side, device=device.device).to(dtype)
    dense = 2 * side**3 / milliseconds(device, lambda: square @ square) / 1e9
    for new, before in scale.chunks:
        work, _ = _attention(KvKind.AS_IS, spec, scale, dtype, device, ((new, before),))
        met = new * before + new * (new + 1) // 2  # queries times keys
        done = scale.layers * 4 * spec.heads * spec.head_dim * met / milliseconds(device, work) / 1e9
        yield Row(
            scale.shape, f"a chunk of {new} over {before}", done, "TFLOP/s", dense, "of a dense product"
        )


def _beside(spec: DecoderSpec, dtype: torch.dtype, device: Device) -> Iterator[Row]:
    """What is neither."""
    rows = 2 if device.device.type == "cpu" else 32
    x, gates = (
        torch.randn(rows, size, device=device.device).to(dtype) for size in (spec.hidden, 2 * spec.mlp)
    )
    weight = torch.ones(spec.hidden, dtype=dtype, device=device.device)
    logits = torch.randn(rows, spec.vocab_size, device=device.device)
    chooser = TritonChooser(rows, spec.vocab_size, device.device)
    wished = wish(Draw(0, 7, 1, 0.8, 40, 0.9, 0.0), spec.vocab_size)
    wishes = torch.tensor([wished] * rows, dtype=torch.float64, device=device.device)
    tokens = torch.zeros(rows, dtype=torch.int64, device=device.device)
    flags = torch.zeros(rows, dtype=torch.int32, device=device.device)
    works: dict[str, Callable[[], object]] = {
        "a norm": lambda: add_and_norm(x, x, weight, 1e-5),
        "a gate": lambda: silu_and_multiply(gates),
        "choosing tokens": lambda: chooser.choose(logits, wishes, tokens, flags),
    }
    times = 1 if device.device.type == "cpu" else 20
    for what, work in works.items():
        took = milliseconds(device, lambda work=work: [work() for _ in range(times)]) / times  # type: ignore[misc]
        yield Row("", f"{what} for {rows} rows", took * 1e3, "us", better="less")


def milliseconds(device: Device, work: Callable[[], object]) -> float:
    """The median of several, captured."""

    def launched() -> None:
        work()

    if device.device.type == "cuda":
        torch.cuda.synchronize(device.device)  # what is read was made on another stream
    with torch.inference_mode():
        device.run(launched)  # what is compiled on first use
        graph = device.capture(launched)
        took = []
        for _ in range(_REPEATS):
            begin = device.mark()
            device.replay(graph)
            end = device.mark()
            device.wait(end)
            took.append(device.elapsed_ms(begin, end))
    return median(took)
