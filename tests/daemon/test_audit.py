"""Is everything that was done on the box on record, once, and never a word of what was asked?"""

from __future__ import annotations

import json
import logging
import os
import pwd
import resource
import signal
import socket
import stat
from pathlib import Path
from typing import Any

import pytest

from homebox.cli.audit import row
from homebox.daemon.asked import Asked
from homebox.daemon.audit import REFUSALS_A_MINUTE, Audit, stamp
from homebox.daemon.identity import Person
from homebox.daemon.keys import Keys

from .box import Box, running, until
from .test_serve import served

SECRET = "Zwetschgenkuchen"


def lines(box: Box, **query: Any) -> list[dict[str, Any]]:
    response = box.http.get("/homebox/audit", params={"limit": 1000, **query})
    assert response.status_code == 200, response.text
    return response.json()["lines"]  # type: ignore[no-any-return]


def having(box: Box, **fields: Any) -> list[dict[str, Any]]:
    return [line for line in lines(box) if fields.items() <= line.items()]


def test_an_answer_is_one_line_with_who_what_and_how_much(box: Box) -> None:
    with box.client(**{"X-Homebox-As": "mia", "X-Request-Id": "abc-1"}) as mia:
        response = box.chat("[[say=hello]]", mia)
    usage = response.json()["usage"]
    (line,) = until(lambda: having(box, what="answer"))
    assert line.pop("ms") >= 0 and line.pop("at")[:2] == "20"
    assert line == {
        "what": "answer",
        "person": "mia",
        "spoken_by": os_name(),
        "turn": response.json()["id"],
        "request": "abc-1",
        "route": "POST /v1/chat/completions",
        "model": "tiny",
        "tokens_in": usage["prompt_tokens"],
        "tokens_out": usage["completion_tokens"],
        "cached": 0,
        "outcome": "stop",
        "status": 200,
    }


def os_name() -> str:
    """As whom the daemon knows this process."""
    return pwd.getpwuid(os.getuid()).pw_name


def test_a_refusal_and_a_failure_are_one_line_each(box: Box) -> None:
    assert box.chat("hello", temperature=-1).status_code == 400
    assert box.chat("[[nan]]").status_code == 500
    assert box.http.get("/nowhere").status_code == 404
    until(lambda: having(box, what="answer"))
    assert [(line["what"], line["route"], line["status"], line["code"]) for line in lines(box)] == [
        ("refused", "POST /v1/chat/completions", 400, "invalid_request"),
        ("answer", "POST /v1/chat/completions", 500, "engine_failed"),
        ("refused", "GET unknown", 404, "not_found"),
    ]


def test_a_key_is_named_by_nothing_that_opens_the_door(model: Path, tmp_path: Path) -> None:
    key = Keys(tmp_path).new("kitchen")
    with running(model, tmp_path, listen="127.0.0.1:0") as box:
        with box.far() as far:
            assert far.get(f"/k/{key}/v1/models/{SECRET}").status_code == 404
            assert far.get("/v1/models", headers={"x-api-key": key + "x"}).status_code == 401
        found = until(lambda: len(lines(box)) == 2 and lines(box))
        assert [line.get("person") for line in found] == ["kitchen", None]
        assert key.split("_")[2] not in (tmp_path / "audit.jsonl").read_text()


def test_reading_leaves_no_line_but_speaking_for_somebody_does(box: Box) -> None:
    for path in ("/health", "/v1/models", "/homebox/monitor", "/homebox/streams", "/metrics"):
        assert box.http.get(path).status_code == 200
    with box.client(**{"X-Homebox-As": "mia"}) as mia:
        mia.get("/v1/models")
    (line,) = until(lambda: lines(box))
    assert (line["person"], line["spoken_by"], line["route"]) == ("mia", os_name(), "GET /v1/models")


def test_stopping_somebody_elses_answer_is_an_act_of_its_own(box: Box) -> None:
    with box.client(**{"X-Homebox-As": "mia"}) as mia:
        turn = box.detach("[[forever]][[pace=10]]", mia)
    own = box.detach("[[forever]][[pace=10]]")
    for name in (turn, own):
        assert box.http.delete(f"/homebox/turns/{name}").status_code == 200
    (act,) = until(lambda: having(box, what="turn.cancel"))
    assert (act["person"], act["owner"], act["target"]) == (os_name(), "mia", turn)
    until(lambda: len(having(box, what="answer", outcome="cancelled")) == 2)
    assert [line["route"] for line in having(box, what="request")] == ["DELETE /homebox/turns/{turn}"]


