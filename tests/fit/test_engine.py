"""The engine decides by the same figures, before it loads anything, and a real one grows by what they say."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from homebox.engine import compute
from homebox.engine.build import build
from homebox.errors import NoMemory
from homebox.fit.demand import demand
from homebox.fit.plan import Plan
from homebox.fit.room import AUTO_KV_BYTES, MARGINS
from homebox.wire.frames import Ready, Start
from tests.kernels.cpu_builds import needs_compiler
from tests.model.test_native import save

MIB = 2**20


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Its keys and values take 96 KiB a block, its 1,024 tokens of context 6 MiB."""
    return save(tmp_path, num_key_value_heads=4, head_dim=64)


def ready(folder: Path, **settings: Any) -> Ready:
    start = Start(str(folder), kernels="reference", **{"max_running": 4} | settings)
    return build(start, lambda _: None, lambda *_: None).ready


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`free(count)`: so many bytes are free, beside the margin."""

    def measured(count: int) -> None:
        monkeypatch.setattr("homebox.engine.compute.free_bytes", lambda: MARGINS["host"] + count)

    return measured


def test_what_does_not_fit_is_refused_before_a_tensor_is_read(
    model: Path, free: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compute, "load", lambda *_: pytest.fail("it was loaded"))
    free(0)
    with pytest.raises(NoMemory, match=r"256 MiB are free, \d+ MiB too few") as caught:
        ready(model)
    assert "more memory" in str(caught.value.hint) and caught.value.numbers["fits"] is False


def test_conversations_get_half_of_what_is_left_unless_they_cannot_use_it(model: Path, free: Any) -> None:
    choice = compute.choose(Start(str(model), kernels="reference", max_running=4), lambda *_: None)
    asked = demand(choice.model, choice.plan, started=True)
    free(asked.weights + asked.activations + asked.process + 8 * MIB)
    got = ready(model)
    assert 0 <= 4 * MIB - got.kv_bytes < asked.kv_block and got.kv_bytes == got.total_blocks * asked.kv_block
    assert got.weight_bytes == asked.weights
    assert any(f"holds {got.max_context} tokens" in note for note in got.notes)
    free(100 * AUTO_KV_BYTES)
    assert ready(model).total_blocks == 4 * 1024 // 16


def test_settings_that_ask_for_more_than_there_is_get_what_there_is_and_are_told(
    model: Path, free: Any
) -> None:
    choice = compute.choose(Start(str(model), kernels="reference", max_running=4), lambda *_: None)
    asked = demand(choice.model, choice.plan, started=True)
    free(asked.weights + asked.activations + asked.process + 8 * MIB)
    got = ready(model, kv_bytes=20 * MIB)
    assert 0 <= 8 * MIB - got.kv_bytes < asked.kv_block
    assert [note for note in got.notes if note.startswith("20 MiB of KV memory are wanted; ")]
    assert not any("are wanted" in note for note in ready(model, kv_bytes=4 * MIB).notes)


def test_larger_chunks_are_counted(model: Path) -> None:
    found = compute.choose(Start(str(model), kernels="reference"), lambda *_: None).model
    small, large = (demand(found, Plan("reference", max_chunk_tokens=count)) for count in (128, 1024))
    assert large.activations > 2 * small.activations and large.weights == small.weights


@needs_compiler
@pytest.mark.model
def test_an_engine_of_the_default_model_takes_what_was_counted_and_grows_by_it(default_model: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "homebox.bench.resident",
        "--json",
        "--kernels",
        "native",
        "--kv-memory",
        "16MiB",
    ]
    done = subprocess.run(
        [*command, "--model", str(default_model)], capture_output=True, text=True, timeout=280, check=True
    )
    found = json.loads(done.stdout)
    assert found["weights"] == found["loaded"]
    counted = sum(found[part] for part in ("weights", "activations", "process", "kv"))
    assert counted == pytest.approx(found["grown"], rel=0.1), found
