"""How many prompt tokens fit into a step without freezing anybody?

A step is bounded by time, not tokens. Its time is modelled as

    step_ms = a + b * tokens + c * kv_tokens_read + d * query_key_pairs

with coefficients that are never negative, fitted online to what steps really took. The samples are kept by size (a
few of each power of two of tokens), so that an hour of plain decoding does not make the model forget what a chunk of
prefill costs. Plain Python on a few dozen samples; the scheduler asks, the loop tells.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

_KEPT_PER_SIZE = 12
_REFIT_EVERY = 8
_SUBSETS = [subset for size in (4, 3, 2, 1) for subset in itertools.combinations(range(4), size)]
_UNITS = (
    1.0,
    1e-2,
    1e-4,
    1e-6,
)  # scales of the four features, so that the normal equations stay well conditioned


_Sample = tuple[tuple[float, ...], float, float]  # scaled features, ms, weight


@dataclass(frozen=True)
class Load:
    """What a step has to do. Loads add up."""

    tokens: int = 0
    kv_tokens: int = 0
    query_key_pairs: int = 0

    def part(self, share: float) -> Load:
        """So much of it, in whole numbers."""
        return Load(
            round(self.tokens * share), round(self.kv_tokens * share), round(self.query_key_pairs * share)
        )

    def __add__(self, other: Load) -> Load:
        return Load(
            self.tokens + other.tokens,
            self.kv_tokens + other.kv_tokens,
            self.query_key_pairs + other.query_key_pairs,
        )


def chunk_load(start: int, count: int) -> Load:
    """The load of computing `count` tokens behind `start` cached ones."""
    return Load(count, start + count, count * start + count * (count + 1) // 2)


def _sample(load: Load, step_ms: float, weight: float = 1.0) -> _Sample:
    """Weighted by 1 / ms^2, so that a decode step of 10 ms counts as much as a chunk of 250 ms."""
    features = (1.0, load.tokens, load.kv_tokens, load.query_key_pairs)
    scaled = tuple(f * u for f, u in zip(features, _UNITS, strict=True))
    return scaled, step_ms, weight / (step_ms * step_ms)


_PRIOR_WEIGHT = 0.05
_PRIOR_LOADS = (
    chunk_load(0, 1),
    chunk_load(4000, 1),
    chunk_load(0, 64),
    chunk_load(4000, 64),
    chunk_load(0, 512),
)


class StepTime:
    """The model. It begins with the given coefficients (ms a unit) and keeps a faint belief in them, so that a few
    samples of one size cannot say anything about another."""

    def __init__(self, prior: tuple[float, float, float, float] = (5.0, 1.0, 1e-3, 2e-5)) -> None:
        self.coefficients = prior
        self._samples: dict[int, deque[_Sample]] = {}
        self._prior = [
            _sample(load, max(self.predict_ms(load), 1e-3), _PRIOR_WEIGHT) for load in _PRIOR_LOADS
        ]
        self._since_fit = 0

    def predict_ms(self, load: Load) -> float:
        a, b, c, d = self.coefficients
        return a + b * load.tokens + c * load.kv_tokens + d * load.query_key_pairs

    def observe(self, load: Load, step_ms: float) -> None:
        """A step with this load took so long."""
        kept = self._samples.setdefault(load.tokens.bit_length(), deque(maxlen=_KEPT_PER_SIZE))
        kept.append(_sample(load, max(step_ms, 1e-3)))
        self._since_fit += 1
        if self._since_fit >= _REFIT_EVERY or len(kept) <= 2:
            self._fit()
            self._since_fit = 0

    def fit_chunk(self, base: Load, start: int, most: int, limit_ms: float, share: float = 1.0) -> int:
        """The longest chunk, at most `most` tokens, that keeps a step of `base` plus this share of the chunk's load under
        `limit_ms`."""
        return self._most(most, base, lambda tokens: chunk_load(start, tokens).part(share), limit_ms)

    def fit_layers(self, base: Load, chunk: Load, layers: int, most: int, limit_ms: float) -> int:
        """Through how many of the `layers`, at most `most`, this chunk can go in a step of `base` under `limit_ms`."""
        return self._most(most, base, lambda some: chunk.part(some / layers), limit_ms)

    def _most(self, high: int, base: Load, load: Callable[[int], Load], limit_ms: float) -> int:
        low = 0
        while low < high:
            middle = (low + high + 1) // 2
            if self.predict_ms(base + load(middle)) <= limit_ms:
                low = middle
            else:
                high = middle - 1
        return low

    def _fit(self) -> None:
        """Non-negative least squares over relative errors: with four unknowns, trying every subset is exact. The largest
        come first: nearly always the first or second is seen to be the best, since nothing left out would help."""
        rows = [*self._prior, *(sample for kept in self._samples.values() for sample in kept)]
        gram, right, total = _normal_equations(rows)
        best: tuple[float, list[float]] | None = None
        for subset in _SUBSETS:
            solution = _solve(gram, right, subset)
            if solution is None or min(solution) < 0:
                continue
            slopes = [sum(g * s for g, s in zip(gram[i], solution, strict=True)) - right[i] for i in range(4)]
            error = total + sum(s * (g - r) for s, g, r in zip(solution, slopes, right, strict=True))
            if best is None or error < best[0]:
                best = error, solution
            if all(slopes[i] >= 0 for i in range(4) if i not in subset):
                break
        if best is not None:
            a, b, c, d = (s * u for s, u in zip(best[1], _UNITS, strict=True))
            self.coefficients = (a, b, c, d)


def _normal_equations(rows: list[_Sample]) -> tuple[list[list[float]], list[float], float]:
    """In one pass, half of the symmetric matrix: this is in the way of a step."""
    gram, right, total = [[0.0] * 4 for _ in range(4)], [0.0] * 4, 0.0
    for features, ms, weight in rows:
        for i, feature in enumerate(features):
            weighted, row = weight * feature, gram[i]
            for j in range(i + 1):
                row[j] += weighted * features[j]
            right[i] += weighted * ms
        total += weight * ms * ms
    for i in range(4):
        for j in range(i):
            gram[j][i] = gram[i][j]
    return gram, right, total


def _solve(gram: list[list[float]], right: list[float], subset: tuple[int, ...]) -> list[float] | None:
    """Solve the normal equations restricted to `subset`; None where they are singular. A trace of ridge keeps
    features that never varied from exploding."""
    n = len(subset)
    matrix = [[gram[i][j] * (1 + 1e-6 * (i == j)) for j in subset] + [right[i]] for i in subset]
    for column in range(n):
        pivot = max(range(column, n), key=lambda r: abs(matrix[r][column]))
        if abs(matrix[pivot][column]) < 1e-15:
            return None
        matrix[column], matrix[pivot] = matrix[pivot], matrix[column]
        for r in range(n):
            if r != column:
                factor = matrix[r][column] / matrix[column][column]
                matrix[r] = [x - factor * y for x, y in zip(matrix[r], matrix[column], strict=True)]
    solution = [0.0] * 4
    for row, i in enumerate(subset):
        solution[i] = matrix[row][n] / matrix[row][row]
    return solution
