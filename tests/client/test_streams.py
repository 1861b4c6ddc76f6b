"""Filter and order of the monitor's rows: what is asked for is what is shown, and what cannot be meant is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from homebox.client.streams import COLUMNS, NUMBERS, STATES, TEXTS, Order, View, parse_filter, parse_order
from homebox.errors import UsageError
from homebox.wire.events import StreamRow


def row(person: str = "anna", **fields: object) -> StreamRow:
    known = {
        "id": "t-1",
        "state": "decode",
        "model": "tiny",
        "klass": "normal",
        "tokens_in": 1,
        "tokens_out": 1,
    }
    return StreamRow(**({"person": person} | known | fields))  # type: ignore[arg-type]


HOUSE = (
    row(id="t-a", tok_s=62.0, age_s=9.0, mine=True, ttft_ms=410.0),
    row("dad", id="t-b", tok_s=8.0, age_s=3.0, client="api"),
    row("dad", id="t-c", state="waiting", age_s=5.0),
    row("leo", id="t-d", state="cancelled", age_s=1.0, ended_s=3.0, tok_s=10.0),
)


def shown(expression: str, **view: object) -> str:
    return "".join(each.id[2:] for each in View(filter=parse_filter(expression), **view)(HOUSE))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("expression", "ids"),
    [
        ("", "acbd"),
        ("user=dad", "cb"),
        ("user=dad tok_s<10", "b"),
        ("tok_s<10", "b"),  # what is unknown is not less than anything
        ("tok_s!=8", "ad"),
        ("tok_s>=8 tok_s<=10", "bd"),
        ("state=wait", "c"),
        ("state=waiting", "c"),
        ("state=stopped", "d"),
        ("state!=decode", "cd"),
        ("user~A", "acb"),
        ("DAD", "cb"),
        ("api", "b"),
        ("t-d", "d"),
        ("ttft>0.4", "a"),
        ("age>4", "ac"),
        ("dad wait", "c"),
    ],
)
def test_a_filter_keeps_what_it_says(expression: str, ids: str) -> None:
    assert shown(expression) == ids


def test_only_mine_are_only_mine() -> None:
    assert shown("", mine=True) == "a"


@pytest.mark.parametrize(
    ("expression", "at", "hint"),
    [
        ("user=dad tokens<3", 10, "Did you mean"),
        ("user=dad tok_s<ten", 16, "Like:"),
        ("tok_s~3", 6, "Like:"),
        ("user<3", 5, "Like:"),
        ("age=", 5, "Like:"),
        ("  state=decod", 9, "Did you mean decode?"),
        ("=3", 1, "Like:"),
        ("user", None, ""),
    ],
)
def test_what_cannot_be_meant_is_said_with_its_place(expression: str, at: int | None, hint: str) -> None:
    if at is None:
        parse_filter(expression)
        return
    with pytest.raises(UsageError, match=f"filter, character {at}: ") as caught:
        parse_filter(expression)
    assert hint in (caught.value.hint or "")


def test_an_order_that_there_is_not_is_refused_with_the_nearest() -> None:
    assert parse_order("-tok_s") == Order("tok_s", reverse=True)
    with pytest.raises(UsageError, match="no column 'toks'") as caught:
        parse_order("toks")
    assert "tok_s" in (caught.value.hint or "")


rows = st.builds(
    StreamRow,
    id=st.text("abc", min_size=1, max_size=3),
    person=st.sampled_from(["anna", "Dad", "leo"]),
    state=st.sampled_from(sorted(STATES)),
    model=st.just("m"),
    klass=st.just("normal"),
    tokens_in=st.integers(0, 9),
    tokens_out=st.integers(0, 9),
    tok_s=st.none() | st.floats(0, 100),
    ttft_ms=st.none() | st.floats(0, 1e6),
    max_tokens=st.none() | st.integers(1, 9),
    age_s=st.floats(0, 1e6),
    mine=st.booleans(),
)


@given(st.lists(rows, max_size=12), st.sampled_from(COLUMNS), st.booleans())
def test_every_order_keeps_every_row_and_puts_the_unknown_last(
    house: list[StreamRow], column: str, reverse: bool
) -> None:
    order = Order(column, reverse)
    sorted_rows = View(order)(house)
    assert sorted(map(id, sorted_rows)) == sorted(map(id, house))
    value = NUMBERS.get(column) or TEXTS[column]
    values = [value(each) for each in sorted_rows]
    known = [each.lower() if isinstance(each, str) else each for each in values if each is not None]
    assert values[len(known) :] == [None] * (len(values) - len(known))
    assert known == sorted(known, reverse=order.falling)  # type: ignore[type-var]


@given(st.text(max_size=40))
def test_any_expression_is_a_filter_or_is_refused(expression: str) -> None:
    try:
        wanted = parse_filter(expression)
    except UsageError as error:
        assert error.hint and "filter, character " in error.message
    else:
        assert all(isinstance(wanted(each), bool) for each in HOUSE)