def test_acts_of_administration_are_lines_with_their_target(box: Box) -> None:
    made = box.http.post("/homebox/keys", json={"person": "kim"}).json()
    assert box.http.put("/homebox/people/kim", json={"role": "kid"}).status_code == 200
    assert box.http.delete(f"/homebox/keys/{made['id']}").status_code == 200
    assert box.http.delete("/homebox/people/kim").status_code == 200
    assert box.http.post("/homebox/pause", json={"now": True, "reason": "a secret game"}).status_code == 200
    assert box.http.post("/homebox/resume", json={}).status_code == 200
    until(lambda: having(box, what="resume"))
    acts = [(each["what"], each.get("target")) for each in having(box, person=os_name()) if "target" in each]
    assert acts == [
        ("key.new", made["id"]),
        ("person.set", "kim"),
        ("key.revoke", made["id"]),
        ("person.remove", "kim"),
    ]
    lines = str(having(box))
    assert made["key"].split("_")[2] not in lines and "secret game" not in lines
    assert [each["what"] for each in having(box, person=os_name())][-2:] == ["pause", "resume"]


def test_the_record_is_for_administrators(box: Box) -> None:
    with box.client(**{"X-Homebox-As": "mia"}) as mia:
        assert mia.get("/homebox/audit").status_code == 403
        assert mia.get("/homebox/config").status_code == 403
    settings = box.http.get("/homebox/config").json()["settings"]
    assert settings["model"] == "tiny" and settings["drain_s"] == 1.0


def test_nothing_is_found_after_the_end_of_time(box: Box) -> None:
    assert lines(box, since=1e308) == []


@pytest.mark.parametrize("query", ["since=soon", "since=-1", "limit=0", "limit=1e9", "limit=nan"])
def test_an_impossible_question_about_the_record_is_refused(box: Box, query: str) -> None:
    assert box.http.get(f"/homebox/audit?{query}").status_code == 400


def test_no_word_of_anybody_passes_through_logs_audit_metrics_or_monitor(model: Path, tmp_path: Path) -> None:
    said = f"[[say=hello]] {SECRET}"
    with served(model, tmp_path) as process:
        http = process.http
        until(lambda: http.get("/health").json()["state"] == "ready")
        process.ask(said)
        body = {"model": "tiny", "messages": [{"role": "user", "content": said}]}
        http.post("/v1/chat/completions", json=body | {"stop": [SECRET], "user": SECRET})
        http.post("/v1/chat/completions", json=body | {"model": SECRET})
        http.post("/v1/chat/completions", json=body | {"temperature": SECRET})
        http.post(
            "/v1/chat/completions",
            content=f'{{"messages": {SECRET}',
            headers={"content-type": "application/json"},
        )
        http.post("/v1/completions", json={"model": "tiny", "prompt": said})
        http.post("/v1/completions", json={"model": "tiny", "prompt": f"[[nan]] {SECRET}"})
        http.post(f"/homebox/chats/{SECRET}/turns", json={"key": SECRET, "text": said, "system": SECRET})
        http.get(f"/homebox/chats/{SECRET}")
        http.get(f"/homebox/turns/{SECRET}/events")
        http.get(
            f"/{SECRET}?{SECRET}", headers={"X-Request-Id": f"{SECRET} x", "X-Homebox-As": f"a {SECRET}"}
        )
        smuggle(process.path, said)
        answering, _ = process.in_background(f"[[forever]][[pace=5]] {SECRET}", max_tokens=5000)
        os.kill(process.engine(), signal.SIGKILL)
        until(lambda: http.get("/health").json()["restarts"] == 1)
        with http.stream("GET", "/homebox/monitor?interval=1&history=1") as monitor:
            seen = next(monitor.iter_text())
        for path in (
            "/homebox/monitor",
            "/homebox/streams",
            "/metrics",
            "/homebox/audit?limit=10000",
            "/health",
        ):
            seen += http.get(path).text
        for row in http.get("/homebox/streams").json()["streams"]:
            http.delete(f"/homebox/turns/{row['id']}")
        answering.join()
        process.process.send_signal(signal.SIGTERM)
        out, log = process.process.communicate(timeout=20)
    written = (tmp_path / "audit.jsonl").read_text()
    assert written.count('"what":"answer"') >= 5 and written.count('"what":"refused"') >= 4
    assert log.count('"message":"finished"') >= 5 and log.count("not HTTP") == 1 and "traceback" not in log
    for place in (seen, out, log, written):
        assert SECRET not in place


