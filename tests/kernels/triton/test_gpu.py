"""`device = "cuda"`, from settings to text: a GPU is pretended, and Triton's interpreter computes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from homebox.engine import build, gpu
from homebox.engine.compute import choose
from homebox.errors import DeviceMissing, OutOfMemory, UsageError
from homebox.kernels import flash
from homebox.kernels.triton import trial
from homebox.wire.frames import Sampling, Start, Submit
from tests.engine.conftest import RunningEngine
from tests.kernels.triton.flash_stand_in import calls, with_kvcache

Make = Callable[..., RunningEngine]
PRETENDED = gpu.Gpu(torch.device("cpu"), "pretended", unified=True, dtype=torch.float32)


@pytest.fixture
def a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "find", lambda asked: PRETENDED if asked == "cuda" else "")


def ask(house: RunningEngine) -> dict[str, list[int]]:
    wishes = {
        "greedy": Sampling(max_tokens=3, temperature=0.0),
        "drawn": Sampling(max_tokens=3, temperature=0.9, seed=7, top_p=0.9, top_k=20),
    }
    for i, (name, wish) in enumerate(wishes.items()):
        house.submit(Submit(name, f"p{i}", [(i * 37 + j * j * 11) % 290 + 3 for j in range(3 + 7 * i)], wish))
    house.run()
    return {name: house.tokens(name) for name in wishes}


@pytest.mark.filterwarnings("ignore:overflow")  # what padding holds is anything
def test_a_whole_engine_on_a_gpu_says_what_the_reference_says(a_gpu: None, engine: Make) -> None:
    ours = engine(device="cuda", quantize="none", max_running=2, max_chunk_tokens=8)
    assert ours.ready.device == "cpu (pretended)" and ours.ready.attention == "triton"
    assert ours.ready.weights == "bf16" and ours.ready.weight_bytes > 0
    made = ask(ours)
    theirs = engine(kernels="reference")
    assert theirs.ready.attention == "reference"
    assert made == ask(theirs) and all(len(text) == 3 for text in made.values())


def test_without_a_gpu_a_wish_for_one_says_what_is_missing() -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(DeviceMissing, match="torch sees no GPU"):
        gpu.find("cuda")
    assert gpu.find("auto") == "" and gpu.find("cpu") == ""
    for wrong in ("tpu", "cuda:first", "cuda:"):
        with pytest.raises((UsageError, DeviceMissing)):
            gpu.find(wrong)


@pytest.mark.filterwarnings("ignore:overflow")  # what padding holds is anything
@pytest.mark.parametrize(
    ("asked", "name", "done"), [("auto", "triton, chunks by flash-attn 3", 2), ("own", "triton", 0)]
)
def test_a_library_that_was_found_to_be_faster_computes_prompts_and_own_means_ours(
    a_gpu: None,
    tiny_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    asked: str,
    name: str,
    done: int,
) -> None:
    attend = with_kvcache((torch.float32,))  # what a pretended GPU computes in
    library = flash.Library("flash-attn 3", "a build", lambda: flash.FlashAttention("flash-attn 3", attend))
    monkeypatch.setenv("CACHE_DIRECTORY", str(tmp_path))
    monkeypatch.setattr(flash, "DTYPES", {torch.float32})
    monkeypatch.setattr(flash, "find", lambda capability: library)
    monkeypatch.setitem(trial.BOUND, torch.float32, 1e-5)
    monkeypatch.setattr(trial, "CHECKED", ((0, 1), (5, 20)))
    monkeypatch.setattr(trial, "milliseconds", lambda *_: (1.0, 0.5))
    start = Start(
        str(tiny_model), device="cuda", quantize="none", max_running=2, max_chunk_tokens=12, attention=asked
    )
    compute = choose(start, lambda *_: None).load()
    assert compute.name == name and compute.notes == []
    runner = compute.runner(compute.with_blocks(4), None)
    calls.clear()
    runner.measure(12)
    assert calls["done"] == done


def test_memory_that_cannot_be_locked_ends_only_who_asked_for_it(
    engine: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise OutOfMemory("5.0 GiB of this machine's memory cannot be locked for the GPU")

    monkeypatch.setattr(gpu, "find", lambda asked: replace(PRETENDED, unified=False))
    monkeypatch.setattr(build, "_MEASURED_TOKENS", (1,))
    monkeypatch.setattr(build, "HostBlocks", refused)
    ready = engine(device="cuda", max_running=2, max_chunk_tokens=8).ready
    assert ready.host_blocks == 0
    assert ready.notes == [
        "no conversation rests in this machine's memory: 5.0 GiB of this machine's memory cannot be locked for the GPU"
    ]
    with pytest.raises(OutOfMemory):
        engine(device="cuda", max_running=2, max_chunk_tokens=8, kv_host_bytes=1 << 20)
