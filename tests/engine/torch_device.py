"""The plain decoder and sampler behind the device runner. They look at their numbers, so their steps cannot be captured."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from homebox.engine.numbers import ITEM, Ints
from homebox.engine.runner import Runner
from homebox.kernels.attention import BatchShape, Placed, StepWork
from homebox.kernels.reference import ReferenceAttention
from homebox.kernels.sampling import BROKEN, EMPTY, REFERENCE, weights
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
        self, logits: torch.Tensor, wishes: torch.Tensor, tokens: torch.Tensor, flags: torch.Tensor
    ) -> None:
        found = REFERENCE.peaks(logits)
        tokens.copy_(torch.tensor(found.tokens))
        for row, highest in enumerate(found.highest):
            flags[row] = BROKEN if math.isnan(highest) else EMPTY if highest == -math.inf else 0
            if float(wishes[row, 0]) and not flags[row]:
                tokens[row] = _drawn(logits[row], highest, wishes[row].tolist())


def _drawn(logits: torch.Tensor, highest: float, wish: list[float]) -> int:
    """As `_draw` in kernels/sampling.py, from a uniform number instead of a seed."""
    temperature, _, drawn, top_k, top_p, least = wish
    order = torch.sort(logits, descending=True, stable=True).indices
    ranked = weights(logits, highest, temperature)[order]
    if top_k:
        ranked[int(top_k) :] = 0
    if top_p < 1.0:
        enough = max(1, math.ceil(top_p * int(ranked.sum())))
        ranked = ranked.masked_fill(ranked.cumsum(0) - ranked >= enough, 0)
    ranked = ranked.masked_fill(ranked < int(least), 0)
    if not top_k and top_p >= 1.0:
        ranked = torch.zeros_like(ranked).index_copy_(0, order, ranked)
        order = torch.arange(len(logits))
    cumulative = ranked.cumsum(0)
    total = int(cumulative[-1])
    target = min(int(drawn * total), total - 1)
    return int(order[int(torch.searchsorted(cumulative, target, right=True))])
