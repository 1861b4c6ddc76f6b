"""`homebox models fit` as a person uses it: the bill, the verdict, the exit codes; and the table of the measurements."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pynvml
import pytest

from homebox.fit import cards
from homebox.fit.room import Memory
from tests import forks
from tests.cli import golden
from tests.fit.test_weights import CONFIG
from tests.forks import COMMAND

DOCS = Path(__file__).parents[2] / "docs"
MEASURED, PAGE = DOCS / "measurements" / "2026-11-fit.md", DOCS / "memory.md"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A config.json and nothing else."""
    folder = tmp_path / "small"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG | {"num_hidden_layers": 64, "vocab_size": 32_000}))
    return folder


def fit(state: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"HOMEBOX_STATE_DIR": str(state)}
    command = [*COMMAND, "models", "fit", *map(str, words)]
    return forks.run(command, env=environment, input="", text=True, timeout=60)


EIGHT = ("llama-3.1-8b", "--memory", "24GiB")


@pytest.mark.parametrize(
    ("name", "words", "code"),
    [
        ("bf16", (*EIGHT, "--quantize", "none"), 0),
        (
            "int4-wish",
            (*EIGHT, "--quantize", "int4", "--people", "6", "--context", "16000", "--kv", "fp8"),
            0,
        ),
        ("unified", ("llama-3.1-8b", "--memory", "64GiB", "--unified"), 0),
        ("processor", ("llama-3.1-8b", "--memory", "32GiB", "--device", "cpu"), 0),
        ("too-much-wished", (*EIGHT, "--people", "6", "--context", "32000"), 1),
        ("too-large", ("llama-3.1-8b", "--memory", "12GiB"), 1),
    ],
)
def test_the_bill_is_said_line_by_line_and_then_the_verdict_or_the_next_step(
    tmp_path: Path, name: str, words: tuple[str, ...], code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOMEBOX_THREADS", "2")  # not this machine's
    got = fit(tmp_path, *words)
    assert got.returncode == code
    golden.check(f"fit/{name}", got.stdout + got.stderr)


def test_a_config_is_enough_and_this_machine_is_measured(tmp_path: Path, folder: Path) -> None:
    got = json.loads(fit(tmp_path, folder, "--device", "cpu", "--json").stdout)
    assert got["model"] == "small" and got["memory"] == "host" and got["fits"]
    assert got["verdict"].startswith(f"fits with {got['tokens'] // 1000:,}k tokens: 6 people at 2k")
    assert 0 < got["needed_bytes"] < got["free_bytes"]
    by_file = json.loads(fit(tmp_path, folder / "config.json", "--device", "cpu", "--json").stdout)
    assert by_file["weight_bytes"] == got["weight_bytes"]


def test_what_is_left_out_is_as_the_settings_say(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOMEBOX_KV_TYPE", "fp8")
    monkeypatch.setenv("HOMEBOX_QUANTIZE", "fp8")
    got = json.loads(fit(tmp_path, folder, "--memory", "24GiB", "--json").stdout)
    assert got["kv"] == "fp8" and "fp8" in got["weights"]
    auto = json.loads(fit(tmp_path, folder, "--memory", "24GiB", "--json", "--kv", "auto").stdout)
    assert auto["kv"] == "bf16" and auto["kv_token_bytes"] > 1.5 * got["kv_token_bytes"]
    refused = fit(tmp_path, folder, "--device", "cpu", "--quantize", "auto")
    assert refused.returncode == 2 and 'kv_type = "fp8": on a processor' in refused.stderr


def test_a_refusal_as_json_has_the_same_numbers(tmp_path: Path) -> None:
    got = fit(tmp_path, "llama-3.1-8b", "--memory", "12GiB", "--json")
    assert got.returncode == 1 and "too few" in got.stderr
    error = json.loads(got.stdout)["error"]
    found = error["numbers"]
    assert (error["code"], found["fits"], found["tokens"]) == ("no_memory", False, 0)
    assert found["needed_bytes"] - found["short_bytes"] == 12 * 2**30


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("nothing",), 6, "Name an installed one (homebox models list)"),
        (("./nothing",), 2, "is not there: no config.json, no GGUF file"),
        ((".",), 2, "no config.json"),
        (("mamba/config.json",), 2, "Supported: llama"),
        (("torn/config.json",), 2, "It is no config.json of a model"),
        (("llama-3.1-8b", "--memory", "24 apples"), 2, 'Write it like "2GiB"'),
        (("llama-3.1-8b", "--memory", "24GiB", "--context", "8"), 2, "16 tokens"),
        (("llama-3.1-8b", "--memory", "24GiB", "--context", "200000"), 2, "At most --context 131072"),
        (("llama-3.1-8b", "--memory", "24GiB", "--people", "-1"), 2, "At least one person"),
        (("llama-3.1-8b", "--device", "cpu", "--kv", "int8"), 2, 'ask about a GPU: --memory "24GiB"'),
        (("llama-3.1-8b", "--device", "cpu", "--quantize", "fp8"), 2, 'Set quantize = "int8", or ask about'),
        (("small/config.json", "--memory", "1MiB", "--device", "cpu"), 1, "MiB more memory; a smaller model"),
    ],
)
def test_what_cannot_be_answered_is_two_lines_with_the_next_step(
    tmp_path: Path,
    folder: Path,
    words: tuple[str, ...],
    code: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "mamba").mkdir()
    (tmp_path / "mamba" / "config.json").write_text(json.dumps(CONFIG | {"model_type": "mamba"}))
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "config.json").write_text("{")
    monkeypatch.chdir(tmp_path)
    got = fit(tmp_path / "state", *words)
    assert got.returncode == code, got.stderr
    assert said in got.stderr and len(got.stderr.splitlines()) == 2 and "Traceback" not in got.stderr


