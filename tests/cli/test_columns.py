"""Do columns stand below each other in cells, and is nothing lost where a row needs several lines?"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from homebox.cli import columns
from homebox.cli.audit import row
from homebox.client.sanitise import clean
from tests.cli.test_audit import LINES

WORDS = st.text(st.sampled_from("ab é日本😀שcd\u0301"), min_size=1, max_size=12).filter(str.strip)


def test_widths_are_those_of_a_terminal() -> None:
    assert [columns.cells(text) for text in ("abc", "日本", "e\u0301", "😀", "a\u200db")] == [3, 4, 1, 2, 2]


@given(st.lists(st.tuples(WORDS, WORDS, WORDS), min_size=1))
def test_every_column_begins_at_the_same_cell(rows: list[tuple[str, str, str]]) -> None:
    rows = [tuple(" ".join(cell.split()) for cell in each) for each in rows]  # type: ignore[misc]
    starts = set()
    for line, (first, second, last) in zip(columns.table(rows), rows, strict=True):
        assert line.endswith(last) and line.startswith(first) and second in line
        starts.add(columns.cells(line[: len(line) - len(last)]))
    assert len(starts) == 1


@given(WORDS, st.integers(2, 12))
def test_what_is_cut_fits_and_says_so(text: str, room: int) -> None:
    short = columns.cut(text, room)
    assert columns.cells(short) <= room
    assert short == " ".join(text.split()) or short.endswith(columns.CUT)


@given(st.lists(WORDS, max_size=30), st.integers(40, 100))
def test_a_row_of_several_lines_fits_and_holds_every_part_in_order(parts: list[str], within: int) -> None:
    parts = [each.replace(" ", "") or "x" for each in parts]
    lines = columns.flow("head  ", parts, within, 6, between=" ")
    assert " ".join(line[6:] for line in lines).split() == parts
    assert all(columns.cells(line) <= within for line in lines)


def test_the_record_fits_into_80_columns() -> None:
    for line in LINES:
        head, *rest = map(clean, row(line))
        assert all(len(each) <= 80 for each in columns.flow(f"{head}  ", rest, 80, len(head) + 2))
