"""A block that went to host memory and came back into another place has the bits that it had, in all layers of its group
and in no other."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from homebox.kernels.attention import PagedCache
from homebox.kernels.cpu.attention import BlockCache
from homebox.kernels.host import HostBlocks

LAYERS = (0, 1, 0)  # of two groups
BLOCKS = (5, 3)
Make = Callable[[torch.dtype], PagedCache | BlockCache]


def paged(dtype: torch.dtype) -> PagedCache:
    return PagedCache(
        layer_groups=LAYERS, blocks=BLOCKS, block_size=16, kv_heads=2, head_dim=32, dtype=dtype, device=torch.device("cpu"),
    )  # fmt: skip


def native(dtype: torch.dtype) -> BlockCache:
    return BlockCache(layer_groups=LAYERS, blocks=BLOCKS, kv_heads=2, head_dim=32, dtype=dtype)


def layer(cache: PagedCache | BlockCache, index: int) -> torch.Tensor:
    """Keys and values of a layer as `[2, blocks, numbers]`."""
    count = BLOCKS[LAYERS[index]]
    return torch.stack([half[index].reshape(count, -1) for half in (cache.k, cache.v)])


@pytest.mark.parametrize("make", [paged, native])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_comes_back_is_what_went(make: Make, dtype: torch.dtype) -> None:
    cache = make(dtype)
    for half in (*cache.k, *cache.v):
        half.copy_(torch.randn(half.shape))
    before = [layer(cache, index) for index in range(3)]
    host = HostBlocks(cache, 4)
    host.move([(0, 4, 3), (0, 1, 0), (1, 2, 3)], [])
    for half in (*cache.k, *cache.v):
        half.zero_()
    host.move([], [(0, 2, 3), (1, 0, 3)])
    for index, (out, into) in enumerate(((4, 2), (2, 0), (4, 2))):
        after = layer(cache, index)
        assert torch.equal(after[:, into], before[index][:, out]) and before[index][:, out].all()
        after[:, into] = 0
        assert not after.any()


@pytest.mark.parametrize("make", [paged, native])
def test_a_block_may_leave_and_another_come_to_its_place_in_one_step(
    make: Make,
) -> None:
    cache = make(torch.float32)
    host = HostBlocks(cache, 2)
    cache.k[0].fill_(1)
    host.move([(0, 0, 0)], [])
    cache.k[0].fill_(2)
    host.move([(0, 1, 1)], [(0, 1, 0), (0, 2, 1)])
    assert [layer(cache, 0)[0, block, 0].item() for block in range(3)] == [2, 1, 2]
