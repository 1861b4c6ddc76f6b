"""How are token ids kept in a file, and which ids did the engine see when it wrote an answer?

Ids are little-endian 32-bit numbers. An answer's prompt begins, as a rule, with the prompt and the words of the answer
before it, so only the rest is kept, with a note where the beginning lies.
"""

from __future__ import annotations

import array
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


def pack(ids: Iterable[int]) -> bytes:
    numbers = array.array("I", ids)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()


def unpack(data: bytes | None) -> list[int]:
    numbers = array.array("I")
    numbers.frombytes((data or b"")[: len(data or b"") // 4 * 4])
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tolist()


@dataclass(frozen=True)
class Ids:
    """Of one answer: its prompt as it is kept, and its own tokens."""

    base: str | None
    kept: int
    rest: Sequence[int]
    own: Sequence[int]


def computed(answers: Mapping[str, Ids], last: str) -> tuple[list[int], list[int]]:
    """Prompt and answer of `last` as the engine had them; nothing if a link of the chain is missing."""
    chain: list[Ids] = []
    at: str | None = last
    while at is not None:
        ids = answers.get(at)
        if ids is None or len(chain) > len(answers):
            return [], []
        chain.append(ids)
        at = ids.base
    prompt: list[int] = []
    whole: list[int] = []
    for ids in reversed(chain):
        if ids.kept > len(whole):
            return [], []
        prompt = [*whole[: ids.kept], *ids.rest]
        whole = [*prompt, *ids.own]
    return prompt, list(chain[0].own)


def common(first: Sequence[int], second: Sequence[int]) -> int:
    """How many ids both begin with."""
    return next(
        (i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b),
        min(len(first), len(second)),
    )
