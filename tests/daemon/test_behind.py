"""Are the persons behind one application served and limited apart, and only where the owner trusts it?"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from homebox.daemon.behind import name_behind
from homebox.daemon.keys import APP_NAME_CHARACTERS, PERSON, Keys
from homebox.errors import UsageError
from homebox.rules import Rules

from .box import Box, running, state_with, until

CHAT = "/v1/chat/completions"
FOREVER = "[[forever]][[pace=5]]"


class House:
    def __init__(self, box: Box, keys: Keys) -> None:
        self.box, self.keys = box, keys
        self.trusted = self._client(keys.new("webui", for_people=True, scopes=["chat", "monitor", "admin"]))
        self.other = self._client(keys.new("bot"))

    def _client(self, key: str) -> httpx.Client:
        return self.box.far(**{"x-api-key": key})

    def who(self, client: httpx.Client, headers: dict[str, str], **body: object) -> str:
        """Whose request the engine got."""
        said = {"messages": [{"role": "user", "content": FOREVER}], "stream": True, **body}
        with client.stream("POST", CHAT, json=said, headers=headers) as answer:
            assert answer.status_code == 200, answer.read()
            person = self.box.house.supervisor.streams[-1].submit.person
        until(lambda: not self.box.house.book.live)
        return person


@pytest.fixture(scope="module")
def house(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    state = state_with(model, tmp_path_factory.mktemp("box"))
    Keys(state).new("first")
    with running(model, state, listen="127.0.0.1:0", max_running=1) as box:
        house = House(box, Keys(state))
        with house.trusted, house.other:
            yield house


WEBUI = {
    "X-OpenWebUI-User-Name": "Leo%20Maier",
    "X-OpenWebUI-User-Id": "1f2e-3d",
    "X-OpenWebUI-User-Email": "leo@home.org",
    "X-OpenWebUI-User-Role": "admin",
}


def test_a_trusted_application_names_the_person(house: House) -> None:
    assert house.who(house.trusted, WEBUI) == "leo_40home.org@webui"
    assert house.who(house.trusted, {"X-OpenWebUI-User-Id": "1f2e-3d"}) == "1f2e-3d@webui"
    assert house.who(house.trusted, {}, user="mia") == "mia@webui"
    assert house.who(house.trusted, WEBUI, user="mia") == "leo_40home.org@webui"
    assert (
        house.who(house.trusted, {})
        == "webui"
        == house.who(house.trusted, {"X-OpenWebUI-User-Id": ""}, user="")
    )


def test_from_any_other_key_the_same_words_mean_nothing(house: House) -> None:
    assert house.who(house.other, WEBUI, user="root") == "bot"
    with house.box.client(**WEBUI) as local:
        assert "@" not in house.who(local, {}, user="mia")


def test_nobody_behind_an_application_is_somebody_of_the_house_or_administers(house: House) -> None:
    house.box.house.people.set("root", role="admin")
    house.box.house.people.set("root@webui", role="admin")
    assert house.who(house.trusted, {}, user="root") == "root@webui"
    named = {"X-OpenWebUI-User-Id": "root", "X-OpenWebUI-User-Role": "admin"}
    assert house.trusted.get("/homebox/usage?all=1", headers=named).status_code == 403
    as_root = house.trusted.get("/homebox/me", headers={"X-Homebox-As": "root"})
    assert as_root.status_code == 403


def test_the_persons_have_limits_of_their_own_as_guests_or_as_they_were_entered(house: House) -> None:
    me = house.trusted.get("/homebox/me", headers={"X-OpenWebUI-User-Id": "nina"}).json()
    assert (me["name"], me["role"], me["rules"]["requests"]) == ("nina@webui", "guest", 4)
    row = house.box.http.put("/homebox/people/nina@webui", json={"rules": {"requests": 1}}).json()
    assert row["role"] == "guest"  # entered without a role, she stays what she was
    body = {"messages": [{"role": "user", "content": FOREVER}], "detach": True}
    nina, otto = {"X-OpenWebUI-User-Id": "nina"}, {"X-OpenWebUI-User-Id": "otto"}
    first = house.trusted.post("/homebox/ask", json=body, headers=nina)
    second = house.trusted.post("/homebox/ask", json=body, headers=nina)
    third = house.trusted.post("/homebox/ask", json=body, headers=otto)
    assert [answer.status_code for answer in (first, second, third)] == [200, 429, 200]
    assert second.json()["error"]["numbers"] == {"rule": "requests", "limit": 1, "used": 1, "asked": 1}
    persons = {stream.submit.person for stream in house.box.house.supervisor.streams}
    assert persons == {"nina@webui", "otto@webui"}  # a fairness counter each
    for turn in house.box.house.book.live:
        house.box.http.delete(f"/homebox/turns/{turn.id}")
    rows = house.box.http.get("/homebox/usage?all=1").json()["usage"]
    assert {row["person"] for row in rows} >= {"nina@webui", "otto@webui"}
    refused = {row["person"]: row["refused"] for row in rows}
    assert (refused["nina@webui"], refused["otto@webui"]) == (1, 0)


def test_a_kid_behind_an_application_is_a_kid(house: House) -> None:
    house.box.house.people.set("pia@webui", role="kid", rules=Rules(preamble="be kind"))
    messages = [{"role": "system", "content": "x"}, {"role": "user", "content": "[[say=hello]]"}]
    assert house.trusted.post(CHAT, json={"messages": messages, "user": "pia"}).status_code == 403
    assert house.trusted.post(CHAT, json={"messages": messages, "user": "quinn"}).status_code == 200
    assert house.trusted.post("/v1/completions", json={"prompt": "x", "user": "pia"}).status_code == 403


def test_what_one_person_behind_an_application_made_is_not_anothers(house: House) -> None:
    body = {"messages": [{"role": "user", "content": "[[say=hello]]"}], "detach": True}
    ruth, sam = {"X-OpenWebUI-User-Id": "ruth"}, {"X-OpenWebUI-User-Id": "sam"}
    turn = house.trusted.post("/homebox/ask", json=body, headers=ruth).json()["turn"]
    events = f"/homebox/turns/{turn}/events"
    assert [house.trusted.get(events, headers=who).status_code for who in (ruth, sam, {})] == [200, 404, 404]


@pytest.mark.parametrize("name", ["web@ui", "a" * (APP_NAME_CHARACTERS + 1)])
def test_an_application_that_speaks_for_others_has_a_short_plain_name(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="cannot speak for others"):
        Keys(tmp_path).new(name, for_people=True)


USER = st.text(min_size=1, max_size=80) | st.text("ab_@.-h40", min_size=1, max_size=50)


@given(USER, st.sampled_from(["webui", "a", "x" * APP_NAME_CHARACTERS]))
def test_a_name_is_in_the_grammar_of_names_and_says_which_user_it_is(user: str, app: str) -> None:
    name = name_behind(user, app)
    assert PERSON.fullmatch(name) and name.endswith(f"@{app}") and name.count("@") == 1
    written = name.partition("@")[0]
    if written.startswith("_h"):
        assert len(user.encode()) > 9 and len(written) == 22  # a digest, only where there is no room for more
    else:
        plain = re.sub(r"_(_|[0-9a-f]{2})", lambda m: "_" if m[1] == "_" else chr(int(m[1], 16)), written)
        assert plain.encode("latin-1") == user.encode()


def test_users_that_look_like_each_others_names_are_told_apart() -> None:
    users = ["a@b", "a_40b", "a__40b", "a_b", "a_5fb", "A@b", "_h", ".a", "_2ea", "", "x" * 99, "x" * 98]
    assert len({name_behind(user, "webui") for user in users}) == len(users)
