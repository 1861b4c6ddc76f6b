"""What do the people of a benchmark ask, and how long may each answer be? Seeded: the same load for every server.

Prompts are English words, since not every server takes token ids; how many words make so many tokens is measured on the
server (`fitted`). Each begins with a tag of its own that no run before had, so that nothing of it is in a prefix cache.
"""

from __future__ import annotations

import random
import time
from typing import Literal

Lengths = Literal["fixed", "mixed"]
SHORTEST = 16
_COMMON = (
    "the of and a to in is was he for it with as his on be at by had not are but from or have an they which one you "
    "were all her she there would their we him been has when who will no more if out so up said what its about than "
    "into them can only other time new some could these two may first then do any like my now over such our man me "
    "even most made after also did many off before must well back through years much where your way down should "
    "because long each just state those people too mr how little good world make very year still see own work day "
    "get here old life both between being under three never know same last another while us might great go come "
    "since against right came take used himself few house use during without again place around however home small "
    "found thought went say part once high general upon school every water river garden bread table window morning"
)
_WORDS = _COMMON.split()


class Prompts:
    """The prompts of one run. `words` of them make about as many tokens as were asked for."""

    def __init__(self, seed: int, words: int = 50) -> None:
        self._seed, self.words = seed, words
        self._run = f"{time.time_ns() // 1000 % 36**4:06d}"
        self._made = 0

    def next(self) -> str:
        self._made += 1
        rng = random.Random(f"{self._seed} {self._made}")
        body = " ".join(rng.choice(_WORDS) for _ in range(max(1, self.words)))
        return f"{self._run} {self._made}: {body}"

    def fitted(self, wanted_tokens: int, measured_tokens: int) -> None:
        """So many tokens did a prompt of `words` make; from now on they make about `wanted_tokens`."""
        self.words = max(1, round(self.words * wanted_tokens / measured_tokens))


def lengths(kind: Lengths, count: int, longest: int, seed: int) -> list[int]:
    """Tokens of each answer: all `longest`, or anything from 16 (or less, if `longest` is) to it."""
    if kind == "fixed":
        return [longest] * count
    rng = random.Random(seed)
    return [rng.randint(min(SHORTEST, longest), longest) for _ in range(count)]
