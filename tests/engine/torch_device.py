"""The plain decoder and sampler behind the device runner. They look at their numbers, so their steps cannot be captured."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from homebox.engine.numbers import ITEM, Fields, Ints
from homebox.engine.runner import Runner
from homebox.kernels.attention import BatchShape, Placed, StepWork
from homebox.kernels.reference import ReferenceAttention
from homebox.kernels.sampling import ONE, REFERENCE
from homebox.model.decoder import Decoder


class TorchDeviceModel:
    def __init__(self, decoder: Decoder, attention: ReferenceAttention) -> None:
        self.spec, self.windows = decoder.spec, attention.windows
        self.block_size = attention.cache.block_size
        self._decoder, self._attention = decoder, attention

    @staticmethod
    def of(runner: Runner) -> TorchDeviceModel:
        decoder, attention = runner._decoder, runner._attention
        assert isinstance(decoder, Decoder) and isinstance(attention, ReferenceAttention)
        return TorchDeviceModel(decoder, attention)

    def work(self, starts: Ints, counts: Ints) -> StepWork:
        return StepWork(
            np.zeros((1, ITEM), np.int32), np.zeros((len(self.windows), 3, 2), np.int32), False, 0
        )

    def make_room(self, work: StepWork) -> bool:
        return False

    def states(self, ids: torch.Tensor, positions: torch.Tensor, placed: Placed, many: bool) -> torch.Tensor:
        rows = placed.rows[placed.rows[:, 3] > 0]
        slots, starts, _, counts = (column.contiguous() for column in rows.unbind(dim=1))
        tokens = int(counts.sum())
        self._attention.plan(BatchShape(slots, starts, counts, tuple(t.contiguous() for t in placed.tables)))
        hidden = torch.full((len(ids), self.spec.hidden), float("nan"))
        hidden[:tokens] = self._decoder.forward(ids[:tokens], positions[:tokens], self._attention)
        return hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._decoder.logits(hidden)

    def clear(self, places: Sequence[torch.Tensor]) -> None:
        self._attention.cache.clear_places(places)


class ReferenceChooser:
    """The reference, one row after the other."""

    def choose(
        self, logits: torch.Tensor, wishes: Fields[torch.Tensor], tokens: torch.Tensor, highest: torch.Tensor
    ) -> None:
        found = REFERENCE.peaks(logits)
        tokens.copy_(torch.tensor(found.tokens))
        highest.copy_(torch.tensor(found.highest))
        for row in range(len(logits)):
            if float(wishes.inverse[row]) and float("-inf") < found.highest[row] < float("inf"):
                tokens[row] = _drawn(logits[row], found.highest[row], wishes, row)


def _drawn(logits: torch.Tensor, highest: float, wishes: Fields[torch.Tensor], row: int) -> int:
    """As `_draw` in kernels/sampling.py, from a uniform number instead of a seed."""
    from homebox.kernels.sampling import weights

    top_k, top_p = int(wishes.top_k[row]), float(wishes.top_p[row])
    kept = weights(logits, highest, 1.0 / float(wishes.inverse[row]))
    order = torch.sort(logits, descending=True, stable=True).indices
    ranked = kept[order]
    if top_k:
        ranked[top_k:] = 0
    if top_p < 1.0:
        enough = max(1, int(np.ceil(top_p * int(ranked.sum()))))
        ranked = ranked.masked_fill(ranked.cumsum(0) - ranked >= enough, 0)
    ranked = ranked.masked_fill(ranked < int(wishes.least[row]), 0)
    if not int(wishes.ranked[row]):
        order, ranked = torch.arange(len(logits)), torch.zeros_like(kept).index_copy_(0, order, ranked)
    cumulative = ranked.cumsum(0)
    total = int(cumulative[-1])
    target = min(int(float(wishes.drawn[row]) * total), total - 1)
    assert total <= len(logits) * ONE
    return int(order[int(torch.searchsorted(cumulative, target, right=True))])
