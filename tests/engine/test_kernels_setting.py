"""The kernels that the settings ask for are the ones that run, or the start says why not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from homebox.engine.build import build
from homebox.errors import KernelsMissing, UsageError
from homebox.kernels.cpu.library import Absent, library
from homebox.wire.frames import Ready, Start

ABSENT = Absent("no C++ compiler found", "install one and restart homebox")


def ready(model: Path, kernels: str) -> Ready:
    return build(Start(str(model), kv_bytes=2**20, kernels=kernels), lambda _: None, lambda *_: None).ready


@pytest.fixture
def nothing_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("homebox.engine.compute.library", lambda report: ABSENT)


@pytest.mark.usefixtures("nothing_here")
def test_without_them_it_runs_and_says_once_why_it_is_slow_and_what_to_do(tiny_model: Path) -> None:
    assert ready(tiny_model, "auto").notes.count(ABSENT.note) == 1


@pytest.mark.usefixtures("nothing_here")
def test_asked_for_and_not_there_it_refuses_with_the_reason_and_the_next_step(tiny_model: Path) -> None:
    with pytest.raises(KernelsMissing, match="no C\\+\\+ compiler found") as caught:
        ready(tiny_model, "native")
    assert (
        caught.value.hint and "install one" in caught.value.hint and 'kernels = "auto"' in caught.value.hint
    )


def test_a_person_who_wants_the_reference_hears_of_no_compiler_and_waits_for_none(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    monkeypatch.setattr("homebox.engine.compute.library", lambda report: asked.append(1) or ABSENT)
    assert ABSENT.note not in ready(tiny_model, "reference").notes and not asked


def test_a_level_that_had_to_be_passed_over_is_said(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = library()
    if isinstance(real, Absent):
        pytest.skip(real.why)
    found = replace(real, passed_over="avx2 kernels run, not amx: an old compiler")
    monkeypatch.setattr("homebox.engine.compute.library", lambda report: found)
    assert found.passed_over in ready(tiny_model, "auto").notes


@pytest.mark.parametrize(
    ("setting", "instead"),
    [
        ({"kv_type": "bf16"}, 'Set kv_type = "auto", or device = "cuda" where there is a GPU'),
        ({"kv_type": "int8"}, 'Set kv_type = "auto", or device = "cuda" where there is a GPU'),
        ({"kv_type": "fp8"}, 'Set kv_type = "auto", or device = "cuda" where there is a GPU'),
        ({"quantize": "fp8"}, 'Set quantize = "int8", or device = "cuda" where there is a GPU'),
    ],
)
@pytest.mark.parametrize("kernels", ["auto", "reference"])
def test_what_only_a_gpu_has_is_refused_on_a_processor_before_anything_is_read(
    tmp_path: Path, setting: dict[str, str], instead: str, kernels: str
) -> None:
    start = Start(str(tmp_path / "nothing"), device="cpu", kernels=kernels, **setting)  # type: ignore[arg-type]
    with pytest.raises(UsageError) as caught:
        build(start, lambda _: None, lambda *_: None)
    assert instead in str(caught.value)
