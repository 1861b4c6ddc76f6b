"""Does every route of the daemon, whoever added it, ask for a key that is good for it?"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from homebox.daemon.keys import Keys

from .box import Box, running, state_with

FORMS = ("bearer", "x-api-key", "path")
FOR_MONITORS = {
    "/health",
    "/homebox/monitor",
    "/homebox/streams",
    "/metrics",
    "/v1/models",
    "/v1/models/{model}",
}


class Doors:
    def __init__(self, box: Box, state: Path) -> None:
        self.box, self.keys = box, Keys(state)
        self.tcp = box.far()
        good = self.keys.new("anna")
        revoked, expired = self.keys.new("ben"), self.keys.new("mia", expires=time.time() + 0.05)
        self.keys.revoke(revoked.split("_")[1])
        while not self.keys.by_id()[expired.split("_")[1]].expired(time.time()):
            time.sleep(0.01)
        self.known = {
            "bad": good[:-1] + ("a" if good[-1] != "a" else "b"),
            "revoked": revoked,
            "expired": expired,
            "monitor": self.keys.new("wall", scopes=["monitor"]),
            "good": good,
            "admin": self.keys.new("root", scopes=["admin"]),
        }
        self.routes = sorted(
            {
                (route.method, route.resource.canonical)
                for route in box.server._runner.app.router.routes()
                if route.resource and not route.resource.canonical.startswith("/k/{key}")
            }
        )

    def knock(self, method: str, pattern: str, key: str | None, form: str, **headers: str) -> httpx.Response:
        """As a browser's page could: plain text where there is a body, so that nothing is done behind the door."""
        path = re.sub(r"\{[^}]*\}", "x", pattern)
        if key and form == "path":
            path = f"/k/{key}{path}"
        elif key:
            headers |= {"x-api-key": key} if form == "x-api-key" else {"Authorization": f"Bearer {key}"}
        content = b"{}" if method in ("POST", "PUT", "PATCH") else None
        if content:
            headers |= {"Content-Type": "text/plain"}
        return self.tcp.request(method, path, headers=headers, content=content)


@pytest.fixture(scope="module")
def doors(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doors]:
    state = state_with(model, tmp_path_factory.mktemp("box"))
    Keys(state).new("first")
    with running(model, state, listen="127.0.0.1:0", allowed_origins=["https://notes.home"]) as box:
        doors = Doors(box, state)
        with doors.tcp:
            yield doors


def test_the_walk_sees_the_routes_and_each_has_its_twin_with_a_key_in_the_path(doors: Doors) -> None:
    patterns = {
        route.resource.canonical for route in doors.box.server._runner.app.router.routes() if route.resource
    }
    assert {"/health", "/v1/chat/completions", "/homebox/ask", "/homebox/keys"} <= patterns
    assert all(f"/k/{{key}}{pattern}" in patterns for _, pattern in doors.routes)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("which", [None, "bad", "revoked", "expired"])
def test_without_a_good_key_no_route_answers_and_health_says_the_state_alone(
    doors: Doors, which: str | None, form: str
) -> None:
    for method, pattern in doors.routes:
        answer = doors.knock(method, pattern, doors.known[which] if which else None, form)
        if pattern == "/health":
            assert (answer.status_code, set(answer.json())) == (200, {"state"})
        else:
            assert answer.status_code == 401, (method, pattern)
            said = {None: "a key is needed", "expired": "expired"}.get(which, "opens nothing")
            assert said in answer.text, (method, pattern)


def test_a_good_key_in_a_place_where_none_belongs_opens_nothing(doors: Doors) -> None:
    good = doors.known["good"]
    for method, pattern in doors.routes:
        for headers in (
            {"Authorization": f"Basic {good}"},
            {"Authorization": good},
            {"x-api-key": "hb_short"},
            {"x-api-key": f"{good} "[:-2]},
            {"Cookie": f"key={good}"},
            {"Proxy-Authorization": f"Bearer {good}"},
        ):
            answer = doors.knock(method, pattern, None, "bearer", **headers)
            assert answer.status_code == (200 if pattern == "/health" else 401), (method, pattern, headers)
    assert doors.tcp.get("/nothing").status_code == 401


@pytest.mark.parametrize("form", FORMS)
def test_a_monitors_key_opens_the_monitors_routes_and_no_other(doors: Doors, form: str) -> None:
    for method, pattern in doors.routes:
        answer = doors.knock(method, pattern, doors.known["monitor"], form)
        if method == "GET" and pattern in FOR_MONITORS:
            assert answer.status_code in (200, 404), (method, pattern)
        else:
            assert answer.status_code == 403 and "key is for monitor only" in answer.text, (method, pattern)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("which", ["good", "admin"])
def test_a_good_key_comes_in_and_a_body_that_is_not_declared_as_json_does_not(
    doors: Doors, which: str, form: str
) -> None:
    for method, pattern in doors.routes:
        answer = doors.knock(method, pattern, doors.known[which], form)
        assert answer.status_code not in (401, 500), (method, pattern)
        if method in ("POST", "PUT", "PATCH"):
            assert answer.status_code == 415, (method, pattern)


def test_a_key_for_chat_alone_does_not_watch_the_house(doors: Doors) -> None:
    key = doors.keys.new("anna", scopes=["chat"])
    assert doors.knock("GET", "/homebox/monitor", key, "bearer").status_code == 403
    assert doors.knock("GET", "/v1/models", key, "bearer").status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "evil.example:80"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "https://notes.home.evil.example"},
        {"Origin": "http://localhost:1"},
        {"Host": "evil.example", "Origin": "http://evil.example"},
    ],
    ids=str,
)
def test_no_page_of_another_site_gets_through_any_route(doors: Doors, headers: dict[str, str]) -> None:
    for method, pattern in doors.routes:
        answer = doors.knock(method, pattern, doors.known["good"], "x-api-key", **headers)
        assert answer.status_code == 403, (method, pattern)
        assert not any(name.startswith("access-control") for name in answer.headers)
    asked = doors.tcp.options(
        "/v1/chat/completions",
        headers={"Access-Control-Request-Method": "POST", "Origin": "http://evil.example"} | headers,
    )
    assert asked.status_code == 403 and not any(name.startswith("access-control") for name in asked.headers)


def test_a_page_that_the_owner_named_may_ask_and_read(doors: Doors) -> None:
    page = {"Origin": "https://notes.home"}
    asked = doors.tcp.options(
        "/v1/chat/completions", headers=page | {"Access-Control-Request-Method": "POST"}
    )
    assert asked.status_code == 204 and asked.headers["access-control-allow-origin"] == page["Origin"]
    assert "authorization" in asked.headers["access-control-allow-headers"]
    body = {"messages": [{"role": "user", "content": "[[say=hello]]"}]}
    for stream in (False, True):
        answer = doors.tcp.post(
            "/v1/chat/completions",
            json=body | {"stream": stream},
            headers=page | {"x-api-key": doors.known["good"]},
        )
        assert answer.status_code == 200 and answer.headers["access-control-allow-origin"] == page["Origin"]
    assert doors.knock("GET", "/v1/models", None, "bearer", **page).status_code == 401


def test_the_boxs_own_page_is_no_stranger(doors: Doors) -> None:
    own = {"Origin": doors.box.address}
    assert doors.knock("GET", "/v1/models", doors.known["good"], "bearer", **own).status_code == 200
