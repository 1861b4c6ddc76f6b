"""Does `homebox audit` ask for what was meant, and show a line a person can read?"""

from __future__ import annotations

import json
import time
from urllib.parse import parse_qs, urlsplit

import pytest

from homebox import errors
from homebox.cli.durations import seconds
from tests.client.fake_daemon import FakeDaemon

from .conftest import Shell

LINES = [
    {
        "at": "2026-11-02T10:22:33.123Z",
        "what": "answer",
        "person": "mia",
        "spoken_by": "dad",
        "request": "req-1",
        "route": "POST /homebox/ask",
        "model": "tiny",
        "tokens_in": 12,
        "tokens_out": 34,
        "outcome": "stop",
        "status": 200,
        "ms": 812,
    },
    {"at": "2026-11-02T10:22:34.000Z", "what": "refused", "route": "GET unknown", "code": "not_found", "status": 404, "ms": 0},
    {"at": "2026-11-02T10:22:35.000Z", "what": "key.revoke", "person": "dad", "target": "k3\x1b[2J\nJ9"},
]  # fmt: skip


def test_lines_are_shown_in_columns_and_drive_no_terminal(fake: FakeDaemon, homebox: Shell) -> None:
    fake.when("GET", "/homebox/audit", lambda exchange: exchange.json({"lines": LINES}))
    ran = homebox("audit", TZ="UTC")
    assert ran.out.splitlines() == [
        "2026-11-02 10:22:33  mia (by dad)  answer         POST /homebox/ask  tiny  12 in, 34 out  stop  0.8 s",
        "2026-11-02 10:22:34  -             refused        GET unknown  not_found  404  0.0 s",
        "2026-11-02 10:22:35  dad           key.revoke     k3 J9",
    ]
    ran = homebox("audit", "--json")
    assert [json.loads(line) for line in ran.out.splitlines()] == LINES and "\x1b" not in ran.out


def test_it_asks_for_the_person_the_time_and_the_number(fake: FakeDaemon, homebox: Shell) -> None:
    fake.when("GET", "/homebox/audit", lambda exchange: exchange.json({"lines": []}))
    assert homebox("audit", "--person", "mia", "--since", "2h", "-n", "7").out == ""
    (asked,) = fake.requests("/homebox/audit")
    query = parse_qs(urlsplit(asked.path).query)
    assert query["person"] == ["mia"] and query["limit"] == ["7"]
    assert abs(time.time() - 7200 - float(query["since"][0])) < 60


def test_who_may_not_look_is_told(fake: FakeDaemon, homebox: Shell) -> None:
    fake.when(
        "GET",
        "/homebox/audit",
        lambda exchange: exchange.error(errors.NotAllowed("this is for administrators")),
    )
    ran = homebox("audit")
    assert ran.code == 7 and "for administrators" in ran.err


@pytest.mark.parametrize(("text", "value"), [("90s", 90), ("30m", 1800), ("1.5d", 129600), ("1w", 604800)])
def test_lengths_of_time(text: str, value: float) -> None:
    assert seconds(text, "--since") == value


@pytest.mark.parametrize("args", [["--since", "soon"], ["--since", "-2h"], ["-n", "0"], ["-n", "99999999"]])
def test_what_cannot_be_meant_is_refused(homebox: Shell, args: list[str]) -> None:
    assert homebox("audit", *args).code == 2
