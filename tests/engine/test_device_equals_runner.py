"""Whatever a request asks for, the device runner answers as the runner of the CPU does: the same tokens and scores."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from homebox.engine.device_runner import DeviceRunner
from homebox.wire.frames import Sampling, Submit
from tests.engine.conftest import RunningEngine
from tests.engine.fake_device import FakeDevice
from tests.engine.torch_device import ReferenceChooser, TorchDeviceModel

Make = Callable[..., RunningEngine]

WISHES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "drawn": {"temperature": 0.9, "seed": 7},
    "top-k": {"temperature": 1.3, "seed": 8, "top_k": 5},
    "top-p": {"temperature": 0.8, "seed": 9, "top_p": 0.7, "min_p": 0.01},
    "repetition": {"temperature": 0.0, "repetition_penalty": 1.4},
    "penalties": {"temperature": 0.0, "presence_penalty": 0.7, "frequency_penalty": 0.4},
    "bias": {"temperature": 0.0, "logit_bias": {5: 4.0, 6: -100.0, 299: 1.5}},
    "least": {"temperature": 0.0, "min_tokens": 6, "end_tokens": tuple(range(0, 300, 2))},
    "all": {
        "temperature": 1.1, "seed": 3, "repetition_penalty": 1.2, "presence_penalty": 0.3, "logit_bias": {17: 2.0},
        "min_tokens": 3, "end_tokens": (1, 2, 3), "top_p": 0.95, "logprobs": 2,
    },
    "scores": {"temperature": 0.0, "logprobs": 3},
    "scores of the prompt": {"temperature": 0.0, "prompt_logprobs": 2},
    "ruled out": {"temperature": 0.0, "logit_bias": {token: float("-inf") for token in range(300)}},
}  # fmt: skip


def on_a_device(house: RunningEngine, chunk: int, depth: int, **device: Any) -> FakeDevice:
    """The same engine, but a pretended device computes, kernel by kernel."""
    fake = FakeDevice(lambda site: "out of memory" if site == "capture" else None, **device)
    runner = house.engine._runner
    house.engine._runner = DeviceRunner(
        fake, TorchDeviceModel.of(runner), ReferenceChooser(), slots=16, chunk=chunk, depth=depth
    )  # type: ignore[arg-type, assignment]
    house.engine._depth = depth
    return fake


def asked() -> list[Submit]:
    requests = []
    for i, (name, wish) in enumerate(WISHES.items()):
        prompt = [(i * 37 + j * j * 11) % 290 + 3 for j in range(3 + 5 * i)]
        requests.append(Submit(name, f"p{i % 3}", prompt, Sampling(max_tokens=7, **wish)))
    return requests


def test_every_wish_is_answered_alike(engine: Make) -> None:
    settings = {"kernels": "reference", "max_chunk_tokens": 48}
    ours, theirs = engine(**settings), engine(**settings)
    fake = on_a_device(ours, 48, depth=2)
    for house in (ours, theirs):
        house.submit(*asked())
        house.run()
    assert fake.ahead > 3
    for name in WISHES:
        assert ours.tokens(name) == theirs.tokens(name), name
        assert ours.finish(name) == theirs.finish(name), name
        for mine, right in zip(_scores(ours, name), _scores(theirs, name), strict=True):
            assert mine.logprob == pytest.approx(right.logprob, abs=1e-4), name
            assert [t.token for t in mine.top] == [t.token for t in right.top], name
    assert theirs.finish("ruled out") == "error" and len(theirs.tokens("least")) >= 6
    assert len(_scores(theirs, "scores of the prompt")) > 30


def _scores(house: RunningEngine, name: str) -> list[Any]:
    parts = house.progress(name)
    return [s for p in parts for s in p.prompt_logprobs] + [s for p in parts for s in p.logprobs]


def test_what_is_not_a_number_ends_one_request_and_leaves_nothing(engine: Make, broken_model: Path) -> None:
    house = engine(model_dir=str(broken_model), kernels="reference", max_chunk_tokens=32)
    on_a_device(house, 32, depth=2)
    fine = [5, 6, 7, 8]
    greedy = Sampling(max_tokens=12, temperature=0.0)
    house.submit(Submit("alone", "mia", fine, greedy))
    house.run()
    house.submit(Submit("fine", "leo", fine, greedy), Submit("broken", "kim", [5, 299] + [7] * 60, greedy))
    house.run()
    assert house.finish("broken") == "error" and "not a number" in house.progress("broken")[-1].detail
    assert house.tokens("fine") == house.tokens("alone") and len(house.tokens("fine")) == 12
    cache = house.engine._runner._model._attention.cache  # type: ignore[attr-defined]
    assert not any(part.isnan().any() for part in (*cache.k, *cache.v))
