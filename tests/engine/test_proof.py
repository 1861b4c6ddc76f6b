"""A GPU that nobody asked for is used once our kernels have been seen to be right on it, and not before."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from homebox.engine import build, gpu, proof, proving
from homebox.engine.proof import Outcome
from homebox.errors import DeviceMissing, NoMemory, UsageError
from homebox.fit.model import read
from homebox.fit.room import Memory
from homebox.kernels.host import HostBlocks
from homebox.wire.frames import Start
from tests.engine.conftest import RunningEngine

pytest.importorskip("triton", reason="the development extra brings Triton on Linux on x86-64 only")

from homebox.kernels.triton import fused
from homebox.kernels.triton.attention import TritonAttention

Moves = tuple[tuple[int, int, int], ...]
Make = Callable[..., RunningEngine]
PRETENDED = gpu.Gpu(torch.device("cpu"), "a card", unified=True, dtype=torch.float32)


class Checks:
    """What the sets come to, and which were run."""

    def __init__(self, **outcomes: Outcome) -> None:
        self.outcomes, self.ran = outcomes, 0

    def __call__(self, gpu: gpu.Gpu, start: Start, name: str) -> Outcome:
        self.ran += 1
        return self.outcomes.get(name, Outcome(""))


@pytest.fixture
def why_not(tiny_model: Path, tmp_path: Path) -> Callable[..., str]:
    def ask(checks: Checks, card: gpu.Gpu = PRETENDED, **start: str) -> str:
        asked = Start(str(tiny_model), device="auto", **start)  # type: ignore[arg-type]
        reported: list[tuple[str, int, int]] = []
        why = proof.why_not(
            card, asked, read(tiny_model), lambda *said: reported.append(said), tmp_path / "kernels", checks
        )
        assert not reported or reported[-1] == ("checking the GPU", len(proof.SETS), len(proof.SETS))
        return why

    return ask


def test_what_was_found_right_is_not_checked_again_until_something_changes(
    why_not: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def checked(*card: gpu.Gpu, **start: str) -> bool:
        checks = Checks()
        assert why_not(checks, *card, **start) == ""
        assert checks.ran in (0, len(proof.SETS))
        return checks.ran > 0

    other = gpu.Gpu(torch.device("cpu"), "another card", unified=True)
    assert checked() and not checked()
    assert checked(other) and not checked(other)
    assert checked(kv_type="int8") and checked(quantize="int4") and not checked(kv_type="int8")
    monkeypatch.setattr(torch, "__version__", "9.9")
    assert checked() and not checked()
    monkeypatch.setattr(proof, "_own_build", lambda: "another")
    assert checked() and not checked()


def test_what_was_found_wrong_is_said_each_time_and_not_checked_again(why_not: Callable[..., str]) -> None:
    checks = Checks(sampling=Outcome("2 tokens drawn is off by 1", True), whole=Outcome("crashed", True))
    for _ in range(2):
        why = why_not(checks)
        assert why.startswith("our kernels do not pass their checks on it: 2 tokens drawn is off by 1; ")
        assert why.endswith("/kernels/gpu.json") and "to check again, remove" in why
    assert checks.ran == len(proof.SETS)


def test_what_only_came_in_the_way_is_tried_again_at_the_next_start(why_not: Callable[..., str]) -> None:
    """Also beside what is found wrong: that will be found again."""
    short = Checks(attention=Outcome("off", True), whole=Outcome("too little memory is free for that"))
    assert why_not(short) == "our kernels could not be checked on it: too little memory is free for that"
    assert why_not(Checks()) == ""


@pytest.mark.parametrize(
    ("out", "err", "ended", "outcome"),
    [
        ('{"name": "a", "error": 0.1, "bound": 0.2}', "a warning", 0, Outcome()),
        ('{"name": "a", "error": NaN, "bound": 0.2}', "", 0, Outcome("a is off by nan, of which 0.2 is rounding", True)),
        ('{"name": "a", "error": 0.1, "bound": 0.2}', "bad\nlast", -11, Outcome("whole: last", True)),
        ("", "RuntimeError: CUDA error: an illegal memory access", proof.ILLEGAL, Outcome("whole: RuntimeError: CUDA error: an illegal memory access", True)),
        ("", "", -9, Outcome("whole: ended with -9")),
        ("", "RuntimeError: Failed to find C compiler", 1, Outcome("whole: RuntimeError: Failed to find C compiler")),
        ("", "whatever", proof.NO_MEMORY, Outcome("whole: too little memory is free, on it or in this machine")),
    ],
)  # fmt: skip
def test_how_a_process_ends_says_whether_it_will_end_so_again(
    out: str, err: str, ended: int, outcome: Outcome
) -> None:
    assert proof._read("whole", out, err, ended) == outcome


def test_a_process_says_why_it_ends(tiny_model: Path) -> None:
    """In the words of torch, of Triton and of our own engine; and what a library prints is not what was found."""
    program = """
