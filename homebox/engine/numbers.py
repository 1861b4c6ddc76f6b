"""What does a device read of a plan?

All numbers of a step lie in one buffer, so that one copy brings them to the device: first what has a fixed place for
each `Key` (a captured step finds it there again), then what is as long as it happens to be, the items of the
attention's work and the changes of block tables. `Fields` says what there is; the same table makes the views that the
CPU fills and those that the device reads.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from itertools import chain
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from homebox.engine.plan import Row, TableChange
from homebox.kernels.sampling import WISHES, Draw, wish
from homebox.wire.frames import Sampling

ALIGNED = 16
ITEM = 5  # numbers of an item

T = TypeVar("T")
_GREEDY = wish(Draw(0, 0, 0, 0.0), 1)

Ints = npt.NDArray[np.int32]


class Key(NamedTuple):
    """What a captured step was captured for. `many`: items of many queries may be there; `adjusted`: some row's logits have
    penalties or biases; `scored`: some row's logits are asked for."""

    tokens: int
    rows: int
    groups: int
    many: bool = False
    adjusted: bool = False
    scored: bool = False


def _of(dtype: str, *shape: str | int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape}


@dataclass(frozen=True)
class Fields(Generic[T]):
    """A row that is only padding chooses from token 0 and keeps what it chose in the spare slot."""

    ids: T = field(metadata=_of("int32", "tokens"))  # -1: the token that its slot made last
    pool: T = field(metadata=_of("int64", "tokens"))  # that slot
    positions: T = field(metadata=_of("int32", "tokens"))
    places: T = field(metadata=_of("int64", "groups", "tokens"))  # in the cache; -1: nowhere
    spans: T = field(metadata=_of("int32", "groups", 3, 2))  # which of the items are whose
    rows: T = field(metadata=_of("int32", "rows", 4))  # slot, first position, first token, tokens
    last: T = field(metadata=_of("int64", "rows"))  # the token behind which one is chosen
    into: T = field(metadata=_of("int64", "rows"))  # the slot that keeps it
    wishes: T = field(metadata=_of("float64", "rows", WISHES))  # kernels/sampling.py
    adjusted: T = field(
        metadata=_of("int64", "rows")
    )  # the slot whose penalties and biases hold; the spare one has none
    repetition: T = field(metadata=_of("float32", "rows"))
    presence: T = field(metadata=_of("float32", "rows"))
    frequency: T = field(metadata=_of("float32", "rows"))
    quiet: T = field(metadata=_of("int32", "rows"))  # 1: it may not end yet


class Layout:
    """Where the fields of a key lie, in bytes."""

    def __init__(self, key: Key) -> None:
        self._sections: list[tuple[str, str, tuple[int, ...], int]] = []
        sizes = key._asdict()
        end = 0
        for each in fields(Fields):
            shape = tuple(sizes[n] if isinstance(n, str) else n for n in each.metadata["shape"])
            dtype = each.metadata["dtype"]
            self._sections.append((each.name, dtype, shape, end))
            end += aligned(math.prod(shape) * np.dtype(dtype).itemsize)
        self.size = end

    def on_host(self, buffer: npt.NDArray[np.uint8]) -> Fields[npt.NDArray[Any]]:
        return Fields(
            **{name: part.view(dtype).reshape(shape) for name, dtype, shape, part in self._cut(buffer)}
        )

    def on_device(self, buffer: torch.Tensor) -> Fields[torch.Tensor]:
        return Fields(
            **{
                name: part.view(getattr(torch, dtype)).view(shape)
                for name, dtype, shape, part in self._cut(buffer)
            }
        )

    def _cut(self, buffer: Any) -> list[tuple[str, str, tuple[int, ...], Any]]:
        found = []
        for name, dtype, shape, start in self._sections:
            size = math.prod(shape) * np.dtype(dtype).itemsize
            found.append((name, dtype, shape, buffer[start : start + size]))
        return found


layout = functools.cache(Layout)


class Changes(NamedTuple):
    """Cells of the block tables, `at` counted through all groups, slots and entries, and what they hold now."""

    at: npt.NDArray[np.int64]
    blocks: npt.NDArray[np.int64]


def changed(changes: Sequence[TableChange], slots: int, width: int) -> Changes:
    if not changes:
        return Changes(np.empty(0, np.int64), np.empty(0, np.int64))
    firsts = [(change.group * slots + change.slot) * width + change.index for change in changes]
    at = np.concatenate([np.arange(a, a + len(c.blocks)) for a, c in zip(firsts, changes, strict=True)])
    blocks = np.fromiter(chain.from_iterable(change.blocks for change in changes), np.int64)
    return Changes(at.astype(np.int64), blocks)


def fill_rows(out: Fields[npt.NDArray[Any]], rows: Sequence[Row], spare: int) -> tuple[Ints, Ints]:
    """The rows side by side. Returns their starts and counts."""
    count = len(rows)
    starts = np.fromiter((row.start for row in rows), np.int32, count)
    counts = np.fromiter((row.count for row in rows), np.int32, count)
    slots = np.fromiter((row.slot for row in rows), np.int32, count)
    ends = np.cumsum(counts, dtype=np.int32)
    tokens = int(ends[-1])
    out.ids[:tokens] = list(chain.from_iterable(row.tokens or (-1,) for row in rows))
    out.pool[:tokens] = np.repeat(slots, counts)
    out.positions[:tokens] = np.repeat(starts - (ends - counts), counts) + np.arange(tokens)
    out.ids[tokens:], out.pool[tokens:], out.positions[tokens:] = 0, spare, 0
    out.rows[:count] = np.stack((slots, starts, ends - counts, counts), axis=1)
    out.rows[count:] = 0
    out.last[:count] = ends - 1
    out.last[count:] = 0
    out.into[:count] = [row.slot if row.sample else spare for row in rows]
    out.into[count:] = spare
    return starts, counts


def fill_places(
    out: Fields[npt.NDArray[Any]], tables: npt.NDArray[np.int32], tokens: int, block_size: int
) -> None:
    """Where the tokens' keys and values go; `tables`: `[groups, slots, width]`."""
    slots, positions = out.pool[:tokens], out.positions[:tokens]
    for places, table in zip(out.places, tables, strict=True):
        blocks = table[slots, positions // block_size].astype(np.int64)
        places[:tokens] = blocks * block_size + positions % block_size
        places[tokens:] = -1


def fill_wishes(
    out: Fields[npt.NDArray[Any]], rows: Sequence[Row], sampling: Callable[[Row], Sampling], vocab: int
) -> None:
    """How each row's token is chosen; a row that chooses none, and padding, is greedy."""
    out.wishes[:] = _GREEDY
    for i, row in enumerate(rows):
        if row.sample and (s := sampling(row)).temperature > 0:
            draw = Draw(i, s.seed, row.start + row.count, s.temperature, s.top_k, s.top_p, s.min_p)
            out.wishes[i] = wish(draw, vocab)


def aligned(size: int) -> int:
    return -(-size // ALIGNED) * ALIGNED
