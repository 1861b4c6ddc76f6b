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
from itertools import islice

from homebox.engine.fairness import INPUT_COST, OUTPUT_COST, Ledger
from homebox.engine.request import CLASS_RANK, Sequence, State
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

    def places(self, running: Mapping[str, int]) -> Iterator[Place]:
        """Everybody's place as it is now, by playing the order forward with what each request will probably cost. May be
        read while people come and go: who has left the line by then is passed over."""
        service = dict(self._ledger.service)
        lines = {
            klass: {person: list(line) for person, line in lines.items()}
            for klass, lines in self._lines.items()
        }
        return self._play(lines, service, dict(running))

    @staticmethod
    def _play(
        lines: Mapping[str, Mapping[str, list[Sequence]]],
        service: Mapping[str, float],
        running: Mapping[str, int],
    ) -> Iterator[Place]:
        position = 0
        ahead: dict[str, None] = {}
        for klass in sorted(CLASS_RANK, key=CLASS_RANK.__getitem__):
            heap = [
                (service[person], running.get(person, 0), line[0].serial, person, 0)
                for person, line in lines[klass].items()
            ]
            heapq.heapify(heap)
            while heap:
                served, held, _, person, i = heap[0]
                line = lines[klass][person]
                seq, position = line[i], position + 1
                if seq.state is State.WAITING:
                    yield Place(seq.id, position, tuple(islice(ahead, NAMES_AHEAD)))
                ahead.setdefault(person)
                if i + 1 < len(line):
                    output = min(seq.submit.sampling.max_tokens, EXPECTED_OUTPUT_TOKENS)
                    cost = seq.prompt_tokens * INPUT_COST + output * OUTPUT_COST
                    served += cost / seq.submit.weight
                    heapq.heapreplace(heap, (served, held + 1, line[i + 1].serial, person, i + 1))
                else:
                    heapq.heappop(heap)
