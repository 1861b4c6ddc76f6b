"""One row's result does not depend, to the bit, on how many rows there are or which one it is."""

from __future__ import annotations

import pytest
import torch

from homebox.kernels.attention import BatchShape, PagedCache
from homebox.kernels.linear import PackedLinear, PlainLinear, linear
from homebox.kernels.reference import ReferenceAttention, bucket, buckets

# (out, in) of the default model, and some odd ones.
# Measured with oneDNN's AVX-512 kernels; what others do is not known.
bitwise = pytest.mark.skipif(
    "AVX512" not in torch.backends.cpu.get_cpu_capability(),
    reason="bit for bit was measured on AVX-512; this CPU offers " + torch.backends.cpu.get_cpu_capability(),
)
SHAPES = [(960, 576), (576, 576), (3072, 576), (576, 1536), (4096, 576), (192, 64), (100, 96), (7, 33)]


def weights(shape: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(sum(shape))
    return torch.randn(shape) * 0.05, torch.randn(shape[0]), torch.randn(300, shape[1])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("biased", [False, True])
def test_packed_and_plain_agree(shape: tuple[int, int], biased: bool) -> None:
    weight, bias, x = weights(shape)
    right = x.double() @ weight.double().T + (bias if biased else 0)
    for kind in (PackedLinear, PlainLinear):
        ours = kind(weight, bias if biased else None)
        for rows in (1, 2, 17, 300):
            torch.testing.assert_close(ours(x[:rows]).double(), right[:rows], atol=1e-4, rtol=1e-4)


@bitwise
@pytest.mark.parametrize("shape", SHAPES)
def test_a_row_alone_equals_the_same_row_in_any_batch_bit_for_bit(shape: tuple[int, int]) -> None:
    weight, bias, x = weights(shape)
    ours = linear(weight, bias)
    assert isinstance(ours, PackedLinear)
    whole = ours(x)
    for rows in [*range(1, 36), 48, 63, 64, 65, 127, 128, 200, 299]:
        assert torch.equal(ours(x[:rows]), whole[:rows]), rows
    for row in (1, 31, 100, 299):
        assert torch.equal(ours(x[row : row + 1])[0], whole[row])


@bitwise
def test_a_decoding_row_alone_equals_the_same_row_beside_others_bit_for_bit() -> None:
    torch.manual_seed(0)
    cache = PagedCache(
        layer_groups=(0,), blocks=(200,), block_size=16, kv_heads=3, head_dim=64, dtype=torch.float32,
        device=torch.device("cpu"),
    )  # fmt: skip
    cache.k[0].normal_()
    cache.v[0].normal_()
    attention = ReferenceAttention(cache, (None,), 9)
    contexts = [1, 15, 64, 65, 100, 128, 300, 511, 512, 513, 700]
    tables, free = [], list(range(200))
    for context in contexts:
        tables.append(tuple(free.pop() for _ in range(-(-context // 16))))
    starts = tuple(context - 1 for context in contexts)
    q = torch.randn(len(contexts), 9, 64)
    attention.plan(BatchShape.of(starts, (1,) * len(contexts), (tuple(tables),)))
    together = attention.attend(0, q)
    for i in range(len(contexts)):
        attention.plan(BatchShape.of(starts[i : i + 1], (1,), ((tables[i],),)))
        assert torch.equal(attention.attend(0, q[i : i + 1])[0], together[i]), contexts[i]


def test_buckets_hold_their_context_and_waste_at_most_half() -> None:
    for context in range(1, 5000):
        assert context <= bucket(context) <= max(64, 2 * context)
    contexts = torch.arange(1, 5000, dtype=torch.int32)
    assert buckets(contexts).tolist() == [bucket(context) for context in contexts.tolist()]
