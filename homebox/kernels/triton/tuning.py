"""Which sizes does a kernel have on which GPU? A table, not a search at start: a first answer does not wait for one.

Measured by scripts/gpu_check where a GPU was at hand; what was not measured has what is right for its memory and
registers. A capability that is not listed gets the row of `OTHERS`, never that of a smaller number: consumer chips are not
small data-centre chips.
"""

from __future__ import annotations

from typing import NamedTuple

import torch


class Attend(NamedTuple):
    """`few`, `many`: queries times heads of an item; `keys`: of a turn; `split`: keys of a split; `programs`: of a launch,
    over all key heads, about four for each multiprocessor."""

    few: int
    many: int
    keys: int
    split: int
    few_warps: int
    many_warps: int
    stages: int
    programs: int


class Multiply(NamedTuple):
    """Rows and outputs of a program, groups of 32 inputs of a turn; up to `most_rows` it beats unpacking the weight."""

    rows: int
    outputs: int
    groups: int
    warps: int
    stages: int
    most_rows: int


class Tuning(NamedTuple):
    attend: Attend
    multiply: Multiply


OTHERS = Tuning(Attend(16, 64, 64, 512, 4, 4, 2, 256), Multiply(16, 32, 4, 4, 3, 64))

_BY_CAPABILITY: dict[tuple[int, int], Tuning] = {
    (8, 0): Tuning(Attend(16, 128, 64, 512, 4, 8, 3, 432), Multiply(16, 32, 8, 4, 4, 64)),
    (9, 0): Tuning(Attend(16, 128, 64, 512, 4, 8, 3, 528), Multiply(16, 32, 8, 4, 4, 64)),
}


def tuning(device: torch.device) -> Tuning:
    """For this device; the CPU, where Triton's interpreter runs, is that of `OTHERS` with programs one after the other."""
    if device.type != "cuda":
        return OTHERS._replace(attend=OTHERS.attend._replace(programs=2))
    if torch.version.hip:
        return OTHERS
    return of(torch.cuda.get_device_capability(device))


def of(capability: tuple[int, int]) -> Tuning:
    return _BY_CAPABILITY.get(capability, OTHERS)


def padded(size: int) -> int:
    """The power of two that a dimension is padded to; a dot wants 16 at least."""
    return max(16, 1 << (size - 1).bit_length())
