"""The rows of a plan as arrays: each token where it belongs, whatever the steps before left in the buffers."""

from __future__ import annotations

import random

from homebox.engine.batch import Batch
from homebox.engine.plan import Row, TableChange

SLOTS = 12


def test_each_token_has_its_id_and_position_in_steps_of_any_size_and_order() -> None:
    rng = random.Random(3)
    batch = Batch(SLOTS, groups=2, width=9)
    for most in (1, 5, 700, 1, 90, 3000):
        slots = rng.sample(range(SLOTS), rng.randrange(1, SLOTS + 1))
        ids: list[int] = []
        positions: list[int] = []
        rows = []
        for slot in slots:
            start, count = rng.randrange(5000), rng.randrange(1, most + 1)
            tokens = tuple(rng.randrange(10**5) for _ in range(count))
            ids += tokens
            if count == 1 and rng.random() < 0.5:  # not read back yet: the slot knows it
                batch.last_tokens[slot], tokens = tokens[0], ()
            positions += range(start, start + count)
            rows.append(Row(f"r{slot}", slot, 1, slot, start, count, tokens, sample=True))
        shape = batch.fill(rows)
        assert batch.ids.tolist() == ids and batch.positions.tolist() == positions
        assert shape.slots.tolist() == slots
        assert shape.starts.tolist() == [row.start for row in rows]
        assert shape.counts.tolist() == [row.count for row in rows]


def test_a_table_changes_from_an_entry_on_and_for_nobody_else() -> None:
    batch = Batch(SLOTS, groups=2, width=9)
    batch.change([TableChange(3, 1, 0, (7, 8, 9)), TableChange(4, 1, 0, (5,)), TableChange(3, 0, 0, (2,))])
    batch.change([TableChange(3, 1, 2, (11, 12))])
    assert batch.tables[1][3, :4].tolist() == [7, 8, 11, 12]
    assert batch.tables[1][4, :2].tolist() == [5, 0] and batch.tables[0][3, :2].tolist() == [2, 0]
    assert [table[:1].tolist() for table in batch.table(3)] == [[2], [7]]
