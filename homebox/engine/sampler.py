"""Which token comes next?

Row by row the same arithmetic whatever else is in the batch: logit bias and penalties, then temperature, top-k, top-p,
min-p, in the field's usual order. Noise is counter-based: one uniform number from (seed, position), then the inverse of
the cumulative distribution, so that a seed gives the same text alone and among others, before and after a crash.
Logprobs are of the model's own distribution, before all of that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch

from homebox.engine.plan import Admission, Outcome
from homebox.wire.frames import Sampling, TokenLogprob, TopToken

NOT_A_NUMBER = "the model produced a value that is not a number"
_MASK = (1 << 64) - 1
_FIRST_LOOK = 256


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) from a counter: two rounds of the SplitMix64 finaliser (Steele et al. 2014)."""
    x = seed & _MASK
    for value in (0, position):
        x = (x + value * 0xD1B54A32D192ED03 + 0x9E3779B97F4A7C15) & _MASK
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
        x ^= x >> 31
    return (x >> 11) / (1 << 53)


class SlotState:
    """What choosing needs to remember about the sequence in one slot. Penalties cost the same at any length: `seen`
    holds each token of prompt and output once and grows by one, `output` counts the output's."""

    def __init__(self, admission: Admission) -> None:
        s = self.sampling = admission.sampling
        self.made = len(admission.output)
        self.output: Counter[int] = Counter()
        self.seen: torch.Tensor | None = None
        if s.presence_penalty or s.frequency_penalty:
            self.output = Counter(admission.output)
        if s.repetition_penalty != 1.0:
            self.seen = torch.tensor(sorted({*admission.prompt, *admission.output}))

    def add(self, token: int) -> None:
        self.made += 1
        if self.sampling.presence_penalty or self.sampling.frequency_penalty:
            self.output[token] += 1
        if self.seen is not None and not bool((self.seen == token).any()):
            self.seen = torch.cat((self.seen, torch.tensor([token])))


def choose(logits: torch.Tensor, states: Sequence[SlotState], positions: Sequence[int]) -> list[Outcome]:
    """One outcome a row of `logits`, `[rows, vocab]` fp32, which is used up. `positions`: of the token to choose,
    in its sequence. A row with a NaN, or with nothing left to choose from, is an error of that row alone."""
    broken = torch.isnan(logits).any(dim=-1).tolist()
    logprobs = _logprobs_wanted(logits, states)
    for row, state in enumerate(states):
        _adjust(logits[row], state)
    tokens = logits.argmax(dim=-1).tolist()
    highest = logits.amax(dim=-1).tolist()
    outcomes = []
    for row, state in enumerate(states):
        if broken[row]:
            outcomes.append(Outcome(error=NOT_A_NUMBER))
            continue
        if highest[row] == float("-inf"):
            outcomes.append(Outcome(error="no token is left to choose from: every one is ruled out"))
            continue
        token = tokens[row]
        if state.sampling.temperature > 0:
            token = _draw(logits[row], state.sampling, uniform(state.sampling.seed, positions[row]))
        logprob = None
        if row in logprobs:
            logprob = score(logprobs[row], token, state.sampling.logprobs or 0)
        outcomes.append(Outcome(token=token, logprob=logprob))
    return outcomes


def score(logprobs: torch.Tensor, token: int, top: int) -> TokenLogprob:
    """The logprob of `token` in one distribution, `[vocab]`, and the `top` most likely ones."""
    best = torch.topk(logprobs, top) if top else None
    pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True) if best else ()
    return TokenLogprob(float(logprobs[token]), tuple(TopToken(t, p) for t, p in pairs))


def _logprobs_wanted(logits: torch.Tensor, states: Sequence[SlotState]) -> dict[int, torch.Tensor]:
    rows = [row for row, state in enumerate(states) if state.sampling.logprobs is not None]
    return {row: torch.log_softmax(logits[row], dim=-1) for row in rows}


def _adjust(logits: torch.Tensor, state: SlotState) -> None:
    """Logit bias, penalties and the minimum length, in place on one row."""
    s = state.sampling
    if state.seen is not None:
        # Keskar et al. 2019 (CTRL): divide positive logits, multiply negative ones, once for each token seen.
        seen = state.seen.to(logits.device)
        values = logits[seen]
        logits[seen] = torch.where(values > 0, values / s.repetition_penalty, values * s.repetition_penalty)
    if state.output:
        tokens = torch.tensor(list(state.output.keys()), device=logits.device)
        counts = torch.tensor(list(state.output.values()), dtype=logits.dtype, device=logits.device)
        logits[tokens] -= s.presence_penalty + s.frequency_penalty * counts
    if s.logit_bias:
        tokens = torch.tensor(list(s.logit_bias.keys()), device=logits.device)
        logits[tokens] += torch.tensor(list(s.logit_bias.values()), dtype=logits.dtype, device=logits.device)
    if state.made < s.min_tokens and s.end_tokens and not s.ignore_eos:
        logits[torch.tensor(s.end_tokens, device=logits.device)] = float("-inf")


def _likeliest(scaled: torch.Tensor, s: Sampling) -> tuple[torch.Tensor, torch.Tensor]:
    """The tokens that top-k and top-p can leave, likeliest first: probabilities (over the top-k where there is one,
    else over all) and ids. Sorting a whole vocabulary costs more than a decode step, so a few are taken first and all
    only where these do not reach top-p."""
    if s.top_k:
        values, order = torch.topk(scaled, min(s.top_k, len(scaled)))
        return torch.softmax(values, dim=-1), order
    total = torch.logsumexp(scaled, dim=-1)
    values, order = torch.topk(scaled, min(_FIRST_LOOK, len(scaled)))
    if float(torch.exp(values - total).sum()) < s.top_p:
        values, order = torch.sort(scaled, descending=True, stable=True)
    return torch.exp(values - total), order


def _draw(logits: torch.Tensor, s: Sampling, u: float) -> int:
    """Sample one row. Sums are in fp64, so that the place where `u` falls does not hang on rounding."""
    scaled = logits.double() / s.temperature
    order: torch.Tensor | None = None
    if s.top_k or s.top_p < 1.0:
        probabilities, order = _likeliest(scaled, s)
        if s.top_p < 1.0:
            # The smallest set whose probability reaches top_p: a token stays while those before it do not.
            before = probabilities.cumsum(dim=-1) - probabilities
            probabilities = probabilities.masked_fill(before >= s.top_p, 0.0)
    else:
        probabilities = torch.softmax(scaled, dim=-1)
    if s.min_p > 0.0:
        probabilities = probabilities.masked_fill(probabilities < s.min_p * probabilities.max(), 0.0)
    cumulative = probabilities.cumsum(dim=-1)
    target = u * float(cumulative[-1])
    index = int(torch.searchsorted(cumulative, target, right=True))
    if index >= len(cumulative) or float(probabilities[index]) == 0.0:
        index = int(torch.nonzero(probabilities)[-1])
    return int(order[index]) if order is not None else index
