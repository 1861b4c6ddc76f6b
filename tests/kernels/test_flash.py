"""What is installed of flash-attn is found without importing it, and said where it is of no use."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest
import torch

from homebox.kernels import flash


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Version 3, but importing it fails."""
    (tmp_path / "flash_attn_interface.py").write_text("raise ImportError('undefined symbol: _ZN3c10')")
    (tmp_path / "flash_attn_3").mkdir()
    (tmp_path / "flash_attn_3" / "__init__.py").write_text("raise ImportError('this, too')")
    (tmp_path / "flash_attn_3" / "_C.abi3.so").write_bytes(b"compiled")
    info = tmp_path / "flash_attn_3-3.0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: flash_attn_3\nVersion: 3.0.1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_what_is_not_installed_is_nothing() -> None:
    assert flash.find((9, 0)) is None and flash.find(None) is None


def test_what_is_installed_is_found_by_its_version_and_only_loaded_when_it_is_wanted(installed: Path) -> None:
    library = flash.find((9, 0))
    assert isinstance(library, flash.Library) and library.name == "flash-attn 3.0.1"
    with pytest.raises(ImportError, match="undefined symbol"):
        library.load()


def test_compiled_anew_it_is_another_one(installed: Path) -> None:
    before = flash.find((8, 6))
    (installed / "flash_attn_3" / "_C.abi3.so").write_bytes(b"compiled again")
    after = flash.find((8, 6))
    assert isinstance(before, flash.Library) and isinstance(after, flash.Library)
    assert before.build != after.build and before.name == after.name


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("capability", "said"), [((12, 0), "capability 12.0"), ((7, 5), "7.5"), (None, "not NVIDIA's")]
)
def test_on_a_gpu_that_is_not_on_the_list_it_is_said_and_not_tried(
    capability: tuple[int, int] | None, said: str
) -> None:
    why = flash.find(capability)
    assert isinstance(why, str) and said in why and "flash-attn 3.0.1 is installed" in why


def test_version_two_is_of_no_use_and_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name == "flash-attn":
            return "2.8.3"
        raise importlib.metadata.PackageNotFoundError

    monkeypatch.setattr(importlib.metadata, "version", version)
    why = flash.find((9, 0))
    assert isinstance(why, str) and "flash-attn 2.8.3" in why and "256 tokens" in why


def test_it_is_called_for_causal_attention_as_far_as_the_window_and_without_splits() -> None:
    asked: dict[str, object] = {}

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **rest: object) -> torch.Tensor:
        asked.update(rest)
        return q

    q, none = torch.zeros(7, 2, 64), torch.zeros(0, dtype=torch.int32)
    library = flash.FlashAttention("flash-attn", attend)
    library(q, q, q, flash.Segments(none, none, none), 16, 0.25, 1.5)
    assert asked["causal"] is True and asked["window_size"] == (15, 0) and asked["max_seqlen_q"] == 7
    assert asked["softmax_scale"] == 0.25 and asked["softcap"] == 1.5 and asked["num_splits"] == 1
    library(q, q, q, flash.Segments(none, none, none), None, 0.25, 0.0)
    assert asked["window_size"] == (-1, -1)
