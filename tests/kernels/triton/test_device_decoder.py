"""A whole engine on Triton's kernels: the device runner, the decoder in few launches, captured steps; on a pretended device
and in the interpreter. Its texts are those of the plain decoder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from homebox.engine.device_runner import DeviceRunner
from homebox.kernels.attention import KvKind, PagedCache
from homebox.kernels.chunks import Chunks
from homebox.kernels.triton.attention import TritonAttention
from homebox.kernels.triton.tuning import Attend
from homebox.model.device import DeviceDecoder
from homebox.wire.frames import Sampling, Submit
from tests.engine.conftest import RunningEngine
from tests.engine.fake_device import FakeDevice
from tests.engine.null_device import Greedy

SIZES = Attend(
    few=16, many=32, many_large=32, keys=32, split=64, few_warps=4, many_warps=4, stages=1, programs=4
)
SLOTS, CHUNK = 4, 12
PROMPTS = {"short": 2, "chunked": 15}
LONG_PROMPTS = {"short": 3, "long": 70, "longer": 150, "at a block's end": 16, "one": 1}


def on_triton(
    house: RunningEngine, depth: int, kind: KvKind = KvKind.AS_IS, chunks: Chunks | None = None
) -> FakeDevice:
    """The same engine, model and blocks, computed by Triton's kernels."""
    runner: Any = house.engine._runner
    decoder, old = runner._decoder, runner._attention
    spec = decoder.spec
    cache = PagedCache(
        layer_groups=old.cache.layer_groups, blocks=(house.ready.total_blocks,), block_size=old.cache.block_size,
        kv_heads=spec.kv_heads, head_dim=spec.head_dim, dtype=torch.float32, device=torch.device("cpu"), kind=kind,
    )  # fmt: skip
    attention = TritonAttention(cache, old.windows, spec.heads, sizes=SIZES, chunks=chunks)
    device = FakeDevice()
    house.engine._runner = DeviceRunner(
        device,
        DeviceDecoder(spec, decoder.weights, attention),
        Greedy(),
        slots=SLOTS,
        chunk=CHUNK,
        depth=depth,
    )
    house.engine._depth = depth
    return device


def ask(house: RunningEngine, prompts: dict[str, int], tokens: int) -> dict[str, list[int]]:
    greedy = Sampling(max_tokens=tokens, temperature=0.0)
    for i, (name, length) in enumerate(prompts.items()):
        ids = [(i * 37 + j * j * 11) % 290 + 3 for j in range(length)]
        house.submit(Submit(name, f"p{i}", ids, greedy))
    house.run()
    return {name: house.tokens(name) for name in prompts}


@pytest.mark.filterwarnings("ignore:overflow")  # what padding holds is anything
@pytest.mark.parametrize(
    ("prompts", "tokens"), [(PROMPTS, 4), pytest.param(LONG_PROMPTS, 9, marks=pytest.mark.long)]
)
def test_its_texts_are_those_of_the_plain_decoder(
    engine: Callable[..., RunningEngine],
    prompts: dict[str, int],
    tokens: int,
) -> None:
    settings = {"kernels": "reference", "max_chunk_tokens": CHUNK, "max_running": SLOTS}
    ours, theirs = engine(**settings), engine(**settings)
    device = on_triton(ours, depth=2)
    right = ask(theirs, prompts, tokens)
    assert ask(ours, prompts, tokens) == right and all(len(text) == tokens for text in right.values())
    assert device.captures > 0 and device.replays > 0