def test_the_table_of_the_measurements_is_what_the_command_prints_today(tmp_path: Path) -> None:
    printed = subprocess.run(
        [sys.executable, "-m", "homebox.fit.cards"], capture_output=True, text=True, timeout=60, check=True
    ).stdout
    assert printed in MEASURED.read_text(), "python -m homebox.fit.cards prints it anew"
    asked = fit(tmp_path, "llama-3.1-8b", "--table")
    assert [line.split()[:3] for line in asked.stdout.splitlines()[1:]] == [
        [*line.split("|")[1].split(), line.split("|")[2].strip()] for line in printed.splitlines()[2:]
    ]


def test_the_page_about_memory_shows_what_is_printed_today(tmp_path: Path) -> None:
    printed = fit(tmp_path, "llama-3.1-8b", "--memory", "12GiB", "--quantize", "int4").stdout
    assert printed in PAGE.read_text()


def test_what_a_gpu_has_free_is_measured_and_one_without_memory_of_its_own_shares_the_systems(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def nvml(**answers: Any) -> None:
        for name, answer in answers.items():
            monkeypatch.setattr(cards.pynvml, name, answer)

    def not_supported(_: object) -> None:
        raise pynvml.NVMLError_NotSupported()

    nvml(nvmlInit=lambda: None, nvmlDeviceGetCount=lambda: 0)
    assert cards.here() is None
    nvml(nvmlDeviceGetCount=lambda: 2, nvmlDeviceGetHandleByIndex=lambda index: index)
    nvml(nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(free=(handle + 7) * 2**30, total=2**40))
    assert cards.here() == Memory(7 * 2**30, "gpu")
    nvml(nvmlDeviceGetMemoryInfo=not_supported)
    monkeypatch.setattr(cards, "free_bytes", lambda: 99 * 2**30)
    assert cards.here() == Memory(99 * 2**30, "unified")


def test_what_the_bill_is_made_of_needs_no_tensor_library() -> None:
    code = (
        "import sys, homebox.cli.fit, homebox.fit.cards, homebox.fit.advice; "
        "bad = [m for m in ('torch', 'numpy', 'transformers', 'safetensors', 'homebox.engine') if m in sys.modules]; "
        "sys.exit(str(bad) if bad else 0)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_numbers_are_plain_json(tmp_path: Path, folder: Path) -> None:
    got = fit(tmp_path, folder, "--memory", "8GiB", "--json").stdout
    assert msgspec.json.decode(got, type=dict[str, int | str | bool])["beside_bytes"] > 0


def test_groups_that_a_matrix_does_not_divide_into_are_refused_with_its_name(tmp_path: Path) -> None:
    folder = tmp_path / "uneven"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG | {"intermediate_size": 100}))
    refused = fit(tmp_path, folder, "--memory", "24GiB", "--quantize", "int4")
    assert refused.returncode == 2
    assert "mlp.down_proj has 100 inputs, and int4 is groups of 32" in refused.stderr
    assert 'quantize = "none"' in refused.stderr
    assert fit(tmp_path, folder, "--memory", "24GiB").returncode == 0
