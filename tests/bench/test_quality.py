"""Does the measure of quality find nothing where nothing differs, and exactly what was changed where something does?"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from homebox.bench import quality, quality_process
from homebox.bench.quality import Tally, Teacher
from homebox.errors import EngineFailed, UsageError
from tests.daemon.tiny_model import build

TEXTS = [[(7 * place + 3 * i) % 300 for i in range(21)] for place in range(4)]


pytestmark = pytest.mark.usefixtures("one_thread_of_torch")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of the library: a tokeniser, a manifest, and 2 random layers."""
    torch.manual_seed(5)
    config = LlamaConfig(
        vocab_size=420, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=1024, initializer_range=0.3,
    )  # fmt: skip
    path = build(tmp_path_factory.mktemp("library"))
    LlamaForCausalLM(config).save_pretrained(path)
    return path


def silent(stage: str, done: int, total: int) -> None:
    return


def teacher(model: Path) -> Teacher:
    return quality.reference_side(model, len(TEXTS), len(TEXTS[0]), silent)


def test_a_text_gets_the_logits_that_transformers_gives_it_however_it_is_read(model: Path) -> None:
    oracle = LlamaForCausalLM.from_pretrained(model)
    with torch.inference_mode():
        wanted = oracle(torch.tensor(TEXTS)).logits.transpose(0, 1)
    side = teacher(model)
    assert torch.allclose(torch.stack([*side.at_once(TEXTS)]), wanted, atol=1e-4)
    assert torch.allclose(torch.stack([*side.step_by_step(TEXTS)]), wanted, atol=1e-4)


def test_the_engine_as_it_is_agrees_with_fp32(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0})  # it takes a thread a core
    found = quality.measure(model, TEXTS, (1, 4), silent)
    assert [(row["read"], row["batch"]) for row in found["rows"]] == [
        ("prompt", 1),
        ("answer", 1),
        ("answer", 4),
    ]
    for row in found["rows"]:
        assert row["agreement"] >= quality.LEAST_AGREEMENT and row["kl_mean"] <= quality.MOST_KL
        assert row["positions"] == 4 * 21


def test_a_disturbed_model_is_found_out(model: Path) -> None:
    same, disturbed = teacher(model), teacher(model)
    for layer in disturbed._decoder.weights.layers:
        layer.mlp_norm.mul_(1.3)
    tally = Tally()
    quality.compare(tally, same.at_once(TEXTS), disturbed.at_once(TEXTS), TEXTS)
    found = tally.found()
    assert found["agreement"] < 0.97 and found["kl_mean"] > 0.01


def test_the_divergence_is_torchs_own_and_perplexity_that_of_the_next_token() -> None:
    torch.manual_seed(1)
    wanted, got = torch.randn(3, 50), torch.randn(3, 50)
    got[0] = wanted[0]
    tally = Tally()
    tally.add(wanted, got, [4, 5, 6])
    found = tally.found()
    kl = torch.nn.functional.kl_div(
        got.double().log_softmax(-1), wanted.double().log_softmax(-1), reduction="batchmean", log_target=True
    )
    loss = torch.nn.functional.cross_entropy(got.double(), torch.tensor([4, 5, 6]))
    assert found["kl_mean"] == pytest.approx(kl.item()) and found["positions"] == 3
    assert found["perplexity"] == pytest.approx(loss.exp().item())
    assert found["agreement"] == (wanted.argmax(-1) == got.argmax(-1)).double().mean().item() >= 1 / 3


def test_windows_are_equally_long_and_hold_the_texts_in_their_order(model: Path) -> None:
    texts = quality.windows(model, 32)
    assert len(texts) == 32 and len({len(text) for text in texts}) == 1
    batches = quality.chosen(texts, 4)
    assert [len(batch) for batch in batches] == [4, 4]
    assert [len(quality.chosen(texts, batch)) for batch in (1, 16, 32)] == [6, 1, 1]


def test_the_texts_are_of_several_kinds_and_languages() -> None:
    texts = [file.read_text(encoding="utf-8") for file in sorted(quality.TEXTS.iterdir())]
    words = sum(len(text.split()) for text in texts)
    assert len(texts) >= 10 and 2_000 < words < 5_000
    for mark in ("def ", "template <", "funktionierte", "vendait", "biblioteca", "Proof."):
        assert any(mark in text for text in texts), mark


def command(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_a_process_tells_how_far_it_is_and_what_it_found() -> None:
    lines = [{"stage": "weights", "done": 1, "total": 2}, {"quality": {"rows": []}}]
    code = (
        f"print('a library says hello'); [print(line) for line in {[json.dumps(line) for line in lines]!r}]"
    )
    seen: list[tuple[str, int, int]] = []
    assert quality_process.measured(Path("x"), lambda *a: seen.append(a), command(code)) == {"rows": []}
    assert seen == [("weights", 1, 2)]


@pytest.mark.parametrize(
    ("code", "kind", "says"),
    [
        ("import no_such_torch", UsageError, "no_such_torch"),
        ("raise ValueError('broken')", EngineFailed, "ValueError: broken"),
        ("import os; os._exit(9)", EngineFailed, "status 9: no word"),
        ("""print('{"error": {"code": "usage_error", "message": "too small"}}')""", UsageError, "too small"),
    ],
)
def test_a_process_that_cannot_is_an_error_in_words(code: str, kind: type[Exception], says: str) -> None:
    with pytest.raises(kind, match=says):
        quality_process.measured(Path("x"), silent, command(code))
