"""Who computes chunks of prompts is found out once: whoever is right and faster, and nobody else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from homebox.engine.chunks import FILE, Chosen, choose
from homebox.kernels.chunks import Chunks
from homebox.kernels.device import Device, ImmediateDevice
from homebox.kernels.flash import FlashAttention, Library
from homebox.kernels.remembered import KEPT

pytest.importorskip("triton", reason="the development extra brings Triton on Linux on x86-64 only")

from homebox.kernels.triton.trial import BOUND, Shapes

SHAPES = Shapes(4, 2, 64, ((None, 2),), 16, torch.bfloat16, slots=4)
ABOUT = {"gpu": "a card", "torch": "2.13"}


class Trial:
    """What the trial of a library comes to, and how often it was held."""

    BOUND = BOUND

    def __init__(self, off: float = 0.001, ours: float = 1.0, theirs: float = 0.5) -> None:
        self.off, self.ours, self.theirs = off, ours, theirs
        self.compared = self.timed = 0
        self.meanwhile: Callable[[], None] = lambda: None

    def error(self, chunks: Chunks, shapes: Shapes, device: Device) -> float:
        self.compared += 1
        self.meanwhile()
        return self.off

    def milliseconds(self, chunks: Chunks, shapes: Shapes, device: Device) -> tuple[float, float]:
        self.timed += 1
        return self.ours, self.theirs


class Shelf:
    """A library that is installed, and where answers are kept."""

    def __init__(self, cache: Path) -> None:
        self.cache, self.loaded = cache, 0
        self.library: Library | str | None = Library("flash-attn 3.0", "built today", self.load)
        self.device: Device = ImmediateDevice()

    def load(self) -> Chunks:
        self.loaded += 1
        return FlashAttention("flash-attn 3.0", lambda: None)

    def choose(self, trial: Trial, about: dict[str, str] = ABOUT, shapes: Shapes = SHAPES) -> Chosen:
        return choose(
            self.library, shapes, about=about, cache=self.cache, device=lambda: self.device, trial=trial
        )


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(tmp_path / "homebox" / "kernels")


def test_who_is_right_and_faster_is_taken_and_measured_once(shelf: Shelf) -> None:
    trial = Trial()
    for _ in range(2):
        chosen = shelf.choose(trial)
        assert chosen.chunks is not None and chosen.notes == []
        assert chosen.name == "triton, chunks by flash-attn 3.0"
    assert trial.compared == trial.timed == 1


@pytest.mark.parametrize(
    ("trial", "why"),
    [
        (Trial(off=0.04), "its answers are 0.04 from ours, of which 0.03 is rounding"),
        (Trial(off=float("inf")), "its answers are inf from ours"),
        (Trial(theirs=0.91), "it takes 0.91 ms where our own kernels take 1.00, and is to win by 10%"),
    ],
    ids=["wrong", "not a number", "hardly faster"],
)
def test_who_is_wrong_or_hardly_faster_is_not_taken_and_people_read_why(
    shelf: Shelf, trial: Trial, why: str
) -> None:
    for _ in range(2):
        chosen = shelf.choose(trial)
        assert chosen.chunks is None and chosen.name == "triton"
        (note,) = chosen.notes
        assert note.startswith("flash-attn 3.0 is not used for prompts: ") and why in note
    assert trial.compared == 1 and shelf.loaded == 1, "what is not used is not even loaded the next time"


def test_who_is_wrong_is_not_timed(shelf: Shelf) -> None:
    trial = Trial(off=1.0)
    shelf.choose(trial)
    assert trial.timed == 0


@pytest.mark.parametrize("where", ["loading", "computing"])
def test_who_raises_is_not_taken_and_quoted(shelf: Shelf, where: str) -> None:
    trial = Trial()

    def fail() -> Any:
        raise RuntimeError("head_size should be a multiple of 8\n  at flash_api.cpp:900")

    if where == "loading":
        shelf.library = Library("flash-attn 3.0", "built today", fail)
    trial.meanwhile = fail
    for _ in range(2):
        chosen = shelf.choose(trial)
        assert chosen.chunks is None
        assert chosen.notes == [
            "flash-attn 3.0 is not used for prompts: RuntimeError: head_size should be a multiple of 8"
        ]


def test_what_the_answer_depends_on_is_asked_for_anew(shelf: Shelf) -> None:
    trial = Trial()
    shelf.choose(trial)
    shelf.choose(trial, about=ABOUT | {"torch": "2.14"})
    shelf.choose(trial, shapes=SHAPES._replace(head_dim=128))
    shelf.library = Library("flash-attn 3.1", "built today", shelf.load)
    shelf.choose(trial)
    shelf.library = Library("flash-attn 3.1", "built tomorrow", shelf.load)
    shelf.choose(trial)
    assert trial.timed == 5
    for _ in range(2):
        shelf.choose(trial)
    assert trial.timed == 5


def test_what_was_taken_and_cannot_be_loaded_any_more_is_not_used(shelf: Shelf) -> None:
    trial = Trial()
    assert shelf.choose(trial).chunks is not None

    def fail() -> Any:
        raise ImportError("libcudart.so.12: cannot open shared object file")

    shelf.library = Library("flash-attn 3.0", "built today", fail)
    chosen = shelf.choose(trial)
    assert chosen.chunks is None and trial.timed == 1
    assert "ImportError: libcudart.so.12: cannot open" in chosen.notes[0]


def test_what_is_remembered_does_not_grow_for_ever(shelf: Shelf) -> None:
    trial = Trial()
    for i in range(KEPT + 3):
        shelf.choose(trial, about=ABOUT | {"torch": str(i)})
    assert len(json.loads((shelf.cache / FILE).read_text())["findings"]) == KEPT
    shelf.choose(trial, about=ABOUT | {"torch": str(KEPT)})
    assert trial.timed == KEPT + 3, "the newest are kept"
    assert [file.name for file in shelf.cache.iterdir()] == [FILE]


def _other_version(file: Path) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | {"version": 99}))


def _other_words(file: Path) -> None:
    content = json.loads(file.read_text())
    content["findings"][0]["taken"] = "perhaps"
    file.write_text(json.dumps(content))


def _another_field(file: Path) -> None:
    content = json.loads(file.read_text())
    content["findings"][0]["module"] = "os"
    file.write_text(json.dumps(content))


def _a_link(file: Path) -> None:
    file.rename(file.with_suffix(".old"))
    file.symlink_to(file.with_suffix(".old"))


SPOILT: dict[str, Callable[[Path], None]] = {
    "cut": lambda file: file.write_bytes(file.read_bytes()[:-40]),
    "empty": lambda file: file.write_bytes(b""),
    "another version": _other_version,
    "another word": _other_words,
    "another field": _another_field,
    "a link": _a_link,
    "others may write it": lambda file: file.chmod(0o666),
}


@pytest.mark.parametrize("spoil", SPOILT.values(), ids=SPOILT)
def test_a_file_that_is_not_ours_or_not_whole_is_as_if_it_were_not_there(
    shelf: Shelf, spoil: Callable[[Path], None]
) -> None:
    trial = Trial()
    shelf.choose(trial)
    spoil(shelf.cache / FILE)
    for _ in range(2):
        assert shelf.choose(trial).chunks is not None
    assert trial.timed == 2


@pytest.mark.parametrize("in_the_way", ["", FILE], ids=["of the directory", "of the file"])
def test_where_nothing_can_be_remembered_nothing_is_tried(shelf: Shelf, in_the_way: str) -> None:
    if in_the_way:
        (shelf.cache / in_the_way).mkdir(parents=True)
    else:
        shelf.cache.parent.mkdir(parents=True)
        shelf.cache.write_text("")
    trial = Trial()
    chosen = shelf.choose(trial)
    assert chosen.chunks is None and trial.compared == 0 and shelf.loaded == 0
    assert "is not tried, since what comes of it cannot be remembered" in chosen.notes[0]


def test_an_engine_that_ended_in_the_trial_is_the_last_one_that_held_it(shelf: Shelf) -> None:
    trial = Trial()

    def end() -> None:
        raise KeyboardInterrupt  # as the end of a process: nothing after it is done

    trial.meanwhile = end
    with pytest.raises(KeyboardInterrupt):
        shelf.choose(trial)
    chosen = shelf.choose(trial)
    assert chosen.chunks is None and trial.compared == 1
    assert (
        "an engine ended while it was tried" in chosen.notes[0] and str(shelf.cache / FILE) in chosen.notes[0]
    )
    (shelf.cache / FILE).unlink()
    trial.meanwhile = lambda: None
    assert shelf.choose(trial).chunks is not None


def test_a_device_that_does_not_survive_the_trial_is_the_end_of_this_engine_and_of_trying(
    shelf: Shelf,
) -> None:
    class Lost(ImmediateDevice):
        def wait(self, mark: float) -> None:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    trial = Trial()
    shelf.device, alive = Lost(), shelf.device

    def fail() -> None:
        shelf.device.wait(0.0)

    trial.meanwhile = fail
    with pytest.raises(RuntimeError, match="illegal memory access"):
        shelf.choose(trial)
    shelf.device = alive
    assert "an engine ended while it was tried" in shelf.choose(trial).notes[0]


def test_without_memory_for_a_trial_it_is_held_another_time(shelf: Shelf) -> None:
    trial = Trial()

    def fail() -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    trial.meanwhile = fail
    chosen = shelf.choose(trial)
    assert chosen.chunks is None and "no memory is left" in chosen.notes[0]
    trial.meanwhile = lambda: None
    assert shelf.choose(trial).chunks is not None


def test_what_is_not_there_is_not_spoken_of_and_what_cannot_be_is(shelf: Shelf) -> None:
    trial = Trial()
    shelf.library = None
    assert shelf.choose(trial) == Chosen() and not shelf.cache.exists()
    shelf.library = "flash-attn 3.0 is installed, but has no kernels for this GPU (capability 12.0)"
    chosen = shelf.choose(trial)
    assert chosen.notes == [f"{shelf.library}: our own kernels compute"] and chosen.name == "triton"
    assert trial.compared == 0