import sys
import torch
from homebox.engine import proving
from homebox.errors import NoMemory

def raising(error):
    def checks(*_):
        print("a library says hello")
        raise error
        yield
    return checks

sys.argv[1:] = ["attention", "--model", sys.argv[1]]
for error in (
    torch.OutOfMemoryError("no"), RuntimeError("CUDA error: out of memory\\nmore"), NoMemory("the model needs more"),
    RuntimeError("CUDA error: an illegal memory access was encountered"), ValueError("what"),
):
    proving._checks = raising(error)
    print(proving.main(), file=sys.stderr)
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", program, str(tiny_model)], capture_output=True, text=True, env=environment
    )
    ends = [line for line in done.stderr.splitlines() if line.isdigit()]
    assert ends == ["3", "3", "3", "4", "1"], done.stderr
    assert not done.stdout and "CUDA error: out of memory" in done.stderr and "Traceback" in done.stderr


def test_where_nothing_can_be_kept_the_processor_computes(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kernels").write_text("in the way")
    checks = Checks()
    why = proof.why_not(
        PRETENDED, Start(str(tiny_model)), read(tiny_model), lambda *_: None, tmp_path / "kernels", checks
    )
    assert "could not be remembered" in why and not checks.ran


def test_the_settings_decide_whether_it_is_asked(engine: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "find", lambda asked: PRETENDED if asked != "cpu" else "")
    monkeypatch.setattr(build, "_MEASURED_TOKENS", (1,))
    asked: list[str] = []

    def why_not(found: gpu.Gpu, start: Start, *_: object) -> str:
        asked.append(start.device)
        return why

    monkeypatch.setattr(proof, "why_not", why_not)
    why = "it is wrong"
    ready = engine(device="auto", max_running=2, max_chunk_tokens=8).ready
    assert "pretended" not in ready.device and ready.attention != "triton"
    assert (
        ready.notes[0]
        == 'a card is here, and it is wrong (device = "cuda" uses it all the same): the processor computes'
    )
    assert engine(device="cuda", max_running=2, max_chunk_tokens=8).ready.attention == "triton"
    with pytest.raises(DeviceMissing, match=r"a card is here, and it is wrong.*on a processor") as caught:
        engine(device="auto", kv_type="int8")
    assert 'kv_type = "auto"' in str(caught.value.hint)
    why = ""
    ready = engine(device="auto", max_running=2, max_chunk_tokens=8).ready
    assert ready.attention == "triton" and not ready.notes
    assert asked == ["auto"] * 3


def test_settings_for_a_gpu_that_cannot_be_used_are_refused_and_not_waited_with(
    engine: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "find", lambda asked: "a GPU is here, but not Triton")
    with pytest.raises(UsageError, match=r"a GPU is here, but not Triton; kv_type"):
        engine(device="auto", kv_type="int8")


def test_a_gpu_that_is_too_small_is_said_and_one_that_is_full_is_waited_for(
    engine: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "find", lambda asked: PRETENDED if asked != "cpu" else "")
    monkeypatch.setattr(proof, "why_not", lambda *_: pytest.fail("nothing is to be checked"))
    small, full = Memory(10**9, "gpu"), Memory(10**6, "gpu")
    monkeypatch.setattr(gpu.Gpu, "memory", lambda self: full)
    with pytest.raises(NoMemory, match="on the GPU"):
        engine(device="auto")
    monkeypatch.setattr(gpu.Gpu, "total", lambda self: small.free // 10)
    notes = engine(device="auto").ready.notes
    assert "a card is here, and this model needs" in notes[0] and "of its 95 MiB" in notes[0]


def test_a_set_is_a_process_that_says_what_it_found(tiny_model: Path, tmp_path: Path) -> None:
    start = Start(str(tiny_model))
    assert proof.in_a_process(PRETENDED, start, "operations") == Outcome("")
    assert proof.in_a_process(PRETENDED, start, "operations", within_s=0.01) == Outcome(
        "operations took longer than 0 s"
    )
    gone = Start(str(tmp_path / "nothing"))
    assert "/nothing is not there" in proof.in_a_process(PRETENDED, gone, "operations").why


@pytest.mark.filterwarnings("ignore:overflow")  # what padding holds is anything
@pytest.mark.parametrize("kv_type", ["auto", pytest.param("fp8", marks=pytest.mark.long)])
def test_a_whole_engine_that_is_right_passes_and_one_that_is_wrong_does_not(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, kv_type: str
) -> None:
    monkeypatch.setattr(gpu, "find", lambda asked: PRETENDED if asked == "cuda" else "")
    spec, start = read(tiny_model).spec, Start(str(tiny_model), device="cuda", kv_type=kv_type)
    monkeypatch.setattr(build, "_MEASURED_TOKENS", (1,))
    texts = proving.Texts((1, 18), answer=2, chunk=8)
    found = list(proving.whole(spec, start, texts))
    assert len(found) == 2 and all(check.passed for check in found)
    assert found[0].bound == proving.BOUNDS["bf16" if kv_type == "auto" else kv_type]
    monkeypatch.setattr(TritonAttention, "attend_into", lambda self, layer, q, out: out.copy_(q))
    assert not next(proving.whole(spec, start, texts)).passed


@pytest.mark.parametrize("spoiled", [2, 9])
def test_one_block_that_comes_back_with_other_contents_is_found(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, spoiled: int
) -> None:
    """With the processor's kernels: what is tried is whether the comparison sees it."""
    start = Start(str(tiny_model), device="cpu", kernels="reference")
    spec = read(tiny_model).spec
    assert all(check.passed for check in proving.whole(spec, start))
    move, seen = HostBlocks.move, []

    def wrong(self: HostBlocks, out: Moves, into: Moves) -> None:
        move(self, out, into)
        for group, block, _ in into:
            seen.append(block)
            if len(seen) == spoiled:
                for memory in self._places:
                    memory[group].device[block] = memory[group].device[block - 1]

    monkeypatch.setattr(HostBlocks, "move", wrong)
    found = list(proving.whole(spec, start))
    assert len(seen) > spoiled and found[0].passed and not found[1].passed


def test_a_kernel_that_is_wrong_is_found(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from homebox.kernels.triton import checks

    scope = proving.scope(read(tiny_model), Start(str(tiny_model)), torch.device("cpu"))
    assert all(check.passed for check in checks.SETS["operations"](torch.device("cpu"), scope))
    right = fused.silu_and_multiply
    monkeypatch.setattr(checks, "silu_and_multiply", lambda x: right(x) * 1.01)
    assert not all(check.passed for check in checks.SETS["operations"](torch.device("cpu"), scope))
