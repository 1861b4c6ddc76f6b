"""How long may the next step take?

Who reads an answer gets a token a step, so whatever a step does for somebody else's prompt slows the readers down.

- A long document is a burden for a long time: beside readers it may stretch a step to STRETCH times what decoding takes
  alone, never more. The less of it fits into a step the more it costs, since each chunk reads the document from its
  beginning and a matmul is good at many rows: a chunk is cut by layers rather than by tokens (`SLICES`).
- A crowd of short questions is soon over, and waiting for the first word is worse than reading slowly for a moment. So
  short questions may fill a step up to CROWD_MS, ten tokens a second, which is more than anybody reads, until they have
  taken BURST_MS more than a document would have got. That is earned back while fewer wait. Without it a step's time is
  divided by heads: one who waits counts as much as one who reads.
"""

from __future__ import annotations

from typing import NamedTuple

STRETCH = 1.85  # people notice 2, and some steps take a little longer than was thought
SLICES = 6  # a chunk of a document beside readers passes through the layers in about so many steps
DECODE_MS = 20.0  # below this nobody notices anything
CROWD_MS = 100.0
BURST_MS = 2000.0
PREFILL_MS = 250.0  # where nobody reads: so long may somebody wait who comes now


class Allowed(NamedTuple):
    """Milliseconds of a step with a chunk of any prompt in it, and with one of a short question."""

    any: float
    short: float


class Pace:
    def __init__(self, decode_ms: float = DECODE_MS, prefill_ms: float = PREFILL_MS) -> None:
        self._decode_ms = decode_ms
        self._prefill_ms = prefill_ms
        self._credit_ms = BURST_MS

    def is_short(self, alone_ms: float) -> bool:
        """Whether a prompt is a short question that would take so long by itself."""
        return alone_ms <= self._prefill_ms

    def allow(self, decode_ms: float, readers: int, short: int) -> Allowed:
        """For a step that decodes for `readers` in `decode_ms`, while `short` short questions wait."""
        if not readers:
            return Allowed(self._prefill_ms, self._prefill_ms)
        limit = self._document_ms(decode_ms)
        by_heads = max(decode_ms, self._decode_ms) * (1 + short / readers)
        crowd = CROWD_MS if self._credit_ms > 0 else min(by_heads, CROWD_MS)
        return Allowed(limit, max(limit, crowd))

    def spare_ms(self, decode_ms: float) -> float:
        """What else may be in a step that decodes in `decode_ms`, so that it is not noticed."""
        return self._document_ms(decode_ms) - decode_ms

    def took(self, decode_ms: float, readers: int, step_ms: float) -> None:
        """A step that decodes for `readers` in `decode_ms` was planned to take `step_ms`."""
        if readers:
            spare = self._document_ms(decode_ms) - step_ms
            # Debts end at one step: a crowd of an hour must not be paid for by the next ones for an hour.
            self._credit_ms = max(-CROWD_MS, min(BURST_MS, self._credit_ms + spare))
        else:
            self._credit_ms = BURST_MS

    def _document_ms(self, decode_ms: float) -> float:
        return max(STRETCH * decode_ms, self._decode_ms)
