"""Which sizes does a kernel have on which GPU? A table, not a search at start: a first answer does not wait for one.

Measured by scripts/gpu_check where a GPU was at hand; what was not measured has what is right for its memory and
registers. A capability that is not listed gets the row of `OTHERS`, never that of a smaller number: consumer chips are not
small data-centre chips.
"""

from __future__ import annotations

from typing import NamedTuple

import torch


class Attend(NamedTuple):
    """`few`, `many`: queries times heads of an item, `large_many` where heads are large; `keys`: of a turn; `split`: keys of a split; `programs`: of a launch,
    over all key heads, about four for each multiprocessor."""

    few: int
    many: int
    keys: int
    split: int
    few_warps: int
    many_warps: int
    stages: int
    programs: int
    large_many: int = 64

    def of(self, head_dim: int) -> Attend:
        """For heads of this size: of large ones fewer keys at a time, for the sake of registers and shared memory."""
        if head_dim <= 128:
            return self
        return self._replace(keys=self.keys // 2, many=min(self.many, self.large_many))


class Product(NamedTuple):
    """`outputs` of a program, `groups` of 32 inputs of a turn, `programs` that keep the whole GPU at it."""

    outputs: int
    groups: int
    warps: int
    stages: int
    programs: int


class Multiply(NamedTuple):
    """A quantised weight: one row meets its codes, up to `most_rows` its values on tensor cores, more its values unpacked
    in memory."""

    meet: Product
    multiply: Product
    most_rows: int


class Tuning(NamedTuple):
    attend: Attend
    multiply: Multiply


# About four programs of four warps on each of a GPU's 60 to 130 multiprocessors: 40 KB of weights on their way to each.
OTHERS = Tuning(
    Attend(16, 64, 64, 512, 4, 8, 2, 320), Multiply(Product(32, 16, 4, 1, 320), Product(32, 4, 4, 3, 320), 64)
)
_DATA_CENTRE = Tuning(
    Attend(16, 64, 64, 512, 4, 8, 3, 528), Multiply(Product(32, 16, 4, 1, 528), Product(32, 8, 4, 4, 528), 64)
)
# Of AMD's consumer chips: no copies past the registers, so fewer stages, and fewer codes at a time. Of heads of 256 with keys in 8
# bits it spilled 248 bytes of registers a thread with 32 queries times heads.
AMD = Tuning(
    Attend(16, 32, 32, 512, 8, 8, 1, 320, 16),
    Multiply(Product(32, 8, 4, 1, 320), Product(32, 2, 4, 1, 320), 64),
)

_BY_CAPABILITY: dict[tuple[int, int], Tuning] = {(8, 0): _DATA_CENTRE, (9, 0): _DATA_CENTRE}


def tuning(device: torch.device) -> Tuning:
    """For this device; the CPU, where Triton's interpreter runs, is that of `OTHERS` with programs one after the other."""
    if device.type != "cuda":
        return OTHERS._replace(attend=OTHERS.attend._replace(programs=2))
    if torch.version.hip:
        return AMD
    return of(torch.cuda.get_device_capability(device))


def of(capability: tuple[int, int]) -> Tuning:
    return _BY_CAPABILITY.get(capability, OTHERS)


def padded(size: int) -> int:
    """The power of two that a dimension is padded to; a dot wants 16 at least."""
    return max(16, 1 << (size - 1).bit_length())
