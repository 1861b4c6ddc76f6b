"""Do the kernels compute what they should, on the device that is here?

Each check gives the largest error against fp32 and the bound that it is held to. What runs in the interpreter in the tests
runs here as it was compiled.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch.nn.functional import rms_norm, silu

from homebox.kernels import fp8
from homebox.kernels.attention import BatchShape, KvKind, PagedCache, decode
from homebox.kernels.grouped import quantise
from homebox.kernels.sampling import REFERENCE, Draw
from homebox.kernels.triton.attention import TritonAttention
from homebox.kernels.triton.fused import add_and_norm, silu_and_multiply
from homebox.kernels.triton.linear import GroupedLinear
from homebox.kernels.triton.sampling import TritonSampling
from homebox.model.decoder import rotate

BLOCK = 16
# Tokens that are cached, tokens that are new: around the borders of blocks, turns and splits.
ROWS = [(0, 1), (15, 1), (16, 1), (511, 1), (512, 1), (1600, 2), (3000, 1), (0, 300), (700, 5), (1000, 200)]
FEW_ROWS = [(0, 1), (16, 1), (40, 2), (0, 20)]
# Half a step between codes, at the largest number of a head.
STORED = {KvKind.AS_IS: 0.0, KvKind.INT8: 0.5 / 127 + 1e-4, KvKind.FP8: 16 / 448 + 1e-4}
BOUND = {torch.float32: 1e-4, torch.float16: 4e-3, torch.bfloat16: 3e-2}


class Check(NamedTuple):
    name: str
    error: float
    bound: float

    @property
    def passed(self) -> bool:
        return self.error <= self.bound


def attention(device: torch.device, small: bool) -> Iterator[Check]:
    shapes: list[tuple[int, int, int, int | None, float, KvKind]]
    shapes = [(4, 2, 64, None, 0.0, kind) for kind in KvKind]
    if not small:
        shapes = [
            (32, 8, 128, None, 0.0, KvKind.AS_IS),
            (32, 8, 128, None, 0.0, KvKind.INT8),
            (32, 8, 128, None, 0.0, KvKind.FP8),
            (16, 8, 128, None, 0.0, KvKind.AS_IS),
            (9, 3, 64, None, 0.0, KvKind.AS_IS),
            (8, 8, 80, 700, 0.0, KvKind.AS_IS),
            (8, 4, 96, None, 0.0, KvKind.AS_IS),
            (8, 1, 256, 512, 50.0, KvKind.AS_IS),
        ]
    dtype = torch.float32 if small else torch.bfloat16
    for heads, kv_heads, dim, window, softcap, kind in shapes:
        name = f"attention {heads}/{kv_heads} x {dim}" + (f", window {window}" if window else "")
        name += (", softcap" if softcap else "") + (f", {kind.name.lower()}" if kind else "")
        error = _attention_error(heads, kv_heads, dim, window, softcap, kind, dtype, device, small)
        yield Check(name, error, BOUND[dtype])


def _attention_error(
    heads: int, kv_heads: int, dim: int, window: int | None, softcap: float, kind: KvKind, dtype: torch.dtype,
    device: torch.device, small: bool,
) -> float:  # fmt: skip
    rows = FEW_ROWS if small else ROWS
    rng = random.Random(dim)
    generator = torch.Generator(device).manual_seed(dim)
    needed = [-(-(start + count) // BLOCK) for start, count in rows]
    free = rng.sample(range(sum(needed) + 5), sum(needed))
    tables = [[free.pop() for _ in range(count)] for count in needed]
    cache = PagedCache(
        layer_groups=(0,), blocks=(sum(needed) + 5,), block_size=BLOCK, kv_heads=kv_heads, head_dim=dim,
        dtype=dtype, device=device, kind=kind,
    )  # fmt: skip
    ours = TritonAttention(cache, (window,), heads, softcap=softcap)
    wanted, queries = [], []
    for (start, count), table in zip(rows, tables, strict=True):
        length = start + count

        def drawn(tokens: int, of: int) -> torch.Tensor:
            return torch.randn(tokens, of, dim, generator=generator, device=device).to(dtype)

        at = torch.arange(length)
        slots = (torch.tensor(table)[at // BLOCK] * BLOCK + at % BLOCK).to(device)
        cache.store(0, slots, drawn(length, kv_heads), drawn(length, kv_heads))
        k, v = cache.k[0][slots], cache.v[0][slots]
        if kind:
            k, v = decode(k, cache.k_scales[0][slots], kind), decode(v, cache.v_scales[0][slots], kind)
        q = drawn(count, heads)
        queries.append(q)
        wanted.append(_exact(q.float(), k.float(), v.float(), start, window, softcap))
    ours.plan(BatchShape.of([s for s, _ in rows], [c for _, c in rows], [tables]))
    q = torch.cat(queries)
    out = ours.attend_into(0, q, torch.full_like(q, float("nan")))
    return _error(out, torch.cat(wanted))


def _exact(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, start: int, window: int | None, softcap: float
) -> torch.Tensor:
    """Attention in fp32, written out. `[count, heads, dim]` over `[length, kv_heads, dim]`."""
    shared = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(shared, dim=1), v.repeat_interleave(shared, dim=1)
    scores = torch.einsum("qhd,khd->hqk", q, k) * q.shape[-1] ** -0.5
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    position = start + torch.arange(len(q), device=q.device)[:, None]
    key = torch.arange(len(k), device=q.device)
    hidden = key > position
    if window is not None:
        hidden |= key <= position - window
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(hidden, float("-inf")).softmax(-1), v)


def entering(device: torch.device, small: bool) -> Iterator[Check]:
    heads, kv_heads, dim = (4, 2, 64) if small else (32, 8, 128)
    dtype = torch.float32 if small else torch.bfloat16
    tokens = 3 if small else 65
    generator = torch.Generator(device).manual_seed(1)
    qkv = torch.randn(tokens, (heads + 2 * kv_heads) * dim, generator=generator, device=device).to(dtype)
    angles = torch.randn(tokens, dim // 2, generator=generator, device=device) * 10
    parts = qkv.float().view(tokens, -1, dim).split((heads, kv_heads, kv_heads), dim=1)
    both = torch.cat((angles, angles), dim=-1)[:, None]
    turned = [rotate(part, both.cos(), both.sin()) for part in parts[:2]]
    for kind in KvKind:
        cache = PagedCache(
            layer_groups=(0,), blocks=(8,), block_size=BLOCK, kv_heads=kv_heads, head_dim=dim, dtype=dtype,
            device=device, kind=kind,
        )  # fmt: skip
        attention = TritonAttention(cache, (None,), heads)
        attention.plan(BatchShape.of([0], [tokens], [[list(range(8))]]))
        q = attention.enter(0, qkv, angles.cos(), angles.sin(), 1e-5)
        k, v = (x[:tokens] for x in cache.blocks_of(0, torch.arange(8, device=device)))
        said = f" in {kind.name.lower()}" if kind else ""
        if not kind:
            yield Check("rotated queries", _error(q, turned[0]), BOUND[dtype])
        yield Check(f"keys in the cache{said}", _error(k, turned[1]), STORED[kind] + BOUND[dtype])
        yield Check(f"values in the cache{said}", _error(v, parts[2]), STORED[kind])


def small_operations(device: torch.device, small: bool) -> Iterator[Check]:
    size, tokens = (96, 3) if small else (4096, 65)
    dtype = torch.float32 if small else torch.bfloat16
    generator = torch.Generator(device).manual_seed(2)
    x, added = (torch.randn(tokens, size, generator=generator, device=device).to(dtype) for _ in "xa")
    weight = torch.rand(size, generator=generator, device=device).to(dtype) + 0.5
    both = (x.float() + added.float()).to(dtype)
    normed = add_and_norm(x, added, weight, 1e-5)
    yield Check("residual", _error(x, both.float()), 0.0)
    yield Check("norm", _error(normed, rms_norm(both.float(), (size,), weight.float(), 1e-5)), BOUND[dtype])
    gate_up = torch.randn(tokens, 2 * size, generator=generator, device=device).to(dtype)
    gate, up = gate_up.float().chunk(2, dim=-1)
    yield Check("gate", _error(silu_and_multiply(gate_up), silu(gate) * up), BOUND[dtype])


def quantised(device: torch.device, small: bool) -> Iterator[Check]:
    shapes = [(96, 64)] if small else [(4096, 4096), (28672, 4096), (4096, 14336)]
    dtype = torch.float32 if small else torch.bfloat16
    generator = torch.Generator().manual_seed(3)
    for outputs, inputs in shapes:
        weight = torch.randn(outputs, inputs, generator=generator) * 0.02
        for bits in (4, 8):
            linear = GroupedLinear(quantise(weight, bits), None, device)
            exact = linear.unpacked(dtype).float()
            for rows in (1, 3) if small else (1, 4, 16, 33, 200):
                x = torch.randn(rows, inputs, generator=generator).to(device=device, dtype=dtype)
                yield Check(
                    f"int{bits} {outputs}x{inputs}, {rows} rows",
                    _error(linear(x), x.float() @ exact.T),
                    BOUND[dtype],
                )
        codes = fp8.quantise(weight.to(device))
        for native in sorted({False, fp8.multiplies(device)}):
            product = fp8.Fp8Linear(codes, None, device, native)
            for rows in (1, 3) if small else (1, 16, 200):
                x = torch.randn(rows, inputs, generator=generator).to(device=device, dtype=dtype)
                met = fp8.quantise(x).dequantised() if native else x.float()
                yield Check(
                    f"fp8 {outputs}x{inputs}, {rows} rows, {'multiplied' if native else 'widened'}",
                    _error(product(x), met @ codes.dequantised().T),
                    BOUND[dtype],
                )


def sampling(device: torch.device, small: bool) -> Iterator[Check]:
    vocab, rows = (700, 2) if small else (128_256, 16)
    generator = torch.Generator().manual_seed(4)
    logits = (
        torch.randn(rows, vocab, generator=generator) * torch.tensor([1.0, 6.0]).repeat(rows // 2)[:, None]
    )
    rng = random.Random(5)
    draws = [
        Draw(i % rows, rng.getrandbits(64), i, temperature, top_k, top_p, min_p)
        for i, (temperature, top_k, top_p, min_p) in enumerate(
            [(1.0, 0, 1.0, 0.0), (0.7, 40, 0.9, 0.0)]
            if small
            else [
                (temperature, top_k, top_p, min_p)
                for temperature in (0.3, 1.0, 2.0)
                for top_k in (0, 40)
                for top_p in (0.5, 0.95, 1.0)
                for min_p in (0.0, 0.05)
            ]
        )
    ]
    ours, right = TritonSampling().draw(logits.to(device), draws), REFERENCE.draw(logits, draws)
    yield Check(
        f"{len(draws)} tokens drawn", float(sum(a != b for a, b in zip(ours, right, strict=True))), 0.0
    )
    peaks = TritonSampling().peaks(logits.to(device)).tokens
    yield Check(
        "likeliest tokens",
        float(sum(a != b for a, b in zip(peaks, REFERENCE.peaks(logits).tokens, strict=True))),
        0.0,
    )


SETS = {
    "attention": attention,
    "entering": entering,
    "operations": small_operations,
    "quantised": quantised,
    "sampling": sampling,
}


def _error(ours: torch.Tensor, right: torch.Tensor) -> float:
    """The largest difference, to the size of what is right; NaN is infinite."""
    off = (ours.float() - right).abs().max() / right.abs().max().clamp(min=1e-30)
    return float("inf") if bool(off.isnan()) else float(off)
