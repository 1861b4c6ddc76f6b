"""Do the kernels compute what they should, on the device that is here?

Each check gives the largest error against fp32 and the bound that it is held to. What runs in the interpreter in the tests
runs here as it was compiled. A `Scope` says in which shapes: those of the models that we know, or of the one that is to run.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import product
from typing import NamedTuple

import torch
from torch.nn.functional import rms_norm, silu

from homebox.kernels import fp8
from homebox.kernels.attention import BatchShape, KvKind, PagedCache, decode
from homebox.kernels.grouped import quantise
from homebox.kernels.sampling import REFERENCE, Draw
from homebox.kernels.triton.attention import TritonAttention
from homebox.kernels.triton.fused import add_and_norm, silu_and_multiply
from homebox.kernels.triton.linear import Fp8Linear, GroupedLinear
from homebox.kernels.triton.sampling import TritonSampling

BLOCK = 16
# Tokens that are cached, tokens that are new: around the borders of blocks, turns and splits.
ROWS = ((0, 1), (15, 1), (16, 1), (511, 1), (512, 1), (1600, 2), (3000, 1), (0, 300), (700, 5), (1000, 200))
FEW_ROWS = ((0, 1), (16, 1), (40, 2), (0, 20))  # for the interpreter
# Scores this large leave a query few keys that count, so that one key too many or too few is seen.
PEAKED = 4.0
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


class Heads(NamedTuple):
    heads: int
    kv_heads: int
    dim: int
    window: int | None = None
    softcap: float = 0.0
    kind: KvKind = KvKind.AS_IS


class Scope(NamedTuple):
    """`rows` of attention; `tokens` of what is done to each by itself, of `size`; `weights`, `[outputs, inputs]`, in `kinds`
    ("int4", "int8", "fp8"), with so many rows of `products`; how many tokens of `vocab` are drawn, each with other wishes,
    36 at most."""

    dtype: torch.dtype
    attention: tuple[Heads, ...]
    rows: tuple[tuple[int, int], ...]
    size: int
    tokens: int
    weights: tuple[tuple[int, int], ...]
    kinds: tuple[str, ...]
    products: tuple[int, ...]
    vocab: int
    draws: int


def attention(device: torch.device, scope: Scope) -> Iterator[Check]:
    for heads in scope.attention:
        name = f"attention {heads.heads}/{heads.kv_heads} x {heads.dim}"
        name += f", window {heads.window}" if heads.window else ""
        name += (", softcap" if heads.softcap else "") + (
            f", {heads.kind.name.lower()}" if heads.kind else ""
        )
        yield Check(name, _attention_error(*heads, scope, device), BOUND[scope.dtype])


def _attention_error(
    heads: int, kv_heads: int, dim: int, window: int | None, softcap: float, kind: KvKind, scope: Scope,
    device: torch.device,
) -> float:  # fmt: skip
    rows, dtype = scope.rows, scope.dtype
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
        q = drawn(count, heads) * PEAKED
        queries.append(q)
        wanted.append(_exact(q.float(), k.float(), v.float(), start, window, softcap))
    ours.plan(BatchShape.of([s for s, _ in rows], [c for _, c in rows], [tables]))
    q = torch.cat(queries)
    out = ours.attend_into(0, q, torch.full_like(q, float("nan")))
    # Each query by itself: over many keys an answer is small.
    right = torch.cat(wanted)
    off = (out.float() - right).abs().amax(dim=(1, 2)) / right.abs().amax(dim=(1, 2))
    return float("inf") if bool(off.isnan().any()) else float(off.max())


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


def entering(device: torch.device, scope: Scope) -> Iterator[Check]:
    heads, kv_heads, dim = scope.attention[0][:3]
    dtype, tokens = scope.dtype, scope.tokens
    generator = torch.Generator(device).manual_seed(1)
    qkv = torch.randn(tokens, (heads + 2 * kv_heads) * dim, generator=generator, device=device).to(dtype)
    angles = torch.randn(tokens, dim // 2, generator=generator, device=device) * 10
    parts = qkv.float().view(tokens, -1, dim).split((heads, kv_heads, kv_heads), dim=1)
    c, s = angles.cos()[:, None], angles.sin()[:, None]
    turned = []
    for part in parts[:2]:
        first, second = part.chunk(2, dim=-1)
        turned.append(torch.cat((first * c - second * s, second * c + first * s), dim=-1))
    for kind in dict.fromkeys(each.kind for each in scope.attention):
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


def small_operations(device: torch.device, scope: Scope) -> Iterator[Check]:
    size, tokens, dtype = scope.size, scope.tokens, scope.dtype
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


def quantised(device: torch.device, scope: Scope) -> Iterator[Check]:
    dtype = scope.dtype
    generator = torch.Generator(device).manual_seed(3)
    for outputs, inputs in scope.weights:
        for kind in scope.kinds:
            weight = torch.randn(outputs, inputs, generator=generator, device=device) * 0.02
            bias = torch.randn(outputs, generator=generator, device=device).to(dtype)
            for linear, exact in _kept(weight, bias, kind, dtype):
                native = isinstance(linear, Fp8Linear) and linear.native
                how = ", by products of fp8" if native else ""
                for rows in scope.products:
                    x = torch.randn(rows, inputs, generator=generator, device=device).to(dtype)
                    met = fp8.quantise(x).dequantised() if native else x.float()  # rows are rounded as well
                    yield Check(
                        f"{kind} {outputs}x{inputs}, {rows} rows{how}",
                        _error(linear(x), met @ exact.T + bias.float()),
                        BOUND[dtype],
                    )


def _kept(
    weight: torch.Tensor, bias: torch.Tensor, kind: str, dtype: torch.dtype
) -> Iterator[tuple[GroupedLinear | Fp8Linear, torch.Tensor]]:
    """Each way in which it is multiplied here, and what it is then."""
    if kind != "fp8":
        grouped = quantise(weight, 4 if kind == "int4" else 8)
        yield GroupedLinear(grouped, bias, weight.device), grouped.dequantised().to(dtype).float()
        return
    codes = fp8.quantise(weight)
    for native in sorted({False, fp8.multiplies(weight.device)}):
        yield Fp8Linear(codes, bias, weight.device, native), codes.dequantised()


def sampling(device: torch.device, scope: Scope) -> Iterator[Check]:
    vocab, rows = scope.vocab, min(scope.draws, 16)
    generator = torch.Generator().manual_seed(4)
    logits = (
        torch.randn(rows, vocab, generator=generator) * torch.tensor([1.0, 6.0]).repeat(rows // 2)[:, None]
    )
    rng = random.Random(5)
    wishes = list(product((0.3, 1.0, 2.0), (0, 40), (0.5, 0.95, 1.0), (0.0, 0.05)))
    wishes = wishes[:: len(wishes) // scope.draws][: scope.draws]
    draws = [Draw(i % rows, rng.getrandbits(64), i, *wish) for i, wish in enumerate(wishes)]
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


SETS: dict[str, Callable[[torch.device, Scope], Iterator[Check]]] = {
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
