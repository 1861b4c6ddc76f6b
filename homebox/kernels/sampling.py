"""What must a kernel offer that chooses tokens, and what is the right answer?

A kernel sees rows of logits and the figures of each row's wish, never a request. `TorchSampling` is the reference and
what runs where nothing better is there; another kernel gives the same tokens, to the last one.

That can be promised because the arithmetic leaves no room. The weight of a token is e^((logit - highest) / temperature) in
fixed point, `ONE` for the likeliest: an exponential of our own out of fp64 sums and products, which round alike on
every machine, and sums of whole numbers, which are the same in any order. What fixed point cannot hold is less than
e^-31 of the likeliest token: over a vocabulary of 262,144 that is at most 1 part in 10^7 of one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch

BITS = 44
ONE = 1 << BITS  # 2^19 of these are a sum that an int64 holds
_MASK = (1 << 64) - 1
_LEAST = -40.0  # e^_LEAST * ONE rounds to nothing
MOST_INVERSE = 1e300  # 1 / temperature stays a number
_LARGEST = torch.finfo(torch.float32).max
_LOG2E = 1.4426950408889634
_LN2_HIGH = 0.6931471803691238  # 32 bits, so that its product with a small whole number is exact
_LN2_LOW = 1.9082149292705877e-10
_FIRST_LOOK = 256


class Draw(NamedTuple):
    """One row to draw from: top-k, then top-p, then min-p, over the distribution at `temperature`, above 0.
    `seed` is any number of 64 bits, `position` that of the token to choose in its sequence."""

    row: int
    seed: int
    position: int
    temperature: float
    top_k: int = 0  # 0 is off
    top_p: float = 1.0
    min_p: float = 0.0


class Peaks(NamedTuple):
    """Of each row the largest logit, NaN where the row holds one, and the first token that has it."""

    tokens: list[int]
    highest: list[float]


WISHES = 6  # numbers of a wish
BROKEN, EMPTY = 1, 2  # why no token can be chosen from a row: it holds a NaN, or nothing above -inf


def wish(draw: Draw, vocab: int) -> list[float]:
    """What a kernel on a GPU reads of a draw, `[WISHES]` fp64: temperature, its inverse, the uniform number, top-k, top-p, and
    min-p in fixed point. Temperature 0 asks for the likeliest."""
    return [
        draw.temperature,
        min(1.0 / draw.temperature, MOST_INVERSE) if draw.temperature else 0.0,
        uniform(draw.seed, draw.position),
        min(draw.top_k, vocab),
        draw.top_p,
        math.ceil(min(draw.min_p, 1.0) * ONE),
    ]


class SamplingKernel(Protocol):
    """`logits` is `[rows, vocab]` fp32 and stays as it is."""

    name: str

    def peaks(self, logits: torch.Tensor) -> Peaks: ...

    def masses(self, logits: torch.Tensor) -> list[int]:
        """Of each row the sum of all weights at temperature 1: e^(logit - highest) * ONE / mass is a probability."""
        ...

    def likeliest(self, logits: torch.Tensor, count: int) -> list[list[int]]:
        """Of each row the `count` likeliest tokens in their order, of equal ones the first."""
        ...

    def draw(self, logits: torch.Tensor, draws: Sequence[Draw]) -> list[int]:
        """A token for each draw. Its row holds no NaN, and something above -inf."""
        ...


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) from a counter: two rounds of the SplitMix64 finaliser (Steele et al. 2014)."""
    x = seed & _MASK
    for value in (0, position):
        x = (x + value * 0xD1B54A32D192ED03 + 0x9E3779B97F4A7C15) & _MASK
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
        x ^= x >> 31
    return (x >> 11) / (1 << 53)


def weights(logits: torch.Tensor, highest: float, temperature: float) -> torch.Tensor:
    """Fixed-point weights, int64, of any logits of a row whose largest is `highest`. The exponential is Cody and
    Waite's reduction and the Taylor series, each step rounded once: native/sampling.cpp does the same steps."""
    x = (logits.double() - min(highest, _LARGEST)) * min(1.0 / temperature, MOST_INVERSE)
    x = torch.where(x > _LEAST, x, _LEAST).clamp_(max=0.0)
    k = torch.round(x * _LOG2E)
    r = x.sub_(k * _LN2_HIGH).sub_(k * _LN2_LOW)
    e = torch.full_like(r, 1.0 / math.factorial(11))
    for n in range(10, -1, -1):
        e.mul_(r).add_(1.0 / math.factorial(n))
    power = ((k.to(torch.int64) + (1023 + BITS)) << 52).view(torch.float64)
    return torch.round(e.mul_(power)).to(torch.int64)


class TorchSampling:
    """Row by row, in plain torch."""

    name = "torch"

    def peaks(self, logits: torch.Tensor) -> Peaks:
        highest = logits.amax(dim=-1)
        return Peaks(logits.argmax(dim=-1).tolist(), highest.tolist())

    def masses(self, logits: torch.Tensor) -> list[int]:
        return [int(weights(row, float(row.amax()), 1.0).sum()) for row in logits]

    def likeliest(self, logits: torch.Tensor, count: int) -> list[list[int]]:
        return [_descending(row, count)[:count].tolist() for row in logits]

    def draw(self, logits: torch.Tensor, draws: Sequence[Draw]) -> list[int]:
        return [_draw(logits[draw.row], draw) for draw in draws]


REFERENCE = TorchSampling()


def _descending(row: torch.Tensor, least: int) -> torch.Tensor:
    """The likeliest tokens in their order, at least so many: sorting a whole vocabulary costs more than a decode step.
    `topk` alone would leave the order of equal ones open."""
    if least >= len(row):
        return torch.sort(row, descending=True, stable=True).indices
    found = (row >= torch.topk(row, least).values[-1]).nonzero().flatten()
    return found[torch.sort(row[found], descending=True, stable=True).indices]


def _draw(row: torch.Tensor, draw: Draw) -> int:
    highest = float(row.amax())
    tokens: torch.Tensor | None = None
    if draw.top_k or draw.top_p < 1.0:
        kept, tokens = _ranked(row, highest, draw)
    else:
        kept = weights(row, highest, draw.temperature)
    kept = kept.masked_fill(kept < math.ceil(min(draw.min_p, 1.0) * ONE), 0)
    cumulative = kept.cumsum(dim=-1)
    total = int(cumulative[-1])
    target = min(int(uniform(draw.seed, draw.position) * total), total - 1)
    place = int(torch.searchsorted(cumulative, target, right=True))
    return place if tokens is None else int(tokens[place])


def _ranked(row: torch.Tensor, highest: float, draw: Draw) -> tuple[torch.Tensor, torch.Tensor]:
    """The weights that top-k and top-p leave, likeliest first, and their tokens."""
    if draw.top_k:
        tokens = _descending(row, draw.top_k)[: draw.top_k]
        ranked = weights(row[tokens], highest, draw.temperature)
        total = int(ranked.sum())
    else:
        total = int(weights(row, highest, draw.temperature).sum())
        tokens = _descending(row, _FIRST_LOOK)
        ranked = weights(row[tokens], highest, draw.temperature)
    if draw.top_p >= 1.0:
        return ranked, tokens
    # The smallest set whose probability reaches top_p: a token stays while those before it do not.
    enough = max(1, math.ceil(draw.top_p * total))
    if int(ranked.sum()) < min(enough, total):
        tokens = _descending(row, len(row))
        ranked = weights(row[tokens], highest, draw.temperature)
    before = ranked.cumsum(dim=-1) - ranked
    return ranked.masked_fill(before >= enough, 0), tokens
