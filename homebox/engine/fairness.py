"""Whose turn is it?

Service is owed to people, not to requests: one virtual token counter per person (Sheng et al., "Fairness in Serving
Large Language Models", arXiv 2401.00588). An input token costs 1, an output token 2, a cached prefix nothing, divided
by the person's weight; the person with the smallest counter is served next. Somebody who returns is lifted to the
smallest counter among the active, so idle time is not credit; that floor is kept while nobody is active.
"""

from __future__ import annotations

INPUT_COST = 1.0
OUTPUT_COST = 2.0
_REMEMBERED = 1024  # persons without a request that may keep a counter above the floor


class Ledger:
    def __init__(self) -> None:
        self.service: dict[str, float] = {}
        self._active: dict[str, int] = {}
        self._floor = 0.0

    def floor(self) -> float:
        """The smallest counter among active persons, or the last such one."""
        if self._active:
            self._floor = min(self.service[person] for person in self._active)
        return self._floor

    def arrive(self, person: str) -> None:
        """A request of this person exists from now on."""
        if person not in self._active:
            self.service[person] = max(self.service.get(person, 0.0), self.floor())
        self._active[person] = self._active.get(person, 0) + 1

    def leave(self, person: str) -> None:
        """A request of this person has ended."""
        self.floor()
        self._active[person] -= 1
        if not self._active[person]:
            del self._active[person]
        if len(self.service) > _REMEMBERED:
            # A counter at or below the floor says nothing: its owner would be lifted anyway.
            floor = self.floor()
            self.service = {p: s for p, s in self.service.items() if p in self._active or s > floor}

    def charge(self, person: str, cost: float, weight: float) -> None:
        self.service[person] += cost / weight
