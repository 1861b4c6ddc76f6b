"""Who waits, and who is next?

Strict between classes, except that a waiting background request gets every sixteenth admission; inside a class the
person with the smallest service counter; inside a person first come, first served, where a preempted sequence keeps
its old place. Finding the next costs time in persons, not in requests: the line may be long.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections import deque
from collections.abc import Iterator, Mapping

from homebox.engine.fairness import INPUT_COST, OUTPUT_COST, Ledger
from homebox.engine.request import CLASS_RANK, Sequence
from homebox.wire.frames import Place

BACKGROUND_EVERY = 16
NAMES_AHEAD = 8  # a place names at most so many persons before it
EXPECTED_OUTPUT_TOKENS = 256  # for places: what a request will probably cost


class WaitingRoom:
    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._lines: dict[str, dict[str, deque[Sequence]]] = {klass: {} for klass in CLASS_RANK}
        self._count = 0
        self._admissions = 0

    def __len__(self) -> int:
        return self._count

    def join(self, seq: Sequence) -> None:
        """At the end of the person's line, or back at the old place after a preemption."""
        line = self._lines[seq.submit.klass].setdefault(seq.person, deque())
        if line and line[-1].serial > seq.serial:
            insort(line, seq, key=lambda s: s.serial)
        else:
            line.append(seq)
        self._count += 1

    def remove(self, seq: Sequence) -> None:
        line = self._lines[seq.submit.klass][seq.person]
        if line[0] is seq:
            line.popleft()
        else:
            line.remove(seq)
        if not line:
            del self._lines[seq.submit.klass][seq.person]
        self._count -= 1

    def admitted(self) -> None:
        """Somebody was let in: the background's turn comes nearer."""
        self._admissions += 1

    def candidates(self, running: Mapping[str, int]) -> Iterator[Sequence]:
        """The first of each person's line, in the order in which they should be admitted. `running`: sequences a
        person has now; equally served, the one with fewer is next (a newcomer starts level with the others)."""
        order = sorted(CLASS_RANK, key=CLASS_RANK.__getitem__)
        if (self._admissions + 1) % BACKGROUND_EVERY == 0 and self._lines["background"]:
            order = ["background", "live", "normal"]
        for klass in order:
            heads = [line[0] for line in self._lines[klass].values()]
            yield from sorted(
                heads, key=lambda s: (self._ledger.service[s.person], running.get(s.person, 0), s.serial)
            )

    def __iter__(self) -> Iterator[Sequence]:
        for persons in self._lines.values():
            for line in persons.values():
                yield from line

    def places(self, running: Mapping[str, int]) -> list[Place]:
        """Everybody's place, by playing the order forward with what each request will probably cost."""
        ahead: list[str] = []
        out: list[Place] = []
        for klass in sorted(CLASS_RANK, key=CLASS_RANK.__getitem__):
            lines = self._lines[klass]
            heap = [
                (self._ledger.service[p], running.get(p, 0), line[0].serial, p, 0)
                for p, line in lines.items()
            ]
            heapq.heapify(heap)
            while heap:
                service, held, _, person, i = heapq.heappop(heap)
                seq = lines[person][i]
                out.append(Place(seq.id, len(out) + 1, tuple(ahead[:NAMES_AHEAD])))
                if person not in ahead:
                    ahead.append(person)
                if i + 1 < len(lines[person]):
                    output = min(seq.submit.sampling.max_tokens, EXPECTED_OUTPUT_TOKENS)
                    cost = seq.prompt_tokens * INPUT_COST + output * OUTPUT_COST
                    service += cost / seq.submit.weight
                    heapq.heappush(heap, (service, held + 1, lines[person][i + 1].serial, person, i + 1))
        return out
