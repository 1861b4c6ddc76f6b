"""Keys, values and weights in 8 bits, from the settings to the text: what is taken is what was counted, and what is said is near."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from homebox.engine import gpu
from homebox.engine.build import build
from homebox.engine.device_runner import DeviceRunner
from homebox.fit.demand import demand
from homebox.fit.model import read
from homebox.fit.plan import Kv, Plan, Quantize
from homebox.kernels.attention import BatchShape, KvKind, PagedCache
from homebox.kernels.reference import ReferenceAttention
from homebox.model.decoder import Decoder
from homebox.model.loader import load_for_device
from homebox.wire.frames import Sampling, Start, Submit
from tests.engine.conftest import RunningEngine
from tests.model.test_native import quiet, save

BLOCK = 16
CPU = torch.device("cpu")


pytestmark = pytest.mark.usefixtures("one_thread_of_torch")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """One layer, heads of 32 that share a key."""
    return save(tmp_path, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1)


@pytest.fixture
def pretend(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`pretend(dtype)`: there is a GPU, with memory of its own, and so it computes. Its steps are not timed."""

    def pretended(dtype: torch.dtype) -> None:
        monkeypatch.setattr(gpu, "find", lambda asked: gpu.Gpu(CPU, "pretended", dtype=dtype))
        monkeypatch.setattr("homebox.engine.build._MEASURED_TOKENS", ())

    return pretended


@pytest.mark.parametrize(
    ("kv_type", "quantize"), [("auto", "fp8"), ("bf16", "int4"), ("int8", "fp8"), ("fp8", "auto")]
)
def test_blocks_here_and_on_the_host_and_weights_take_what_was_counted(
    model: Path, pretend: Any, kv_type: str, quantize: Quantize
) -> None:
    pretend(torch.bfloat16)
    start = Start(
        str(model), device="cuda", kv_type=kv_type, quantize=quantize, kv_bytes=100_000, kv_host_bytes=50_000, max_running=2
    )  # fmt: skip
    engine, ready = build(start, lambda _: None, quiet)
    kinds: dict[str, Kv] = {"auto": "bf16", "bf16": "bf16", "int8": "int8", "fp8": "fp8"}
    asked = demand(read(model), Plan("gpu", quantize, kinds[kv_type], max_running=2))
    assert ready.kv == asked.kv_kind == kinds[kv_type]
    runner: Any = engine._runner
    assert isinstance(runner, DeviceRunner)
    here = sum(part.nbytes for memory in runner._model._attention.cache.memories for part in memory)
    assert here == ready.kv_bytes == ready.total_blocks * asked.kv_block
    assert 0 <= 100_000 - here < asked.kv_block
    there = sum(place.host.nbytes for memory in runner._host._places for place in memory)
    assert there == ready.host_blocks * asked.kv_block and 0 <= 50_000 - there < asked.kv_block
    assert (ready.weights, ready.weight_bytes) == (asked.kinds, asked.weights)
    assert ("fp8" in ready.weights) == (quantize == "fp8")


def prompt(count: int, seed: int) -> list[int]:
    return torch.randint(3, 320, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def logprobs(house: RunningEngine, name: str) -> list[float]:
    parts = house.progress(name)
    return [each.logprob for part in parts for each in (*part.prompt_logprobs, *part.logprobs)]


# Of a token, against keys and values in fp32.
NEAR = {"int8": 0.05, "fp8": 0.3}


@pytest.mark.filterwarnings("ignore:overflow")  # what padding holds is anything
@pytest.mark.parametrize("kv_type", NEAR)
def test_a_text_is_near_and_to_the_bit_the_same_after_its_blocks_were_moved_out_and_back(
    model: Path, pretend: Any, kv_type: str
) -> None:
    scored = Submit(
        "scored", "leo", prompt(20, 1), Sampling(max_tokens=1, temperature=0.0, prompt_logprobs=0)
    )
    plain = RunningEngine(Start(str(model), kernels="reference", quantize="none", kv_bytes=1 << 20))
    pretend(torch.float32)
    size = 4  # of a block: a small pool is soon overrun
    block = 2 * size * (32 + 4)
    ours = RunningEngine(
        Start(
            str(model),
            device="cuda",
            kv_type=kv_type,
            quantize="none",
            kv_bytes=8 * block,
            kv_host_bytes=40 * block,
            max_running=2,
            max_chunk_tokens=64,
            block_size=size,
        )
    )
    for house in (plain, ours):
        house.submit(scored)
        house.run()
    off = max(abs(a - b) for a, b in zip(logprobs(ours, "scored"), logprobs(plain, "scored"), strict=True))
    assert 1e-5 < off < NEAR[kv_type]
    again = {}
    for name in ("first", "hit", "moved"):
        if name == "moved":  # others take all blocks meanwhile
            ours.submit(
                Submit("other", "leo", prompt(8 * size - 1, 2), Sampling(max_tokens=1, temperature=0.0))
            )
            ours.run()
        ours.submit(Submit(name, "mia", prompt(10, 1), Sampling(max_tokens=2, temperature=0.0, logprobs=0)))
        ours.run()
        again[name] = ours.tokens(name), logprobs(ours, name)
    assert again["moved"] == again["hit"] and len(again["hit"][0]) == 2
    assert ours.progress("hit")[-1].cached == ours.progress("moved")[-1].cached == 2 * size
    assert ours.engine.scheduler.pool_state().host_hit_tokens == 2 * size, "the pool was meant to be overrun"


@pytest.mark.filterwarnings("ignore:overflow")
def test_a_whole_engine_with_weights_in_fp8_says_what_the_plain_decoder_says_with_them(
    model: Path, pretend: Any
) -> None:
    pretend(torch.float32)
    house = RunningEngine(Start(str(model), device="cuda", quantize="fp8", max_running=1, kv_bytes=1 << 20))
    ids = prompt(9, 3)
    house.submit(Submit("a", "mia", ids, Sampling(max_tokens=2, temperature=0.0)))
    house.run()
    spec, weights = load_for_device(model, torch.float32, CPU, "fp8", quiet)
    cache = PagedCache(
        layer_groups=(0,), blocks=(1,), block_size=BLOCK, kv_heads=1, head_dim=32, dtype=torch.float32, device=CPU,
        kind=KvKind.AS_IS,
    )  # fmt: skip
    decoder, attention = Decoder(spec, weights), ReferenceAttention(cache, (None,), 2)
    for token in house.tokens("a"):
        attention.plan(BatchShape.of([0], [len(ids)], [[[0]]]))
        with torch.inference_mode():
            hidden = decoder.forward(torch.tensor(ids), torch.arange(len(ids)), attention)
            assert int(decoder.logits(hidden[-1:]).argmax()) == token
        ids.append(token)
