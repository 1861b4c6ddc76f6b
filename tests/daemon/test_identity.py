"""Does nobody get further than their name allows, at any door?"""

from __future__ import annotations

import http.client
import os
import pwd
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from homebox.daemon.identity import peer
from homebox.daemon.keys import Keys
from homebox.errors import BadFile, NotFound, UsageError

from .box import Box, running, state_with

ME = pwd.getpwuid(os.geteuid()).pw_name


class Doors:
    def __init__(self, box: Box, state: Path, key: str) -> None:
        self.box, self.state, self.key = box, state, key
        self.tcp = box.far()

    def get(self, path: str, **headers: str) -> httpx.Response:
        return self.tcp.get(path, headers=headers)


@pytest.fixture(scope="module")
def doors(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doors]:
    state = state_with(model, tmp_path_factory.mktemp("box"))
    key = Keys(state).new("anna")
    with running(model, state, listen="127.0.0.1:0", allowed_hosts=["box.example"]) as box:
        doors = Doors(box, state, key)
        with doors.tcp:
            yield doors


def test_on_the_unix_socket_a_person_is_the_peers_account(doors: Doors) -> None:
    turn = doors.box.detach("[[forever]]")
    assert next(row for row in doors.box.streams() if row["id"] == turn)["person"] == ME
    doors.box.http.delete(f"/homebox/turns/{turn}")


def test_the_peer_is_who_the_kernel_says_it_is() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    with ours, theirs:
        person = peer(ours)
    assert (person.name, person.admin, person.local) == (ME, True, True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_somebody_who_is_not_an_administrator_speaks_only_for_themselves(doors: Doors) -> None:
    Path(doors.box.socket).chmod(0o666)
    for folder in Path(doors.box.socket).parents:
        if folder.stat().st_uid == os.geteuid() and folder != Path("/tmp") and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o011)
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        status = 0
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            for headers in ({}, {"X-Homebox-As": "anna"}):
                connection = http.client.HTTPConnection("box")
                connection.sock = socket.socket(socket.AF_UNIX)
                connection.sock.connect(doors.box.socket)
                connection.request("GET", "/homebox/streams", headers=headers)
                os.write(writing, f"{connection.getresponse().status} ".encode())
        except BaseException:
            status = 1
        os._exit(status)
    os.close(writing)
    assert os.waitpid(child, 0)[1] == 0
    with os.fdopen(reading) as answers:
        assert answers.read().split() == ["200", "403"]


@pytest.mark.parametrize("name", ["../x", "a b", "", "x" * 65, "-rf"])
def test_a_name_to_speak_for_has_a_strict_form(doors: Doors, name: str) -> None:
    answer = doors.box.http.get("/homebox/streams", headers={"X-Homebox-As": name})
    assert answer.status_code == 400


def test_every_form_of_a_key_opens_tcp(doors: Doors) -> None:
    for path, headers in (
        ("/v1/models", {"Authorization": f"Bearer {doors.key}"}),
        ("/v1/models", {"authorization": f"bearer  {doors.key}"}),
        ("/v1/models", {"x-api-key": doors.key}),
        (f"/k/{doors.key}/v1/models", {}),
    ):
        assert doors.get(path, **headers).status_code == 200


def test_without_a_key_health_says_the_state_and_nothing_more(doors: Doors) -> None:
    assert doors.get("/health").json() == {"state": "ready"}
    known = doors.get("/health", **{"x-api-key": doors.key}).json()
    assert known["model"] == "tiny" and "engine_pid" not in known
    assert doors.box.http.get("/health").json()["engine_pid"]


def test_a_key_speaks_for_its_person_and_for_nobody_else(doors: Doors) -> None:
    headers = {"x-api-key": doors.key}
    body = {"messages": [{"role": "user", "content": "[[forever]][[pace=5]]"}], "detach": True}
    turn = doors.tcp.post("/homebox/ask", json=body, headers=headers).json()["turn"]
    assert next(row for row in doors.box.streams() if row["id"] == turn)["person"] == "anna"
    assert doors.get("/homebox/streams", **headers, **{"X-Homebox-As": "root"}).status_code == 403
    mine = doors.box.detach("[[forever]][[pace=5]]")
    assert doors.tcp.delete(f"/homebox/turns/{mine}", headers=headers).status_code == 403
    for one in (turn, mine):
        doors.box.http.delete(f"/homebox/turns/{one}")


def test_a_page_that_points_its_own_name_here_is_turned_away(doors: Doors) -> None:
    port = doors.box.server.addresses[0][1]
    for host, status in (
        ("evil.example", 403), ("evil.example:80", 403), ("192.168.1.77", 403), ("", 403),
        ("localhost", 200), (f"127.0.0.1:{port}", 200), ("box.example", 200), ("BOX.example:1", 200), ("[::1]:5", 200),
    ):  # fmt: skip
        assert doors.get("/v1/models", Host=host, **{"x-api-key": doors.key}).status_code == status, host


def test_no_browser_is_invited(doors: Doors) -> None:
    answer = doors.tcp.options(
        "/v1/chat/completions",
        headers={
            "Origin": "http://evil.example",
            "Access-Control-Request-Method": "POST",
            "x-api-key": doors.key,
        },
    )
    assert not any(name.startswith("access-control") for name in answer.headers)


def test_new_and_revoked_keys_count_at_once(doors: Doors) -> None:
    keys = Keys(doors.state)
    key = keys.new("leo")
    assert doors.get("/v1/models", **{"x-api-key": key}).status_code == 200
    assert keys.revoke(key.split("_")[1]).person == "leo"
    assert doors.get("/v1/models", **{"x-api-key": key}).status_code == 401


def test_the_keys_file_holds_no_key_and_is_for_its_owner_only(tmp_path: Path) -> None:
    keys = Keys(tmp_path / "state")
    made = [keys.new(person) for person in ("anna", "ben")]
    assert all(len(key) == len("hb_") + 8 + 1 + 43 and key.split("_")[2].isalnum() for key in made)
    assert keys.path.stat().st_mode & 0o777 == 0o600
    text = keys.path.read_text()
    assert not any(key.split("_")[2] in text for key in made)
    assert [found.person for key in made if (found := keys.find(key))] == ["anna", "ben"]
    with pytest.raises(NotFound):
        keys.revoke("nothing!")
    with pytest.raises(UsageError):
        keys.new("../anna")
    keys.path.write_text("{")
    with pytest.raises(BadFile):
        keys.find(made[0])


def test_tcp_stays_closed_while_nobody_has_a_key(tmp_path: Path) -> None:
    from homebox.config import Settings
    from homebox.daemon.serve import check

    with pytest.raises(UsageError, match="people keys new"):
        check(Settings(listen="127.0.0.1:0"), tmp_path)
