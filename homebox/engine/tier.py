"""Which contents of blocks are kept in the host's memory, and what has to be moved there and back?

The second tier of the prefix cache. Where the pool would forget a cached block because somebody needs it, the content is
kept in a slot of bounded host memory, under the same key and the same content id; whoever asks for it later gets a block
and a move back, and computes nothing. A conversation that rests and a sequence that was preempted are the same to it.

    free     blank
    kept     its content is known: a hit until it is overwritten, in the order of `_kept`. What has gone back to the device
             is overwritten first, for nothing is lost with it, but until then evicting the block again moves nothing;
             then what was evicted longest ago
    wanted   read by a move of the plan that is being made: not overwritten before that is launched

Moves are noted while a plan is made and taken by it (`take`): all that go out, then all that come in, then the step
computes. So a block may be given away, and even get a content that went out for its sake, in one and the same plan.

As on the device children go before their parents: a block is evicted after its children, so it is kept later than they.
No tensors here: `BlockPool` asks, `kernels.host` copies.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from homebox.engine.contents import ROOT, Contents, Key


class Moves(NamedTuple):
    """Pairs of (block, slot), each block and each slot at most once in `out`, and in `into`."""

    out: list[tuple[int, int]]
    into: list[tuple[int, int]]


class Tier:
    """The host slots of one group; of none, everything is forgotten as if there were no tier."""

    def __init__(self, slots: int, hash_key: Callable[[Key], int] = hash) -> None:
        self.total = slots
        self.contents = Contents(slots, hash_key)
        self._free = list(range(slots - 1, -1, -1))
        self._kept: OrderedDict[int, None] = OrderedDict()
        self._wanted: dict[int, None] = {}  # parents before children
        self._out: dict[int, int] = {}  # slot: from which block
        self._into: dict[int, int] = {}  # block: from which slot

    @property
    def used(self) -> int:
        return self.total - len(self._free)

    @property
    def noted(self) -> int:
        """Moves that wait for a plan to be launched."""
        return len(self._out) + len(self._into)

    def find(self, key: Key) -> int | None:
        """The slot with exactly this content. Pure."""
        return self.contents.find(key) if self.used else None

    def touch(self, slot: int) -> None:
        """Somebody goes on from this content, without a need to read it."""
        if slot in self._kept:
            self._kept.move_to_end(slot)

    def keep(self, block: int, key: Key, content: int) -> None:
        """The block is about to be given to somebody else: keep its content if there is room."""
        if (slot := self._into.pop(block, None)) is not None:
            del self._wanted[slot]  # it never went back
            self._kept[slot] = None
        elif (slot := self.find(key)) is not None:
            self._kept.move_to_end(slot)
        elif (slot := self._room()) is not None:
            self.contents.put(slot, key, content)
            self._kept[slot] = None
            self._out[slot] = block

    def _room(self) -> int | None:
        """A blank slot; None where each is wanted in this plan."""
        if self._free:
            return self._free.pop()
        if not self._kept:
            return None
        slot, _ = self._kept.popitem(last=False)
        self.contents.forget(slot)
        return slot

    def want(self, slot: int) -> None:
        """It will be moved back in this plan: to be said before anything is evicted for that."""
        del self._kept[slot]
        self._wanted[slot] = None

    def move_back(self, slot: int, block: int) -> None:
        self._into[block] = slot

    def take(self) -> Moves:
        """What the plan that is launched now has to move."""
        moves = Moves([(block, slot) for slot, block in self._out.items()], list(self._into.items()))
        for slot in self._wanted:
            self._kept[slot] = None
            self._kept.move_to_end(slot, last=False)
        self._out, self._into, self._wanted = {}, {}, {}
        return moves

    def check(self, blocks: Contents, *, parents_outlive: bool) -> None:
        """Every slot is in one place, every move explained, and a content is the same thing here and in the `blocks` of the
        pool. Raises AssertionError."""
        free, kept, wanted = set(self._free), set(self._kept), set(self._wanted)
        assert len(free) == len(self._free) and not (free & kept or free & wanted or kept & wanted)
        assert len(free) + len(kept) + len(wanted) == self.total, "a slot is nowhere, or the tier has grown"
        self.contents.check()
        here, there = self.contents.held(), blocks.held()
        assert len(here) == len(kept) + len(wanted), "a slot in use is blank"
        assert all(here[key] == there[key] for key in here.keys() & there.keys()), "two names for a content"
        assert len(set(here.values()) | set(there.values())) == len(here.keys() | there.keys())
        assert set(self._into.values()) == wanted and len(self._into) == len(wanted)
        assert all(blocks.id[block] == self.contents.id[slot] for block, slot in self._into.items())
        assert self._out.keys() <= kept | wanted and len(set(self._out.values())) == len(self._out)
        if parents_outlive:
            alive = {ROOT, *here.values(), *there.values()}
            assert all(parent in alive for parent, _, _ in here), (
                "a child outlived its parent in the host tier"
            )
