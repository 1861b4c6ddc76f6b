"""Do roles, scopes and keys count at once, and do they end with what they began?"""

from __future__ import annotations

import json
import os
import pwd
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from homebox.daemon.keys import USED_EVERY_S, Keys
from homebox.daemon.people import Household
from homebox.errors import BadFile, NotFound, UsageError
from homebox.rules import Rules
from homebox.wire import events

from .box import Box, read_events, running, state_with, until
from .others import NOBODY, as_account
from .test_limits import Clock

FOREVER = "[[forever]][[pace=5]]"
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")


class House:
    def __init__(self, box: Box, state: Path, clock: Clock) -> None:
        self.box, self.state, self.clock = box, state, clock
        self.keys, self.people = Keys(state), Household(state)  # as another process has them

    def client(self, key: str) -> httpx.Client:
        return self.box.far(**{"x-api-key": key})


@pytest.fixture(scope="module")
def house(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    state = state_with(model, tmp_path_factory.mktemp("box"))
    Keys(state).new("first")
    clock = Clock(time.time())
    with running(model, state, listen="127.0.0.1:0", clock=clock) as box:
        yield House(box, state, clock)


def error_of(answer: httpx.Response) -> dict[str, Any]:
    found: dict[str, Any] = answer.json()["error"]
    return found


# ---- who administers


def test_over_tcp_an_administrator_needs_the_role_and_a_key_for_it(house: House) -> None:
    house.people.set("boss", role="admin")
    for person, scopes, status in (
        ("boss", ["chat", "monitor", "admin"], 200),
        ("boss", ["chat", "monitor"], 403),
        ("carl", ["chat", "monitor", "admin"], 403),
    ):
        with house.client(house.keys.new(person, scopes=scopes)) as client:
            assert client.get("/homebox/usage?all=1").status_code == status
            assert client.put("/homebox/people/dora", json={"role": "guest"}).status_code == status
            assert client.get("/homebox/me").json()["admin"] is (status == 200)


@needs_root
def test_on_the_socket_an_account_with_the_role_administers_and_another_does_not(house: House) -> None:
    name = pwd.getpwuid(NOBODY).pw_name
    asks = [("GET", "/homebox/people", None), ("PUT", "/homebox/people/dora", {"role": "guest"})]
    (seen, before), (refused, _) = as_account(house.box, asks)
    assert (seen, refused) == (200, 403) and [row["name"] for row in before["people"]] == [name]
    house.people.set(name, role="admin")
    (_, after), (allowed, _) = as_account(house.box, asks)
    assert allowed == 200 and len(after["people"]) > 1
    house.people.remove(name)
    assert as_account(house.box, asks)[1][0] == 403


def test_what_an_administrator_sees_of_others_is_names_and_numbers(house: House) -> None:
    key = house.keys.new("eva")
    with house.client(key) as eva:
        turn = house.box.detach("[[forever]][[pace=5]] secretword", eva)
        until(lambda: house.box.tokens(turn))
        row = next(r for r in house.box.http.get("/homebox/people").json()["people"] if r["name"] == "eva")
        assert (row["role"], row["entered"], row["running"], row["keys"]) == ("adult", False, 1, 1)
        assert row["tokens_today"] > 0
        with house.client(house.keys.new("flo")) as flo:
            me = pwd.getpwuid(os.geteuid()).pw_name
            house.keys.new(me)
            roles = {r["name"]: r["role"] for r in house.box.http.get("/homebox/people").json()["people"]}
            assert (roles["eva"], roles[me]) == ("adult", "admin")  # as whoami says it
            for path in (
                "/homebox/people",
                "/homebox/monitor",
                "/homebox/streams",
                "/homebox/usage",
                "/homebox/keys",
            ):
                for client in (flo, house.box.http):
                    assert "secretword" not in client.get(path).text
            assert "eva" not in flo.get("/homebox/people").text + flo.get("/homebox/usage").text
            assert "eva" not in flo.get("/homebox/keys").text
            assert flo.get("/homebox/usage?all=1").status_code == 403
            assert (
                next(r for r in flo.get("/homebox/streams").json()["streams"] if r["id"] == turn)["person"]
                == "eva"
            )
        house.box.http.delete(f"/homebox/turns/{turn}")


# ---- keys


def test_revoking_a_key_ends_what_is_under_way_with_it_and_nothing_else(house: House) -> None:
    key, other = house.keys.new("gina"), house.keys.new("gina")
    with house.client(key) as gina, house.client(other) as second:
        kept = house.box.detach(FOREVER, second)
        heard: list[events.Event] = []
        body = {"messages": [{"role": "user", "content": FOREVER}]}
        reader = threading.Thread(
            target=lambda: heard.extend(read_events(gina.post("/homebox/ask", json=body).content))
        )
        reader.start()
        until(lambda: len(house.box.streams()) == 2 and all(row["tokens_out"] for row in house.box.streams()))
        answer = house.box.http.delete(f"/homebox/keys/{key.split('_')[1]}")
        assert answer.status_code == 200 and answer.json()["person"] == "gina"
        reader.join(10)
        last = heard[-1]
        assert isinstance(last, events.Finished) and (last.reason, last.detail) == (
            "cancelled",
            "the key was revoked",
        )
        assert last.error and last.error["code"] == "invalid_api_key"
        until(lambda: len(house.box.streams()) == 1)
        assert house.box.tokens(kept)
        assert gina.get("/v1/models").status_code == 401 and second.get("/v1/models").status_code == 200
        house.box.http.delete(f"/homebox/turns/{kept}")


def test_a_key_that_another_process_revokes_takes_its_streams_along_and_an_endless_monitor(
    house: House,
) -> None:
    key = house.keys.new("hugo")
    said: list[str] = []
    with house.client(key) as hugo:
        turn = house.box.detach(FOREVER, hugo)

        def watch() -> None:
            try:
                with hugo.stream("GET", "/homebox/monitor?interval=60", timeout=60) as answer:
                    for line in answer.iter_lines():
                        said.append(line)
            except httpx.HTTPError:
                pass

        def openai() -> None:
            body = {"messages": [{"role": "user", "content": FOREVER}], "stream": True}
            with hugo.stream("POST", "/v1/chat/completions", json=body) as answer:
                said.extend(line for line in answer.iter_lines() if "revoked" in line)

        readers = [threading.Thread(target=watch), threading.Thread(target=openai)]
        for reader in readers:
            reader.start()
        until(lambda: len(said) >= 1 and len(house.box.streams()) == 2)
        house.keys.revoke(key.split("_")[1])
        for reader in readers:
            reader.join(10)
            assert not reader.is_alive()
        assert any("the key was revoked" in line for line in said[1:])
        until(lambda: not any(row["id"] == turn for row in house.box.streams()))


def test_a_key_expires_by_itself_and_says_so(house: House) -> None:
    key = house.keys.new("ines", expires=house.clock.now + 100)
    with house.client(key) as ines:
        turn = house.box.detach(FOREVER, ines)
        house.clock.now += 101
        until(lambda: not any(row["id"] == turn for row in house.box.streams()))
        answer = ines.get("/v1/models")
        assert answer.status_code == 401 and "this key has expired" in error_of(answer)["message"]
    with pytest.raises(UsageError):
        house.keys.new("ines", expires=time.time() - 1)


def test_a_background_key_gives_way_to_everybody(house: House) -> None:
    with house.client(house.keys.new("titles", background=True)) as client:
        turn = house.box.detach(FOREVER, client)
        assert next(row for row in house.box.streams() if row["id"] == turn)["klass"] == "background"
        assert house.box.house.supervisor.streams[-1].submit.klass == "background"
        house.box.http.delete(f"/homebox/turns/{turn}")


def test_when_a_key_was_used_is_shown_at_once_and_written_once_a_minute(house: House) -> None:
    key = house.keys.new("jon")
    with house.client(key) as jon:
        jon.get("/v1/models")

    def last(keys: Keys) -> float | None:
        return next(k for k in keys.all() if k.person == "jon").last_used

    assert last(house.box.house.keys) == house.clock.now
    house.clock.now += USED_EVERY_S + 1
    until(lambda: last(Keys(house.state)) is not None)
    stamp = (house.state / "keys.json").stat().st_mtime_ns
    with house.client(key) as jon:
        jon.get("/v1/models")
    assert (house.state / "keys.json").stat().st_mtime_ns == stamp


def test_keys_are_made_and_listed_by_administrators_through_the_daemon(house: House) -> None:
    body = {"person": "kim", "scopes": ["monitor"], "background": True}
    made = house.box.http.post("/homebox/keys", json=body).json()
    listed = house.box.http.get("/homebox/keys").text
    row = next(row for row in json.loads(listed)["keys"] if row["id"] == made["id"])
    assert (row["person"], row["scopes"], row["background"]) == ("kim", ["monitor"], True)
    assert made["key"].split("_")[2] not in listed
    for wrong in (
        {"person": "../x"},
        {"person": "kim", "scopes": []},
        {"person": "kim", "scopes": ["root"]},
        {},
    ):
        assert house.box.http.post("/homebox/keys", json=wrong).status_code == 400
    assert house.box.http.delete("/homebox/keys/nothing").status_code == 404


def test_keys_of_the_first_schema_are_read_and_keep_what_they_could(tmp_path: Path) -> None:
    keys = Keys(tmp_path)
    key = keys.new("anna")
    data = json.loads(keys.path.read_text())
    old = {name: data["keys"][0][name] for name in ("id", "sha256", "person", "created")}
    keys.path.write_text(json.dumps({"keys": [old], "schema": 1}))
    found = keys.find(key)
    assert found and (found.person, found.scopes, found.expires, found.for_people) == (
        "anna",
        ("chat", "monitor"),
        None,
        False,
    )
    keys.new("ben")
    assert json.loads(keys.path.read_text())["schema"] == 2 and keys.find(key)
    keys.path.write_text(json.dumps({"keys": [], "schema": 3}))
    with pytest.raises(BadFile, match="schema 3"):
        keys.find(key)


# ---- people


def test_rules_are_set_changed_and_cleared_one_by_one(house: House) -> None:
    put = house.box.http.put
    row = put("/homebox/people/lia", json={"role": "kid", "rules": {"requests": 1, "weight": 2}}).json()
    assert (row["role"], row["rules"]["requests"], row["rules"]["max_answer_tokens"]) == ("kid", 1, 1024)
    row = put("/homebox/people/lia", json={"rules": {"hours": ["07:00-20:00"]}, "clear": ["requests"]}).json()
    assert row["own"] == {"hours": ["07:00-20:00"], "weight": 2.0} and row["rules"]["requests"] == 2
    assert house.people.member("lia").rules.hours == ["07:00-20:00"]
    assert house.box.http.delete("/homebox/people/lia").json()["role"] == "adult"
    assert house.box.http.delete("/homebox/people/lia").status_code == 404
    for body, says in (
        ({"role": "kdi"}, "kid"),
        ({"rules": {"hour": []}}, "hours"),
        ({"rules": {"weight": -1}}, "weight"),
        ({"clear": ["hour"]}, "there is no rule 'hour'"),
        ({"rules": {"requests": "two"}}, "requests"),
        ({"colour": 1}, "colour"),
    ):
        answer = put("/homebox/people/lia", json=body)
        assert answer.status_code == 400 and says in answer.text, body
    assert put("/homebox/people/a%20b", json={"role": "kid"}).status_code == 400


def test_the_file_is_for_its_owner_only_and_one_that_is_broken_makes_nobody_an_adult(
    model: Path, tmp_path: Path
) -> None:
    state = state_with(model, tmp_path)
    key = Keys(state).new("mia")
    people = Household(state)
    people.set("mia", role="kid")
    assert people.path.stat().st_mode & 0o777 == 0o600
    with running(model, state, listen="127.0.0.1:0") as box:
        people.path.write_text('{"people": {"mia": {"role": "kdi"}}}')
        mia = box.far(**{"x-api-key": key})
        answer = mia.get("/v1/models")
        assert answer.status_code == 503 and "who is who" in answer.text
        assert box.http.get("/v1/models").status_code == 200  # somebody must be able to mend it
        people.path.write_text('{"people": {"mia": {"rules": {"weight": 0}}}}')
        assert mia.get("/v1/models").status_code == 503
        people.path.unlink()
        assert mia.get("/v1/models").status_code == 200


def test_what_was_not_entered_cannot_be_removed(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="not entered"):
        Household(tmp_path).remove("anna")


def test_changes_by_several_at_once_are_all_kept(tmp_path: Path) -> None:
    def enter(start: int) -> None:
        people = Household(tmp_path)
        for number in range(start, start + 10):
            people.set(f"p{number}", rules=Rules(requests=number))

    threads = [threading.Thread(target=enter, args=(start,)) for start in (0, 100, 200)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(Household(tmp_path).records()) == 30


@needs_root
def test_what_root_writes_belongs_to_the_owner_of_the_state(tmp_path: Path) -> None:
    os.chown(tmp_path, NOBODY, NOBODY)
    Keys(tmp_path).new("anna")
    Household(tmp_path).set("anna", role="kid")
    for name in ("keys.json", "keys.lock", "people.json", "people.lock"):
        status = (tmp_path / name).stat()
        assert (status.st_uid, status.st_gid, status.st_mode & 0o777) == (NOBODY, NOBODY, 0o600), name
