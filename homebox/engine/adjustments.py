"""Penalties, biases and the least length, where nobody reads tokens back: counted on the device, for each slot.

The arithmetic is that of `SlotState.adjust` (sampler.py), for all rows at once. The tables are made when the first
request asks for any of this, and hold `slots + 1` rows: the spare one belongs to rows that ask for nothing.
"""

from __future__ import annotations

import numpy as np
import torch

from homebox.engine.numbers import Fields
from homebox.engine.plan import Admission
from homebox.kernels.device import Device
from homebox.wire.frames import Sampling


def asks(sampling: Sampling) -> bool:
    """Whether these logits are to be adjusted."""
    return bool(
        sampling.repetition_penalty != 1.0
        or sampling.presence_penalty
        or sampling.frequency_penalty
        or sampling.logit_bias
        or least_tokens(sampling)
    )


def least_tokens(sampling: Sampling) -> int:
    return sampling.min_tokens if sampling.end_tokens and not sampling.ignore_eos else 0


class Adjustments:
    """`counts`: how often a token came in the output; `seen`: whether in prompt or output; `bias` is added; `ends` end an
    answer. All `[slots + 1, vocab]`."""

    def __init__(self, device: Device, slots: int, vocab: int) -> None:
        self._device = device
        shape = (slots + 1, vocab)
        self.counts = torch.zeros(shape, dtype=torch.int32, device=device.device)
        self.seen = torch.zeros(shape, dtype=torch.bool, device=device.device)
        self.bias = torch.zeros(shape, dtype=torch.float32, device=device.device)
        self.ends = torch.zeros(shape, dtype=torch.bool, device=device.device)

    @staticmethod
    def nbytes(slots: int, vocab: int) -> int:
        return (slots + 1) * vocab * 10

    def admit(self, admission: Admission) -> torch.Tensor:
        """A sequence takes a slot. Returns the host memory that the device reads: it is to stay until that is done."""
        s, slot = admission.sampling, admission.slot
        output, seen = list(admission.output), [*admission.prompt, *admission.output]
        bias = [*s.logit_bias.items()]
        parts: list[np.ndarray] = [
            np.array(numbers, np.int64)
            for numbers in (output, seen, [token for token, _ in bias], list(s.end_tokens))
        ]
        values = np.array([value for _, value in bias], np.float32)
        raw = b"".join(part.tobytes() for part in (*parts, values))
        host = self._device.host(len(raw))
        host.copy_(torch.frombuffer(bytearray(raw), dtype=torch.uint8)) if raw else None
        lengths = [len(part) for part in parts]
        there = self._device.make(
            lambda: torch.empty(len(raw), dtype=torch.uint8, device=self._device.device)
        )
        self._device.upload(host, there)

        def enter() -> None:
            *tokens, rest = there.split([8 * n for n in lengths] + [4 * len(values)])
            made, known, biased, ending = (part.view(torch.int64) for part in tokens)
            for table in (self.counts, self.seen, self.bias, self.ends):
                table[slot].zero_()
            self.counts[slot].index_add_(0, made, torch.ones_like(made, dtype=torch.int32))
            self.seen[slot].index_fill_(0, known, True)
            self.bias[slot].index_copy_(0, biased, rest.view(torch.float32))
            self.ends[slot].index_fill_(0, ending, True)

        self._device.run(enter)
        return host

    def apply(self, logits: torch.Tensor, wishes: Fields[torch.Tensor]) -> torch.Tensor:
        """Of `[rows, vocab]` fp32, adjusted."""
        slots = wishes.adjusted
        repetition = wishes.repetition[:, None]
        divided = torch.where(logits > 0, logits / repetition, logits * repetition)
        logits = torch.where(self.seen[slots], divided, logits)
        counts = self.counts[slots]
        penalties = wishes.presence[:, None] + wishes.frequency[:, None] * counts
        logits = torch.where(counts > 0, logits - penalties, logits)
        logits = logits + self.bias[slots]
        ruled_out = self.ends[slots] & (wishes.quiet[:, None] > 0)
        return logits.masked_fill(ruled_out, float("-inf"))

    def count(self, tokens: torch.Tensor, wishes: Fields[torch.Tensor]) -> None:
        """These tokens, `[rows]` int64, were chosen."""
        cells = wishes.adjusted * self.counts.shape[1] + tokens
        self.counts.view(-1).index_add_(0, cells, torch.ones_like(tokens, dtype=torch.int32))
        self.seen.view(-1).index_fill_(0, cells, True)
