"""Two accounts of one machine: nobody reads a word of somebody else, by whatever way."""

from __future__ import annotations

import asyncio
import json
import os
import pwd
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from homebox.daemon.app import ROUTES
from homebox.daemon.chats import shelf
from homebox.daemon.chats.store import Chats, file_name
from homebox.errors import UsageError
from homebox.wire.chats import Counts

from .box import Box, read_events, until
from .test_serve import Process, served

ANNA, BEN = 54321, 54322
SECRET = "zucchini"
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become two other accounts")

Answer = tuple[int, str]
Call = Callable[..., Answer]


def as_account(uid: int, socket: Path, what: Callable[[Call], Any]) -> Any:
    """What `what(call)` returns when a process with this uid runs it; `call(method, path, body)` asks the daemon."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setgroups([])
            os.setgid(0)  # the group of the socket; the account is what counts
            os.setuid(uid)
            with httpx.Client(
                transport=httpx.HTTPTransport(uds=str(socket), verify=False),
                base_url="http://box",
                timeout=20,
            ) as http:

                def call(method: str, path: str, body: Any = None) -> Answer:
                    found = (
                        http.request(method, path, json=body)
                        if body is not None
                        else http.request(method, path)
                    )
                    return found.status_code, found.text

                os.write(writer, json.dumps(what(call)).encode())
            code = 0
        finally:
            os._exit(code)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        said = pipe.read()
    assert os.waitpid(child, 0)[1] == 0
    return json.loads(said)


@pytest.fixture
def daemon(model: Path) -> Iterator[Process]:
    folder = Path(tempfile.mkdtemp(prefix="homebox-"))
    folder.chmod(0o755)  # the accounts must reach the socket
    try:
        with served(model, folder) as process:
            until(lambda: process.http.get("/health").json()["state"] == "ready")
            yield process
    finally:
        shutil.rmtree(folder)


@needs_root
def test_neither_of_two_accounts_reads_the_other_by_any_way(daemon: Process) -> None:
    def live(call: Call) -> dict[str, str]:
        text = f"[[forever]][[pace=10]] my secret is {SECRET}"
        made = json.loads(
            call(
                "POST", "/homebox/chats/mine/turns", {"key": "k", "text": text, "options": {"max_tokens": 20}}
            )[1]
        )
        call("PUT", "/homebox/draft", {"text": SECRET})
        call("PUT", "/homebox/chats/mine/draft", {"text": SECRET})
        call("GET", f"/homebox/turns/{made['turn']}/events")
        exported = call("GET", "/homebox/chats/mine/export")[1]
        assert SECRET in exported and SECRET in call("GET", f"/homebox/chats/search?q={SECRET}")[1]
        return made | {"exported": exported}

    anna: dict[str, str] = as_account(ANNA, daemon.path, live)
    turn, question, answer = anna["turn"], anna["question"], anna["answer"]

    def pry(call: Call) -> list[tuple[str, int, str]]:
        tries: list[tuple[str, str, Any]] = [
            ("GET", "/homebox/chats/mine", None),
            ("GET", "/homebox/chats/mine?all=1", None),
            ("GET", "/homebox/chats/mine/export", None),
            ("GET", "/homebox/chats/mine/export?format=md", None),
            ("GET", "/homebox/chats/mine/draft", None),
            ("PUT", "/homebox/chats/mine/draft", {"text": "x"}),
            ("PATCH", "/homebox/chats/mine", {"title": "x"}),
            ("DELETE", "/homebox/chats/mine", None),
            ("POST", "/homebox/chats/mine/undelete", {}),
            ("PATCH", "/homebox/chats/mine", {"system": "x", "model": "tiny"}),
            ("GET", f"/homebox/chats/mine?last=1&before={answer}", None),
            ("DELETE", f"/homebox/chats/mine/messages/{answer}", None),
            ("POST", f"/homebox/chats/mine/messages/{answer}/undelete", {}),
            ("POST", "/homebox/chats/mine/regenerate", {"key": "k"}),
            ("POST", "/homebox/chats/mine/branch", {"message": answer}),
            ("GET", f"/homebox/turns/{turn}/events", None),
            ("POST", f"/homebox/turns/{turn}/continue", {"key": "k"}),
            ("POST", "/homebox/chats/new/turns", {"key": "k", "text": "x", "parent": question}),
        ]
        told = [(f"{method} {path}", *call(method, path, body)) for method, path, body in tries]
        call("POST", "/homebox/chats/own/turns", {"key": "k", "text": "[[say=hello]]"})
        tries = [
            ("POST", "/homebox/chats/own/branch", {"message": answer}),
            ("PATCH", "/homebox/chats/own", {"head": question}),
            ("GET", f"/homebox/chats/own?before={question}", None),
            ("DELETE", f"/homebox/chats/own/messages/{question}", None),
            ("POST", f"/homebox/chats/own/messages/{question}/undelete", {}),
            ("POST", "/homebox/chats/own/regenerate", {"key": "r", "message": answer}),
            ("POST", "/homebox/chats/own/turns", {"key": "s", "text": "x", "parent": answer}),
        ]
        return told + [(f"{method} {path}", *call(method, path, body)) for method, path, body in tries]

    for what, status, text in as_account(BEN, daemon.path, pry):
        assert status == 404 and SECRET not in text, (what, status, text)

    def look(call: Call) -> list[str]:
        paths = ("/homebox/chats", "/homebox/chats?deleted=1", f"/homebox/chats/search?q={SECRET}", "/homebox/draft",
                 "/homebox/monitor", "/homebox/streams")  # fmt: skip
        return [call("GET", path)[1] for path in paths]

    for text in as_account(BEN, daemon.path, look):
        assert SECRET not in text and "mine" not in text.replace('"mine":', "")

    def take(call: Call) -> Answer:
        """Her export with her ids becomes a chat of his own, and changes none of hers."""
        call("POST", "/homebox/chats/import", json.loads(anna["exported"]))
        return call("POST", "/homebox/chats/mine/turns", {"key": "k", "text": "[[say=yes]]"})

    assert as_account(BEN, daemon.path, take)[0] == 200
    status, text = as_account(ANNA, daemon.path, lambda call: call("GET", "/homebox/chats/mine?all=1"))
    assert status == 200 and [each["id"] for each in json.loads(text)["messages"]] == [question, answer]

    folder = daemon.path.parents[1] / "chats"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    files = sorted(folder.iterdir())
    assert {each.name for each in files} >= {f"uid-{ANNA}.db", f"uid-{BEN}.db", f"uid-{ANNA}.db-wal"}
    assert all(stat.S_IMODE(each.stat().st_mode) == 0o600 for each in files)

    def open_files(call: Call) -> list[str]:
        said = []
        for path in (*files, folder):
            try:
                list(path.iterdir()) if path == folder else path.read_bytes()
                said.append(f"{path} was read")
            except PermissionError:
                continue
        return said

    assert as_account(BEN, daemon.path, open_files) == []
    assert daemon.http.get("/homebox/chats").json()["chats"] == [], "nor does root, through the daemon"
    assert daemon.http.get(f"/homebox/turns/{turn}/events").status_code == 404


CHAT_ROUTES = [
    (method, path)
    for method, path, _ in ROUTES
    if path.startswith(("/homebox/chats", "/homebox/draft")) or path.endswith("/continue")
]


def test_an_administrator_who_speaks_for_somebody_sees_none_of_their_chats(box: Box) -> None:
    assert len(CHAT_ROUTES) >= 18
    with box.client(**{"X-Homebox-As": "anna"}) as http:
        for method, path in CHAT_ROUTES:
            response = http.request(method, path.format(chat="c", turn="t-1", message="m-1"), json={})
            assert response.status_code == 403, (method, path, response.text)
            assert "not look at their chats" in response.json()["error"]["message"]


def test_an_administrator_gets_counts_and_nothing_else(box: Box) -> None:
    made = box.say("c", f"[[say={SECRET}]]", "k").json()
    read_events(box.http.get(f"/homebox/turns/{made['turn']}/events").content)
    me = pwd.getpwuid(os.geteuid()).pw_name
    assert box.on_loop(lambda: box.house.chats.counts(me)) == Counts(chats=1, messages=2)
    assert box.on_loop(lambda: box.house.chats.counts("nobody")) == Counts(chats=0, messages=0)
    shown = box.http.get("/homebox/people")
    (row,) = (row for row in shown.json()["people"] if row["name"] == me)
    assert (row["chats"], row["messages"]) == (1, 2) and SECRET not in shown.text
    assert not (box.house.chats.folder / file_name("nobody")).exists()


@pytest.mark.parametrize(
    "name", ["..", ".", "a/b", "Anna", "anna", "ANNA", "a.b", "a%2eb", "ännchen", "-", "a b", "CON"]
)
def test_every_name_has_a_file_of_its_own_in_the_directory(name: str, tmp_path: Path) -> None:
    path = Chats(tmp_path).path(name)
    assert path.parent == tmp_path and path.name == path.name.lower() and path.name.isascii()
    others = {"..", ".", "a/b", "Anna", "anna", "ANNA", "a.b", "a%2eb", "ännchen", "-", "a b", "CON"} - {name}
    assert path.name not in {file_name(other).lower() for other in others}


def test_long_names_have_short_files_of_their_own() -> None:
    names = [file_name("X" * 60 + end) for end in "AB"]
    assert names[0] != names[1] and all(len(name) <= 83 and name == name.lower() for name in names)


def test_a_name_that_no_file_can_have_is_refused() -> None:
    for name in ("", "x" * 300):
        with pytest.raises(UsageError):
            file_name(name)


def test_a_backup_is_one_consistent_file_for_its_owner(tmp_path: Path) -> None:
    async def main() -> None:
        chats = Chats(tmp_path / "chats")
        await chats.write("anna", shelf.put_draft, None, "half a thought")
        assert await chats.copy_to("anna", tmp_path / "copy.db")
        assert not await chats.copy_to("ben", tmp_path / "none.db")
        await chats.close()
        again = Chats(tmp_path / "other")
        (tmp_path / "other").mkdir()
        (tmp_path / "copy.db").rename(again.path("anna"))
        assert (await again.read("anna", shelf.draft, None)).text == "half a thought"
        await again.close()

    asyncio.run(main())
    assert not (tmp_path / "none.db").exists()
