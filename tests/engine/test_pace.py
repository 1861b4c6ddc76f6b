"""A long document never slows readers beyond 1.85 times; a crowd of short questions does not wait for its first words."""

from __future__ import annotations

from itertools import pairwise

import pytest

from homebox.engine.pace import BURST_MS, CROWD_MS, PREFILL_MS, STRETCH, Pace
from tests.engine.test_fairness import SimulatedHouse, outstanding

STEP_MS, TOKEN_MS = 8.0, 0.5


class WatchedHouse(SimulatedHouse):
    """Keeps when each step ended."""

    def __init__(self) -> None:
        super().__init__(slots=32, step_ms=STEP_MS, token_ms=TOKEN_MS)
        self.ends: list[float] = []

    def play(self, seconds: float, each_step: object = None) -> None:
        def note() -> None:
            if not self.ends or self.ends[-1] != self.now:
                self.ends.append(self.now)
            if callable(each_step):
                each_step()

        super().play(seconds, note)

    def gaps_ms(self, since: float) -> list[float]:
        return [1e3 * (b - a) for a, b in pairwise(t for t in self.ends if t >= since)]


@pytest.mark.parametrize("readers", [1, 4, 20])
def test_a_long_document_stretches_no_step_beyond_its_bound(readers: int) -> None:
    house = WatchedHouse()
    for i in range(readers):
        house.ask(f"reader{i}", 10, 4000)
    house.play(5)
    asked = house.now
    name = house.ask("student", 6000, 5)
    house.play(15)
    assert house.first_token[name] > asked
    alone = STEP_MS + TOKEN_MS * readers
    until = house.gaps_ms(asked)[1:]
    assert max(until) <= max(STRETCH * alone, 20.0) * 1.02


def test_a_crowd_beside_one_reader_is_read_almost_as_fast_as_alone() -> None:
    house = WatchedHouse()
    house.ask("reader", 10, 4000)
    house.play(5)
    asked = house.now
    names = [house.ask(f"guest{i}", 100, 50) for i in range(30)]
    house.play(10)
    waits = sorted(1e3 * (house.first_token[name] - asked) for name in names)
    alone = 30 * 100 * TOKEN_MS
    assert waits[-1] <= 1.5 * alone, "the last of them"
    assert waits[15] <= 0.8 * alone, "half of them"
    assert max(house.gaps_ms(asked)) <= CROWD_MS * 1.02, "the reader still gets ten tokens a second"


def test_a_crowd_that_never_ends_leaves_readers_their_share() -> None:
    house = WatchedHouse()
    for i in range(8):
        house.ask(f"reader{i}", 10, 8000)
    house.play(5)

    def keep_asking() -> None:
        for _ in range(6 - outstanding(house, "hog")):
            house.ask("hog", 150, 1)

    house.play(10, keep_asking)
    since = house.now
    house.play(10, keep_asking)
    gaps = house.gaps_ms(since)
    by_heads = 20.0 * (1 + 6 / 8)
    assert sum(gaps) / len(gaps) <= by_heads * 1.1


def test_the_end_of_a_document_is_no_short_question() -> None:
    house = WatchedHouse()
    house.ask("reader", 10, 4000)
    house.play(5)
    asked = house.now
    name = house.ask("student", 2000, 5)
    while name not in house.first_token:
        house.play(0.01)
    assert max(house.gaps_ms(asked)[1:]) <= 20.0 * 1.02


def test_credit_is_spent_by_crowds_and_earned_back_by_quiet_steps() -> None:
    pace = Pace()
    assert pace.allow(10.0, 1, 5).short == CROWD_MS
    for _ in range(int(BURST_MS / (CROWD_MS - 20.0)) + 1):
        pace.took(10.0, 1, CROWD_MS)
    assert pace.allow(10.0, 10, 5).short == pytest.approx(30.0)
    assert pace.allow(10.0, 1, 50).short == CROWD_MS
    for _ in range(100):
        pace.took(10.0, 1, 10.0)
    assert pace.allow(10.0, 10, 5).short == CROWD_MS
    assert pace.allow(10.0, 10, 5).any == 20.0
    assert pace.allow(10.0, 0, 5) == (PREFILL_MS, PREFILL_MS)


def test_a_crowd_of_an_hour_is_not_held_against_the_next_one() -> None:
    pace = Pace()
    for _ in range(36_000):
        pace.took(10.0, 1, CROWD_MS)
    assert pace.allow(10.0, 10, 5).short == pytest.approx(30.0)
    for _ in range(int(CROWD_MS / 10.0) + 1):  # a quiet step of 10 ms leaves 10 to spare
        pace.took(10.0, 1, 10.0)
    assert pace.allow(10.0, 10, 5).short == CROWD_MS
