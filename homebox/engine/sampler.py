"""Which token comes next?

Row by row the same arithmetic whatever else is in the batch: logit bias and penalties here, then temperature, top-k,
top-p, min-p in a sampling kernel (kernels/sampling.py), in the field's usual order. Noise is counter-based: one uniform
number from (seed, position), then the inverse of the cumulative distribution, so that a seed gives the same text alone
and among others, before and after a crash. Logprobs are of the model's own distribution, before all of that.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

import torch

from homebox.engine.plan import Admission, Outcome
from homebox.kernels.sampling import ONE, REFERENCE, Draw, SamplingKernel
from homebox.wire.frames import TokenLogprob, TopToken

NOT_A_NUMBER = "the model produced a value that is not a number"
NOTHING_LEFT = "no token is left to choose from: every one is ruled out"


class _Tally:
    """Tokens, each once, and how often each came. Growing by one costs the same at any length."""

    def __init__(self, tokens: Iterable[int]) -> None:
        counted = Counter(tokens)
        self._places = {token: place for place, token in enumerate(counted)}
        self._tokens = torch.tensor([*counted], dtype=torch.int64)
        self._counts = torch.tensor([*counted.values()], dtype=torch.float32)

    def add(self, token: int) -> None:
        place = self._places.setdefault(token, len(self._places))
        if place == len(self._tokens):
            self._tokens = torch.cat((self._tokens, self._tokens.new_zeros(place + 16)))
            self._counts = torch.cat((self._counts, self._counts.new_zeros(place + 16)))
        self._tokens[place] = token
        self._counts[place] += 1

    def __len__(self) -> int:
        return len(self._places)

    @property
    def tokens(self) -> torch.Tensor:
        return self._tokens[: len(self)]

    @property
    def counts(self) -> torch.Tensor:
        return self._counts[: len(self)]


class SlotState:
    """What choosing needs to remember about the sequence in one slot: `seen` holds what came in prompt and output,
    `output` what came in the output, both only where a penalty asks for them."""

    def __init__(self, admission: Admission) -> None:
        s = self.sampling = admission.sampling
        self.made = len(admission.output)
        self.output: _Tally | None = None
        self.seen: _Tally | None = None
        if s.presence_penalty or s.frequency_penalty:
            self.output = _Tally(admission.output)
        if s.repetition_penalty != 1.0:
            self.seen = _Tally((*admission.prompt, *admission.output))
        self._least = s.min_tokens if s.end_tokens and not s.ignore_eos else 0

    def add(self, token: int) -> None:
        self.made += 1
        for tally in (self.output, self.seen):
            if tally is not None:
                tally.add(token)

    def adjust(self, logits: torch.Tensor, row: int) -> None:
        """Logit bias, penalties and the minimum length, in place on one row of `[rows, vocab]`."""
        s = self.sampling
        if self.seen:
            # Keskar et al. 2019 (CTRL): divide positive logits, multiply negative ones, once for each token seen.
            tokens = self.seen.tokens.to(logits.device)
            values = logits[row, tokens]
            logits[row, tokens] = torch.where(
                values > 0, values / s.repetition_penalty, values * s.repetition_penalty
            )
        if self.output:
            penalties = s.presence_penalty + s.frequency_penalty * self.output.counts
            logits[row, self.output.tokens.to(logits.device)] -= penalties.to(logits.device)
        if s.logit_bias:
            tokens = torch.tensor([*s.logit_bias], device=logits.device)
            logits[row, tokens] += torch.tensor(
                [*s.logit_bias.values()], dtype=logits.dtype, device=logits.device
            )
        if self.made < self._least:
            logits[row, torch.tensor(s.end_tokens, device=logits.device)] = float("-inf")


def choose(
    logits: torch.Tensor,
    states: Sequence[SlotState],
    positions: Sequence[int],
    kernel: SamplingKernel = REFERENCE,
) -> list[Outcome]:
    """One outcome a row of `logits`, `[rows, vocab]` fp32, which is used up. `positions`: of the token to choose,
    in its sequence. A row with a NaN, or with nothing left to choose from, is an error of that row alone."""
    scored = [row for row, state in enumerate(states) if state.sampling.logprobs is not None]
    own = logits[scored]  # a copy, from before the adjustments
    for row, state in enumerate(states):
        state.adjust(logits, row)
    tokens, highest = kernel.peaks(logits)
    errors = [_error(value) for value in highest]
    draws = [
        _wish(row, state, positions[row])
        for row, state in enumerate(states)
        if state.sampling.temperature > 0 and not errors[row]
    ]
    if draws:
        for draw, token in zip(draws, kernel.draw(logits, draws), strict=True):
            tokens[draw.row] = token
    tops = [states[row].sampling.logprobs or 0 for row in scored]
    found = scores(own, [tokens[row] for row in scored], tops, kernel) if scored else []
    logprobs = dict(zip(scored, found, strict=True))
    return [
        Outcome(error=error) if error else Outcome(token=token, logprob=logprobs.get(row))
        for row, (token, error) in enumerate(zip(tokens, errors, strict=True))
    ]


def scores(
    logits: torch.Tensor, tokens: Sequence[int], tops: Sequence[int], kernel: SamplingKernel = REFERENCE
) -> list[TokenLogprob]:
    """Of each row of `[rows, vocab]` the logprob of its token, and its `tops[row]` most likely ones."""
    most = max(tops)
    best = kernel.likeliest(logits, most) if most else [[]] * len(tokens)
    found = []
    for row, mass, highest in zip(
        range(len(tokens)), kernel.masses(logits), kernel.peaks(logits).highest, strict=True
    ):
        if not mass:
            found.append(TokenLogprob(math.nan))
            continue
        total = highest + math.log(mass / ONE)
        asked = [tokens[row], *best[row][: tops[row]]]
        own, *others = [value - total for value in logits[row, torch.tensor(asked)].tolist()]
        found.append(TokenLogprob(own, tuple(map(TopToken, asked[1:], others))))
    return found


def _error(highest: float) -> str:
    if math.isnan(highest):
        return NOT_A_NUMBER
    return NOTHING_LEFT if highest == -math.inf else ""


def _wish(row: int, state: SlotState, position: int) -> Draw:
    s = state.sampling
    return Draw(row, s.seed, position, s.temperature, s.top_k, s.top_p, s.min_p)
