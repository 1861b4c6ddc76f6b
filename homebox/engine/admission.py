"""Who of those who wait is let in next, and who gives way for it?

Admission looks at a prompt and a short horizon behind it, not at all that an answer may become, and leaves what those who
run were promised. Somebody with nothing running may take the place of the newest sequence of whoever holds most, a
higher class that of a background sequence. Here it is only decided; the scheduler does it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence as Seq
from typing import NamedTuple

from homebox.engine.blocks import KVSpace
from homebox.engine.queue import WaitingRoom
from homebox.engine.request import CLASS_RANK, Sequence, State

KEEP_TOKENS = 64  # a sequence does not give way to somebody who waits before it made so many tokens ...
KEEP_S = 1.0  # ... or ran for so long
BYPASSES = 32  # a request that waits for blocks may be overtaken by so many smaller ones


class Next(NamedTuple):
    """Who comes in, past whom, once these have given way. Where blocks come free only with a running step, it may not fit
    even then: then it is expected, and nobody is let in before it."""

    seq: Sequence
    overtaken: list[Sequence]
    giving_way: list[Sequence]


class AdmissionControl:
    def __init__(self, space: KVSpace, waiting: WaitingRoom, horizon_tokens: int) -> None:
        """`horizon_tokens`: so far beyond its prompt a sequence has to find room."""
        self.horizon_tokens = horizon_tokens
        self._space, self._waiting = space, waiting
        self._chance = 0  # counts what may let in somebody for whom blocks were short
        self._owed: int | None = None  # blocks promised to those who run, as long as those are the same
        self._expected: Sequence | None = None

    def look_again(self) -> None:
        """Blocks came free, or more is known that may be shared: who was short of blocks may fit now."""
        self._chance += 1

    def next(self, running: Seq[Sequence], slots: int, now: float) -> Next | None:
        """None where nobody can come in. `running`: by rank; `slots`: how many are free."""
        self._owed = None
        if self._expected is not None and self._expected.state is not State.WAITING:
            self._expected = None
        held = held_by(running)
        candidates = self._waiting.candidates(held) if self._expected is None else iter([self._expected])
        overtaken: list[Sequence] = []
        for seq in candidates:
            if seq.in_flight:  # preempted, and its running step may still bring a token
                continue
            if self._fits(seq, running, slots):
                return Next(seq, overtaken, [])
            if victims := self._who_gives_way(seq, running, held, now):
                return Next(seq, overtaken, victims)
            if seq.passed_over >= BYPASSES:
                return None
            if slots:
                overtaken.append(seq)
        return None

    def fits_now(self, seq: Sequence, running: Seq[Sequence], slots: int) -> bool:
        """After others gave way. If not, it is expected."""
        self._owed = None
        if self._fits(seq, running, slots):
            return True
        self._expected = seq
        return False

    def _fits(self, seq: Sequence, running: Seq[Sequence], slots: int) -> bool:
        """A slot is free, and blocks for the prompt and a short horizon beyond what others were promised."""
        if not slots:
            return False
        # With nobody else here it fits: what can never fit was refused at submit.
        if not running and self._space.launched == self._space.completed:
            return True
        if seq.short_at == self._chance:
            return False
        fits = self._short_of(seq, running) <= 0
        seq.short_at = -1 if fits else self._chance
        return fits

    def _short_of(self, seq: Sequence, running: Seq[Sequence]) -> int:
        """How many blocks are missing to let this sequence in."""
        need = self._space.blocks_for(min(seq.limit, len(seq.tokens) + self.horizon_tokens))
        need -= self._space.spared(seq, self._space.match(seq))
        if self._owed is None:
            self._owed = sum(self._promised(s) for s in running)
        return need - self._space.available() + self._owed

    def _promised(self, seq: Sequence) -> int:
        return self._space.missing(
            seq, min(seq.limit, max(len(seq.tokens), seq.prompt_tokens + self.horizon_tokens))
        )

    def _who_gives_way(
        self, seq: Sequence, running: Seq[Sequence], held: Counter[str], now: float
    ) -> list[Sequence]:
        """Somebody with nothing running waits while others hold everything: the newest sequences of whoever holds most give
        way; so do background sequences for a higher class. Nobody, where that does not let `seq` in."""
        if self._expected is not None or not running:
            return []
        may_replace = seq.person not in held and max(held.values()) > 1
        if not may_replace and running[-1].submit.klass != "background":
            return []
        rank = CLASS_RANK[seq.submit.klass]
        left = Counter(held)
        victims: list[Sequence] = []
        short = 0
        for other in reversed(running[1:]):
            if victims and short <= 0:
                break
            if other.made < KEEP_TOKENS and now - other.admitted_at < KEEP_S:
                continue
            other_rank = CLASS_RANK[other.submit.klass]
            yields = other.submit.klass == "background" and rank < other_rank
            hogs = may_replace and rank <= other_rank and left[other.person] > 1
            if yields or (hogs and left[other.person] == max(left.values())):
                if not victims:  # not before: this is asked in each step in which somebody waits
                    short = self._short_of(seq, running)
                victims.append(other)
                left[other.person] -= 1
                short -= self._space.held(other) + self._promised(other)
        return victims if short <= 0 else []


def held_by(running: Seq[Sequence]) -> Counter[str]:
    """Running sequences of each person."""
    return Counter(seq.person for seq in running)
