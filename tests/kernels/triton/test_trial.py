"""The trial of a library sees whatever it does wrong, and times it as it would be used."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from homebox.bench.gpu import library
from homebox.bench.gpu.__main__ import _line, _show
from homebox.bench.gpu.measures import Row
from homebox.kernels import flash
from homebox.kernels.chunks import Chunks, Segments
from homebox.kernels.device import Device, ImmediateDevice, Work
from homebox.kernels.flash import FlashAttention
from homebox.kernels.triton import trial
from homebox.kernels.triton.checks import Check
from homebox.kernels.triton.trial import BOUND, Shapes, error, medians, milliseconds
from tests.engine.fake_device import FakeDevice
from tests.kernels.triton.flash_stand_in import with_kvcache

ROWS = ((0, 1), (21, 70))
SHAPES = Shapes(4, 2, 64, ((None, 3),), 16, torch.bfloat16, slots=4)
RIGHT = FlashAttention("right", with_kvcache())


class But:
    """Right, but for what it makes of its arguments."""

    name = "wrong"

    def __init__(self, **changed: Any) -> None:
        self.changed = changed

    def __call__(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, segments: Segments, window: int | None, scale: float,
        softcap: float,
    ) -> torch.Tensor:  # fmt: skip
        asked = {"window": window, "scale": scale, "softcap": softcap} | self.changed
        return RIGHT(q, k, v, segments, **asked)


def off(chunks: Chunks, shapes: Shapes = SHAPES) -> float:
    return error(chunks, shapes, ImmediateDevice(), ROWS)


def test_who_is_right_is_off_by_no_more_than_rounding() -> None:
    assert off(RIGHT) < BOUND[torch.bfloat16]


WINDOWED = SHAPES._replace(layers=((40, 1),))


@pytest.mark.parametrize(
    ("chunks", "shapes"),
    [
        (But(window=41), WINDOWED),
        (But(window=39), WINDOWED),
        (But(window=None), WINDOWED),
        (But(softcap=2.2), SHAPES._replace(softcap=2.0)),
        (But(scale=0.13), SHAPES),
        (FlashAttention("a little beside", with_kvcache(off=0.1)), SHAPES),
        (FlashAttention("not a number", with_kvcache(off=float("nan"))), SHAPES),
    ],
    ids=[
        "a key too many",
        "a key too few",
        "no window",
        "another cap",
        "another scale",
        "beside",
        "not a number",
    ],
)
def test_who_is_wrong_is_off_by_more(chunks: Chunks, shapes: Shapes) -> None:
    assert off(chunks, shapes) > BOUND[torch.bfloat16]


def test_it_takes_what_all_layers_take_with_and_without_context() -> None:
    asked = []

    def clock(device: Device, works: list[Work]) -> list[float]:
        asked.append(len(works))
        return [2.0, 1.0]

    shapes = SHAPES._replace(layers=((None, 3), (32, 2)))
    assert milliseconds(RIGHT, shapes, ImmediateDevice(), ((0, 20), (30, 20)), clock) == (20.0, 10.0)
    assert asked == [2, 2, 2, 2]


def test_both_are_timed_as_captured_steps_in_turns() -> None:
    device = FakeDevice()
    x = torch.zeros(2)
    times = itertools.cycle((4.0, 8.0))
    device.elapsed_ms = lambda begin, end: next(times)  # type: ignore[method-assign]
    took = medians(device, [lambda: x[:1].add_(1), lambda: x[1:].add_(1)])  # type: ignore[list-item, func-returns-value]
    assert device.captures == 2 and took == [1.0, 2.0] and device.replays == 2 * 9 * 4


def test_gpu_check_says_whether_it_is_right_and_how_long_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flash, "find", lambda capability: flash.Library("flash-attn 3", "", lambda: RIGHT))
    monkeypatch.setattr(library, "SHAPES", [("small", 4, 2, 64, None)])
    monkeypatch.setattr(trial, "CHECKED", ROWS)
    monkeypatch.setattr(trial, "medians", lambda device, works: [2.0, 1.0])
    check, row = library.chunks(torch.device("cpu"))
    assert isinstance(check, Check) and check.passed
    assert isinstance(row, Row) and (row.value, row.bound) == (
        2.0,
        4.0,
    )  # a chunk alone, and behind a context


def test_gpu_check_says_so_where_none_is_installed(capsys: pytest.CaptureFixture[str]) -> None:
    assert _show("chunks", [_line(each) for each in library.chunks(torch.device("cpu"))], "") == 0
    assert "flash-attn is not installed" in capsys.readouterr().out
