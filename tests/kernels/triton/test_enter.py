"""Normalising, rotating and storing in one pass, against the same steps one by one."""

from __future__ import annotations

import math

import pytest
import torch
import triton
import triton.language as tl
from torch.nn.functional import rms_norm

from homebox.kernels.attention import KvKind, PagedCache, encode
from homebox.kernels.triton import enter as kernels
from homebox.kernels.triton.paged import decode_e4m3, encode_e4m3
from homebox.kernels.triton.tuning import padded
from homebox.model.decoder import rotate

TOKENS = 5
SLOTS = torch.tensor([3, 17, 18, 40, 0])


def entered(
    heads: int,
    kv_heads: int,
    dim: int,
    kind: KvKind,
    dtype: torch.dtype,
    norm: bool,
    slots: torch.Tensor = SLOTS,
) -> tuple[torch.Tensor, PagedCache, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The kernel's queries and cache, and the queries, keys and values that are wanted, in fp32."""
    generator = torch.Generator().manual_seed(dim)
    cache = PagedCache(
        layer_groups=(0,), blocks=(3,), block_size=16, kv_heads=kv_heads, head_dim=dim, dtype=dtype,
        device=torch.device("cpu"), kind=kind,
    )  # fmt: skip
    qkv = torch.randn(TOKENS, heads + 2 * kv_heads, dim, generator=generator).to(dtype)
    qkv[1, heads] = 0  # a head of zeros has no scale to speak of
    weights = [torch.rand(dim, generator=generator).to(dtype) + 0.5 for _ in "qk"]
    angles = torch.randn(TOKENS, dim // 2, generator=generator) * 10
    queries = torch.full((TOKENS, heads, dim), math.nan, dtype=dtype)
    kernels.enter[(TOKENS, heads + 2 * kv_heads)](
        qkv, angles.cos(), angles.sin(), *weights, slots, queries, cache.k[0], cache.v[0], cache.k_scales[0],
        cache.v_scales[0], heads, kv_heads, 1e-5, DIM=dim, PADDED=padded(dim), NORM=norm, KV=kind,
    )  # fmt: skip
    q, k, v = qkv.float().split((heads, kv_heads, kv_heads), dim=1)
    if norm:
        q, k = (rms_norm(x, (dim,), w.float(), 1e-5) for x, w in zip((q, k), weights, strict=True))
    both = torch.cat((angles, angles), dim=-1)[:, None]
    return queries, cache, rotate(q, both.cos(), both.sin()), rotate(k, both.cos(), both.sin()), v


@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim"), [(4, 2, 64), (3, 3, 80), (6, 2, 96), (8, 1, 128), (2, 1, 256)]
)
@pytest.mark.parametrize("norm", [False, True])
def test_it_is_the_same_as_one_step_after_the_other(heads: int, kv_heads: int, dim: int, norm: bool) -> None:
    queries, cache, q, k, v = entered(heads, kv_heads, dim, KvKind.AS_IS, torch.float32, norm)
    torch.testing.assert_close(queries, q, rtol=2e-6, atol=2e-6)
    torch.testing.assert_close(cache.k[0][SLOTS], k, rtol=2e-6, atol=2e-6)
    assert torch.equal(cache.v[0][SLOTS], v)


@pytest.mark.parametrize("kind", [KvKind.INT8, KvKind.FP8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_stored_in_8_bits_is_what_rounding_to_nearest_gives(kind: KvKind, dtype: torch.dtype) -> None:
    _, cache, _, k, v = entered(4, 2, 64, kind, dtype, norm=False)
    codes, scales = encode(v, kind)
    assert torch.equal(
        numbers(cache.v[0][SLOTS], kind), numbers(codes, kind)
    )  # values are only rounded: to the bit
    torch.testing.assert_close(cache.v_scales[0][SLOTS], scales, rtol=1e-6, atol=0)
    codes, scales = encode(k, kind)
    torch.testing.assert_close(cache.k_scales[0][SLOTS], scales, rtol=1e-5, atol=0)
    off = (numbers(cache.k[0][SLOTS], kind) - numbers(codes, kind)).abs()
    assert (off <= (1 if kind == KvKind.INT8 else 32)).all() and (
        off > 0
    ).float().mean() < 0.01  # a last bit of a sine


def numbers(codes: torch.Tensor, kind: KvKind) -> torch.Tensor:
    return codes.view(torch.float8_e4m3fn).float() if kind == KvKind.FP8 else codes.float()


def test_a_padded_token_is_stored_nowhere() -> None:
    nowhere = torch.tensor([3, -1, 18, -1, 0])
    _, cache, *_ = entered(2, 1, 64, KvKind.INT8, torch.float32, norm=False, slots=nowhere)
    written = (cache.v_scales[0] != 0).nonzero()[:, 0].tolist()
    assert written == [0, 3, 18]


def test_every_number_of_8_bits_is_read_as_what_it_is() -> None:
    bits = torch.tensor([b for b in range(256) if b & 0x7F != 0x7F], dtype=torch.uint8)
    numbers = bits.view(torch.float8_e4m3fn).float()
    codes, out = torch.zeros(256, dtype=torch.uint8), torch.zeros(256)
    both_ways[(1,)](numbers, codes, out, len(bits), SIZE=256)
    assert torch.equal(out[: len(bits)], numbers)
    assert torch.equal(codes[: len(bits)].view(torch.float8_e4m3fn).float(), numbers)


def test_between_two_numbers_of_8_bits_the_nearer_one_is_taken() -> None:
    x = torch.cat((torch.linspace(-448, 448, 20001), torch.linspace(-0.02, 0.02, 20001)))
    codes, out = torch.zeros(len(x), dtype=torch.uint8), torch.zeros(len(x))
    both_ways[(-(-len(x) // 1024),)](x, codes, out, len(x), SIZE=1024)
    assert torch.equal(out, x.to(torch.float8_e4m3fn).float())


@triton.jit
def both_ways(x, codes, out, count, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    i = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    code = encode_e4m3(tl.load(x + i, mask=i < count, other=0.0))
    tl.store(codes + i, code, mask=i < count)
    tl.store(out + i, decode_e4m3(code), mask=i < count)
