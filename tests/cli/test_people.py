"""Do people, keys and usage reach a person as words, through the daemon and without one?"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from homebox.cli import rule_words
from homebox.daemon.keys import Keys
from homebox.daemon.people import Household
from homebox.errors import UsageError
from tests.cli.conftest import Shell
from tests.daemon.box import Box, running, state_with, until
from tests.daemon.tiny_model import build


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("models"))


@pytest.fixture
def box(model: Path, tmp_path: Path) -> Iterator[Box]:
    state = state_with(model, tmp_path / "house")
    Keys(state).new("anna")
    with running(model, state, listen="127.0.0.1:0") as running_box:
        yield running_box


@pytest.fixture
def with_daemon(box: Box, homebox: Shell) -> Shell:
    homebox.env |= {"HOMEBOX_SOCKET": box.socket}
    return homebox


def test_without_a_daemon_people_and_keys_are_kept_in_files(homebox: Shell, tmp_path: Path) -> None:
    (tmp_path / "anna.txt").write_text("be kind\n")
    ran = homebox(
        "people", "set", "anna", "--role", "kid", "--hours", "07:00-20:00", "--hours", "sa-su 09:00-21:00",
        "--tokens-per-day", "50k", "--weight", "2", "--preamble", f"@{tmp_path}/anna.txt", "--models", "tiny,small",
    )  # fmt: skip
    assert ran.code == 0 and ran.out.startswith("anna  kid\n") and "50000" in ran.out
    own = Household(tmp_path / "state").records()["anna"].rules
    assert own.hours == ["07:00-20:00", "sa-su 09:00-21:00"] and own.models == ["tiny", "small"]
    assert (own.tokens_per_day, own.weight, own.preamble) == (50_000, 2.0, "be kind")
    homebox("people", "set", "anna", "--clear", "hours", "--clear", "tokens-per-day", "--models", "none")
    own = Household(tmp_path / "state").records()["anna"].rules
    assert (own.hours, own.tokens_per_day, own.models) == (None, None, [])
    key = homebox("people", "keys", "new", "anna", "--scope", "monitor", "--expires", "90d", "--background")
    assert key.code == 0 and "cannot be shown again" in key.err
    found = Keys(tmp_path / "state").find(key.out.strip())
    assert found and found.scopes == ("monitor",) and found.background and found.expires
    assert 0 <= found.expires - time.time() - 90 * 86400 + 60 < 120
    listed = homebox("people", "keys", "list").out
    assert "anna" in listed and "background" in listed and key.out.strip() not in listed
    shown = homebox("people", "list").out.splitlines()[1].split()
    assert shown[:6] == ["anna", "kid", "-", "-", "1", "-"], "what only a daemon knows is not made up"
    people = json.loads(homebox("people", "list", "--json").out)["people"]
    assert [(row["name"], row["role"], row["keys"]) for row in people] == [("anna", "kid", 1)]
    assert homebox("people", "keys", "revoke", found.id).out == f"{found.id} of anna opens nothing any more\n"
    assert "adult again" in homebox("people", "rm", "anna").out
    assert homebox("people", "rm", "anna").code == 6 and homebox("people", "show", "anna").code == 6


def test_with_a_daemon_they_go_through_it_and_count_at_once(
    box: Box, with_daemon: Shell, tmp_path: Path
) -> None:
    assert with_daemon("people", "set", "leo", "--role", "kid", "--tokens-per-day", "90").code == 0
    assert box.house.people.member("leo").role == "kid" and not (tmp_path / "state").exists()
    ran = with_daemon("ask", "--as", "leo", "hello")  # a kid's preamble alone is longer than that
    assert (
        (ran.code, ran.out) == (5, "")
        and "90 are allowed" in ran.err
        and "Asking again makes sense in" in ran.err
    )
    assert with_daemon("people", "show", "leo").out.startswith("leo  kid\n")
    made = json.loads(with_daemon("people", "keys", "new", "webui", "--for-people", "--json").out)
    assert "for people" in with_daemon("people", "keys", "list").out
    assert with_daemon("people", "keys", "revoke", made["id"]).code == 0
    assert box.house.keys.find(made["key"]) is None


def test_the_end_of_a_days_tokens_is_said_under_the_answer(box: Box, with_daemon: Shell) -> None:
    with_daemon("people", "set", "mia", "--tokens-per-day", "60")
    ran = with_daemon("ask", "--as", "mia", "[[forever]]")
    assert (
        ran.code == 0
        and ran.out
        and "the answer ended here: the tokens of this day are used up: 60" in ran.err
    )


def test_everybody_sees_themselves_and_an_administrator_all(box: Box, with_daemon: Shell) -> None:
    with_daemon("ask", "--as", "ben", "[[say=hello]]")
    with_daemon("ask", "[[say=hello]]")
    me = json.loads(with_daemon("whoami", "--json").out)
    assert me["admin"] and me["role"] == "admin" and me["tokens_today"] > 0
    assert with_daemon("whoami").out.startswith(f"{me['name']}  admin\n")
    own = json.loads(with_daemon("usage", "--json").out)
    assert [row["person"] for row in own] == [me["name"]] and own[0]["requests"] == 1
    table = with_daemon("usage", "--all", "--days", "1").out.splitlines()
    assert table[0].split()[:3] == ["DAY", "PERSON", "REQUESTS"] and len(table) == 3


def test_from_another_computer_a_key_shows_ones_own_and_changes_nothing(box: Box, homebox: Shell) -> None:
    key = box.http.post("/homebox/keys", json={"person": "anna"}).json()["key"]
    homebox.env |= {"HOMEBOX_URL": box.address, "HOMEBOX_KEY": key}
    assert homebox("ask", "[[say=hello]]").out == "hello\n"
    assert homebox("whoami").out.startswith("anna  adult")
    assert homebox("usage").out.count("anna") == 1
    for args in (
        ["usage", "--all"],
        ["people", "set", "anna", "--role", "admin"],
        ["people", "keys", "new", "x"],
    ):
        ran = homebox(*args)
        assert ran.code == 7 and "no administrator" in ran.err and "scope admin" in ran.err, args
    until(lambda: not box.house.book.live)


def test_a_daemon_elsewhere_that_is_gone_is_not_replaced_by_files_here(
    homebox: Shell, tmp_path: Path
) -> None:
    homebox.env |= {"HOMEBOX_URL": "http://127.0.0.1:9"}
    assert homebox("people", "set", "anna", "--role", "kid").code == 3
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["set", "anna"], "nothing to set"),
        (["set", "anna", "--role", "kdi"], "Did you mean 'kid'?"),
        (["set", "anna", "--hours", "always"], "sa-su 09:00-21:00"),
        (["set", "anna", "--tokens-per-day", "lots"], "--tokens-per-day 'lots'"),
        (["set", "anna", "--weight", "0"], "weight is 0"),
        (["set", "anna", "--preamble", "@/nowhere"], "--preamble @/nowhere"),
        (["set", "anna", "--clear", "hour"], "there is no rule 'hour'"),
        (["set", "a b", "--role", "kid"], "not a person's name"),
        (["keys", "new", "anna", "--scope", "root"], "chat, monitor, admin"),
        (["keys", "new", "anna", "--expires", "soon"], "--expires 'soon'"),
        (["keys", "new", "anna", "--expires", "2001-01-01"], "expired already"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_what_cannot_be_meant_is_2_with_the_next_step(
    homebox: Shell, tmp_path: Path, args: list[str], says: str
) -> None:
    ran = homebox("people", *args)
    assert (ran.code, ran.out) == (2, "") and says in ran.err and "Traceback" not in ran.err


@pytest.mark.parametrize("args", ["list", "show", "set", "rm", "keys new", "keys list", "keys revoke"])
def test_every_subcommand_has_an_example(homebox: Shell, args: str) -> None:
    assert f"homebox people {args}" in homebox("people", *args.split(), "--help").out.partition("Example")[2]


def test_numbers_and_times_are_read_as_people_write_them() -> None:
    assert [rule_words.count(text, "-x") for text in ("50k", "1.5M", "50_000", "0", "none")] == [
        50000,
        1500000,
        50000,
        0,
        0,
    ]
    for text in ("-5", "1.23456789", "k", "1.0001", ""):
        with pytest.raises(UsageError):
            rule_words.count(text, "-x")
    assert rule_words.expiry("2090-02-01") == datetime(2090, 2, 2).timestamp()
    assert abs(rule_words.expiry("2h") - time.time() - 7200) < 5
