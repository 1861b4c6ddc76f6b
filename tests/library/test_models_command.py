"""`homebox models` as a person uses it: what is on which stream, and the exit codes."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from tests import forks
from tests.forks import COMMAND


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


def homebox(state: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"HOMEBOX_STATE_DIR": str(state)}
    command = [*COMMAND, "models", *map(str, words)]
    return forks.run(command, env=environment, input="", text=True, timeout=60)


def test_a_model_is_adopted_listed_shown_verified_and_removed(state: Path, gguf_file: Path) -> None:
    empty = homebox(state, "list")
    assert (empty.returncode, empty.stdout) == (0, "")
    assert "homebox models pull smollm2-135m" in empty.stderr
    done = homebox(state, "adopt", gguf_file, "--name", "tiny")
    assert (done.returncode, done.stdout) == (0, f"tiny is installed: {state / 'models' / 'tiny'}\n")
    listed = homebox(state, "list")
    assert listed.stdout.split()[:1] == ["tiny"]
    shown = json.loads(homebox(state, "show", "tiny", "--json").stdout)
    assert shown["quantisation"] == "Q8_0"
    assert homebox(state, "verify", "tiny").stdout.startswith("tiny is whole")
    kept = homebox(state, "rm", "tiny")
    assert kept.returncode == 2
    assert "--yes" in kept.stderr
    assert homebox(state, "rm", "tiny", "--yes").returncode == 0
    gone = json.loads(homebox(state, "list", "--json").stdout)
    assert gone["models"] == []
    assert gone["catalogue"][0]["name"] == "smollm2-135m"


def test_errors_are_two_lines_on_stderr_with_the_exit_code_and_never_a_traceback(
    state: Path, tmp_path: Path
) -> None:
    (tmp_path / "bad.gguf").write_bytes(b"GGUF" + bytes(90))
    for words, code in (
        (["show", "none"], 6),
        (["rm", "../x", "--yes"], 2),
        (["verify", "none"], 6),
        (["pull", "none"], 6),
        (["pull", "hf:org/repo"], 2),
        (["adopt", tmp_path / "none.gguf"], 2),
        (["adopt", tmp_path / "bad.gguf"], 2),
    ):
        got = homebox(state, *words)
        assert (got.returncode, got.stdout) == (code, ""), words
        assert len(got.stderr.splitlines()) == 2, got.stderr
        assert "Traceback" not in got.stderr


def test_a_damaged_model_is_named_by_list_and_can_be_removed(state: Path, gguf_file: Path) -> None:
    homebox(state, "adopt", gguf_file, "--name", "tiny")
    (state / "models" / "tiny" / "manifest.json").write_text("{")
    assert "tiny cannot be used" in homebox(state, "list").stderr
    assert homebox(state, "rm", "tiny", "--yes").returncode == 0


def test_help_has_examples_and_loads_nothing_heavy(state: Path) -> None:
    for command in ("list", "show", "pull", "adopt", "rm", "verify"):
        assert f"homebox models {command}" in homebox(state, command, "--help").stdout
    code = (
        "import sys; from homebox.cli import models; "
        "bad = [m for m in ('torch', 'numpy', 'transformers', 'tokenizers', 'aiohttp', 'httpx') if m in sys.modules]; "
        "sys.exit(str(bad) if bad else 0)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_installing_and_reading_models_needs_no_tensor_library() -> None:
    code = (
        "import sys, homebox.library.adopt, homebox.library.pull, homebox.text.detokenise; "
        "bad = [m for m in ('torch', 'numpy', 'transformers', 'safetensors') if m in sys.modules]; "
        "sys.exit(str(bad) if bad else 0)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_on_a_terminal_progress_is_a_bar_that_is_gone_at_the_end(state: Path, gguf_file: Path) -> None:
    mine, theirs = pty.openpty()
    environment = os.environ | {"HOMEBOX_STATE_DIR": str(state), "TERM": "xterm"}
    command = [*COMMAND, "models", "adopt", str(gguf_file)]
    done = forks.run(command, env=environment, stderr=theirs, text=True, timeout=60)
    os.close(theirs)
    shown = os.read(mine, 65536).decode()
    os.close(mine)
    assert done.returncode == 0
    assert done.stdout.startswith("tiny-chat.q8_0 is installed")
    assert "[########################]" in shown
    assert shown.endswith("\r\x1b[K")
