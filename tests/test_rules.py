"""Which rule holds, and are the hours open?"""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from homebox import config
from homebox.errors import UsageError
from homebox.rules import DEFAULTS, ROLES, Rules, convert, effective, is_open, opens_at, parse_hours

MONDAY = datetime(2026, 7, 27)


def at(day: int, clock: str) -> datetime:
    hours, minutes = map(int, clock.split(":"))
    return MONDAY + timedelta(days=day, hours=hours, minutes=minutes)


def test_the_person_speaks_before_the_configuration_and_that_before_the_role() -> None:
    configured = {"kid": Rules(requests=5, tokens_per_day=9)}
    rules = effective("kid", Rules(tokens_per_day=7), configured)
    assert (rules.requests, rules.tokens_per_day) == (5, 7)
    assert rules.preamble == DEFAULTS["kid"].preamble and rules.hours is None


def test_nothing_and_zero_lift_what_the_next_in_line_would_set() -> None:
    configured = {"kid": Rules(hours=["07:00-20:00"], models=["small"])}
    rules = effective("kid", Rules(requests=0, hours=[], models=[], preamble=""), configured)
    assert (rules.requests, rules.hours, rules.models, rules.preamble) == (0, [], [], "")


def test_every_role_has_defaults() -> None:
    assert set(DEFAULTS) == set(ROLES)


@pytest.mark.parametrize(
    ("hours", "when", "expected"),
    [
        (["07:00-20:00"], at(0, "07:00"), True),
        (["07:00-20:00"], at(0, "06:59"), False),
        (["07:00-20:00"], at(0, "20:00"), False),
        (["22:00-02:00"], at(1, "23:59"), True),
        (["22:00-02:00"], at(1, "01:59"), True),
        (["22:00-02:00"], at(1, "02:00"), False),
        (["00:00-24:00"], at(3, "23:59"), True),
        (
            ["07:00-20:00", "sa-su 09:00-21:00"],
            at(5, "08:00"),
            False,
        ),  # a day that is named has its own hours only
        (["07:00-20:00", "sa-su 09:00-21:00"], at(6, "20:30"), True),
        (["07:00-20:00", "sa-su 09:00-21:00"], at(4, "08:00"), True),
        (["fr 20:00-01:00"], at(5, "00:30"), True),  # Saturday morning belongs to Friday evening
        (["fr 20:00-01:00"], at(4, "00:30"), False),
        (["su-mo,we 10:00-11:00"], at(0, "10:30"), True),
        (["su-mo,we 10:00-11:00"], at(1, "10:30"), False),
        ([], at(0, "03:00"), True),
    ],
)
def test_hours_are_open_when_they_say_so(hours: list[str], when: datetime, expected: bool) -> None:
    assert is_open(parse_hours(hours), when) is expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "7-20",
        "07:00-07:00",
        "25:00-26:00",
        "07:60-08:00",
        "24:00-08:00",
        "xx 07:00-08:00",
        "mo-xx 1:00-2:00",
    ],
)
def test_hours_that_cannot_be_are_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_hours([text])
    assert "sa-su 09:00-21:00" in (refused.value.hint or "")


CLOCK = st.builds("{:02}:{:02}".format, st.integers(0, 23), st.integers(0, 59))
DAYS = st.sampled_from(["", "mo ", "sa-su ", "fr-mo ", "tu,th "])
WINDOW = st.builds("{}{}-{}".format, DAYS, CLOCK, CLOCK).filter(lambda text: text[-5:] != text[-11:-6])


@given(st.lists(WINDOW, min_size=1, max_size=4), st.integers(0, 7 * 1440 - 1))
def test_when_closed_hours_open_next_they_are_open_then_and_not_before(hours: list[str], minute: int) -> None:
    windows, now = parse_hours(hours), MONDAY + timedelta(minutes=minute)
    if is_open(windows, now):
        return
    opens = opens_at(windows, now)
    if opens is None:  # no window begins in a week: then none is open either
        assert not any(is_open(windows, now + timedelta(minutes=m)) for m in range(0, 7 * 1440, 7))
        return
    assert is_open(windows, opens)
    between = int((opens - now).total_seconds() // 60)
    assert not any(is_open(windows, now + timedelta(minutes=m)) for m in range(0, between, 11))


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"request": 1}, "Did you mean 'requests'?"),
        ({"requests": -1}, "at least 0"),
        ({"requests": "many"}, "requests"),
        ({"weight": 0}, "weight is 0"),
        ({"weight": float("nan")}, "weight is nan"),
        ({"hours": ["always"]}, "not hours of a day"),
        ({"preamble": "x" * 9000}, "9000 characters"),
        ([], "table"),
    ],
)
def test_a_rule_that_cannot_be_is_refused_by_name(table: object, says: str) -> None:
    with pytest.raises(UsageError) as refused:
        convert(table)
    assert says in str(refused.value)


def test_the_configuration_speaks_of_roles_and_each_file_of_those_it_names(tmp_path: Path) -> None:
    (tmp_path / "conf.d").mkdir()
    (tmp_path / "config.toml").write_text(
        '[roles.kid]\nhours = ["07:00-20:00"]\n[roles.guest]\nrequests = 1\n'
    )
    (tmp_path / "conf.d" / "a.toml").write_text("[roles.guest]\nrequests = 3\n")
    roles = config.load(environ={}, root=tmp_path).settings.roles
    assert roles == {"kid": Rules(hours=["07:00-20:00"]), "guest": Rules(requests=3)}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[roles.kdi]\nrequests = 1", "Did you mean 'kid'?"),
        ("[roles.kid]\nhour = []", "Did you mean 'hours'?"),
        ("roles = 3", "roles is a table"),
    ],
)
def test_a_role_table_that_cannot_be_names_file_and_nearest_word(
    tmp_path: Path, text: str, says: str
) -> None:
    file = tmp_path / "config.toml"
    file.write_text(text)
    with pytest.raises(UsageError) as refused:
        config.load(environ={}, config=file)
    assert str(file) in str(refused.value) and says in str(refused.value)
