"""The past as a graph's columns: nothing is invented, nothing counts twice."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from homebox.client.lines import ASCII, UNICODE, graph, nice_top
from homebox.client.past import SPAN_S, Past
from homebox.wire.events import Device, Snapshot


def moment(at: float, out: float = 0.0, util: float | None = None) -> Snapshot:
    devices = (Device(kind="gpu", name="g", util_percent=util),)
    return Snapshot(at=at, version="1", uptime_s=at, engine="ready", tok_s_out=out, devices=devices)


def heard(*moments: Snapshot) -> Past:
    past = Past()
    for each in moments:
        past.add(each)
    return past


def test_the_newest_stands_at_the_right_and_what_is_older_than_the_span_is_gone() -> None:
    past = heard(*(moment(1000 + 2 * i, out=float(i)) for i in range(300)))
    series = past.series("out", 150)
    assert series == [float(i) for i in range(150, 300)]


def test_fewer_columns_are_means_of_their_time() -> None:
    past = heard(*(moment(1200 + 2 * i, out=float(i)) for i in range(150)))
    assert past.series("out", 50)[-2:] == [145.0, 148.0]


def test_a_past_that_is_told_again_counts_once() -> None:
    moments = [moment(1000 + 2 * i, out=float(i)) for i in range(10)]
    assert heard(*moments, *moments).series("out", 150) == heard(*moments).series("out", 150)


def test_what_is_unknown_is_a_gap_and_so_is_a_time_without_news() -> None:
    assert heard(moment(1000, util=None)).series("util", 10) == [None] * 10
    past = heard(moment(1000, out=5.0), moment(1100, out=7.0))
    series = past.series("out", 150)
    assert series[-1] == 7.0 and series.count(None) > 90 and series.count(5.0) <= 4


def test_between_two_snapshots_of_a_slow_interval_the_last_one_holds() -> None:
    past = heard(*(moment(1000 + 10 * i, out=4.0) for i in range(31)))
    assert None not in past.series("out", 145, interval_s=10)[5:]


@given(st.lists(st.none() | st.floats(0, 1e6), max_size=40), st.integers(1, 6), st.floats(0, 1e6))
def test_a_graph_shows_known_from_unknown_and_never_leaves_its_rows(
    values: list[float | None], rows: int, top: float
) -> None:
    for glyphs in (ASCII, UNICODE):
        drawn = graph(values, rows, top, glyphs)
        assert len(drawn) == rows and all(len(line) == len(values) for line in drawn)
        for column, value in enumerate(values):
            assert (drawn[-1][column] == " ") == (value is None)


@given(st.floats(0, 1e9))
def test_an_axis_ends_not_below_what_it_shows(highest: float) -> None:
    assert nice_top(highest) >= highest and nice_top(highest) <= max(1.0, 2 * highest)


def test_the_span_is_five_minutes() -> None:
    assert SPAN_S == 300