def smuggle(path: Path, body: str) -> None:
    """A body longer than it says: what is left is read as the next request, and is none."""
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: box\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n"
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        client.settimeout(10)
        client.sendall(f"{head}{{}}GET /{SECRET} HTTP/1.1\r\n{body}\r\n\r\n".encode())
        while client.recv(65536):
            pass


# ---- the file


@pytest.fixture
def audit(tmp_path: Path) -> Audit:
    return Audit(tmp_path, file_bytes=4096, files=3)


ANNA = Person("anna", admin=True, local=True)


def test_the_file_is_for_its_owner_and_turns_over(audit: Audit, tmp_path: Path) -> None:
    for number in range(200):
        audit.action(ANNA, "test", target=str(number))
    audit.close()
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == ["audit.jsonl", "audit.jsonl.1", "audit.jsonl.2"]
    for file in files:
        assert stat.S_IMODE(file.stat().st_mode) == 0o600 and file.stat().st_size <= 4096
    newest = audit.read(limit=30)
    assert [line["target"] for line in newest] == [str(number) for number in range(170, 200)]
    again = Audit(tmp_path, file_bytes=4096, files=3)
    again.action(None, "daemon.start")
    again.close()
    assert again.read(limit=1)[0]["person"] == "daemon" and again.read(limit=2)[0]["target"] == "199"


def test_lines_are_found_by_person_and_time(audit: Audit) -> None:
    audit.action(ANNA, "one")
    audit.action(Person("mia", admin=False, local=True, spoken_by="anna"), "two")
    audit.action(Person("tom", admin=False, local=True), "three", owner="anna")
    audit.action(Person("tom", admin=False, local=True), "four")
    audit.close()
    assert [line["what"] for line in audit.read(person="anna")] == ["one", "two", "three"]
    assert audit.read(since=2e9) == [] and len(audit.read(since=1e9)) == 4
    assert stamp(0.5) == "1970-01-01T00:00:00.500Z"


def test_who_is_refused_without_end_cannot_push_the_acts_of_others_out(tmp_path: Path) -> None:
    audit = Audit(tmp_path, file_bytes=64 * 1024, files=2)
    audit.action(ANNA, "key.new", target="k1")
    for number in range(3000):
        audit.refused(Asked(f"r{number}", "GET unknown"), 401, "invalid_api_key")
    mia = Asked("mine", "POST /homebox/ask", Person("mia", admin=False, local=True))
    audit.refused(mia, 429, "limit_reached")
    audit.close()
    found = audit.read(limit=10_000)
    assert found[0]["target"] == "k1" and any(line.get("person") == "mia" for line in found)
    one_by_one = [line for line in found if line["what"] == "refused" and line.get("request") != "mine"]
    left_out = sum(line.get("count", 0) for line in one_by_one)
    told = len([line for line in one_by_one if "request" in line])
    assert told + left_out == 3000 and told <= 2 * REFUSALS_A_MINUTE  # a minute may turn meanwhile
    assert row(next(line for line in found if "count" in line))[-1].endswith("more, not written one by one")


def test_what_a_person_writes_cannot_make_a_line(audit: Audit, tmp_path: Path) -> None:
    hostile = 'x\n{"what":"key.new","person":"dad"}\r\x1b[2J\u2028\udcff'
    audit.action(ANNA, hostile, target=hostile)
    audit.close()
    (line,) = (tmp_path / "audit.jsonl").read_bytes().splitlines()
    assert line.isascii() and b"\x1b" not in line and json.loads(line)["target"] == hostile


def test_a_full_disk_is_said_once_and_the_record_goes_on_when_there_is_room(
    audit: Audit, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def write(count: int) -> None:
        for _ in range(count):
            audit.action(ANNA, "test")
        until(audit._lines.empty)

    write(2)
    until(lambda: (tmp_path / "audit.jsonl").stat().st_size)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    with caplog.at_level(logging.WARNING):
        try:
            room = (
                tmp_path / "audit.jsonl"
            ).stat().st_size + 20  # a line is cut short, the next have no room at all
            resource.setrlimit(resource.RLIMIT_FSIZE, (room, before[1]))
            write(5)
            until(lambda: [r for r in caplog.records if "not written" in r.message])
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
            signal.signal(signal.SIGXFSZ, ignored)
        write(3)
        audit.close()
    said = [record.message for record in caplog.records]
    assert len([line for line in said if "not written" in line]) == 1 and "File too large" in said[0]
    assert said[-1] == "audit lines are written again"
    assert len(audit.read()) == 5
