"""Is every event one line that names its request, that nobody can forge, in the form that its reader expects?"""

from __future__ import annotations

import json
import logging
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from homebox.daemon.logs import formatter, to_journal

from .box import Box, until

NASTY = 'x\n2026-01-01T00:00:00.000 info    daemon: forged person=dad\r\x1b[2J\x9b1m\u2028\u202e\x85\udcff"'


def record(message: str, *args: Any, name: str = "homebox.daemon", **fields: Any) -> logging.LogRecord:
    made = logging.LogRecord(name, logging.WARNING, __file__, 1, message, args, None)
    made.fields = fields
    return made


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize("journal", [False, True])
@given(text=st.text(st.characters(exclude_categories=())) | st.just(NASTY))
def test_whatever_a_person_writes_is_within_one_line(form: str, journal: bool, text: str) -> None:
    line = formatter(form, journal=journal).format(record("no model %s", text, model=text))
    assert len(line.splitlines()) == 1
    assert not re.search("[\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", line)


@given(text=st.text(st.characters(exclude_categories=())))
def test_a_value_cannot_look_like_another_field(text: str) -> None:
    line = formatter("text", journal=True).format(record("refused", model=text, person="mia"))
    model = line.removeprefix("<4>daemon: refused model=").removesuffix(" person=mia")
    assert re.fullmatch(r'[\w.:/@%+,-]+|"([^"\\]|\\.)*"', model)


def test_the_journal_gets_priorities_and_no_time() -> None:
    for level, number in ((logging.INFO, 6), (logging.WARNING, 4), (logging.ERROR, 3)):
        made = record("hello", turn="t-1")
        made.levelno, made.levelname = level, logging.getLevelName(level)
        assert formatter("text", journal=True).format(made) == f"<{number}>daemon: hello turn=t-1"
        assert "at" not in json.loads(formatter("json", journal=True).format(made)[3:])
    assert re.match(
        r"\d{4}-\d\d-\d\dT[\d:.]+ warning daemon: hello$",
        formatter("text", journal=False).format(record("hello")),
    )


def test_an_exception_says_where_and_never_what_it_quotes() -> None:
    said = "\n<3>".join(["Zwetschgen", "kuchen"])

    def failing() -> None:
        try:
            raise KeyError(said)
        except KeyError as error:
            raise ValueError(said) from error

    made = record("unexpected error")
    try:
        failing()
    except ValueError:
        made.exc_info = sys.exc_info()  # type: ignore[assignment]
    for form in ("text", "json"):
        for journal in (False, True):
            line = formatter(form, journal=journal).format(made)
            assert all(part in line for part in ("KeyError", "ValueError", "in failing", "raise"))
            assert "Zwetschgen" not in line and "kuchen" not in line
            if journal:
                assert all(each.startswith("<4>") for each in line.splitlines())


def test_what_a_library_adds_after_its_first_line_is_left_out() -> None:
    said = "Task exception was never retrieved\nfuture: <Task exception=ValueError('my secret')>"
    line = formatter("text", journal=True).format(record(said, name="asyncio"))
    assert line == "<4>asyncio: Task exception was never retrieved"


def test_the_journal_is_known_by_its_file_and_not_by_an_inherited_name(tmp_path: Path) -> None:
    with (tmp_path / "journal").open("w") as file:
        status = os.fstat(file.fileno())
        named = {"JOURNAL_STREAM": f"{status.st_dev}:{status.st_ino}"}
        assert to_journal(named, file.fileno())
        assert not to_journal(named, 0) and not to_journal({}, file.fileno())
        assert not to_journal({"JOURNAL_STREAM": "1:2"}, file.fileno())


def test_a_process_whose_stderr_is_the_journal_writes_for_it() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        status = os.fstat(theirs.fileno())
        code = "from homebox.daemon import logs; import logging; logs.configure('text'); logging.getLogger('homebox.x').info('up')"
        subprocess.run(
            [sys.executable, "-c", code],
            stderr=theirs,
            env=os.environ | {"JOURNAL_STREAM": f"{status.st_dev}:{status.st_ino}"},
            check=True,
            timeout=20,
        )
        assert ours.recv(4096) == b"<6>x: up\n"


# ---- request ids


class Heard(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[dict[str, Any]] = []
        self.setFormatter(formatter("json", journal=False))

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(json.loads(self.format(record)))


@pytest.fixture
def heard() -> Iterator[list[dict[str, Any]]]:
    log, handler = logging.getLogger("homebox"), Heard()
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    yield handler.lines
    log.removeHandler(handler)
    log.setLevel(level)


def test_every_answer_names_its_request(box: Box, heard: list[dict[str, Any]]) -> None:
    answers = [
        box.http.get("/health"),
        box.http.get("/nowhere"),
        box.chat("[[say=hello]]"),
        box.chat("[[say=hello]]", stream=True),
        box.chat("hello", temperature=-1),
        box.http.put("/health"),
    ]
    names = [answer.headers["x-request-id"] for answer in answers]
    assert len(set(names)) == len(names) and all(re.fullmatch(r"req-[0-9a-f]{16}", name) for name in names)
    until(lambda: sum(line["message"] == "finished" for line in heard) == 2)
    told = {line["request"]: line["message"] for line in heard if "request" in line}
    assert told == dict(
        zip(names[1:], ["refused", "finished", "finished", "refused", "refused"], strict=True)
    )


@pytest.mark.parametrize("name", ["a", "7c0f-4e.B_2", "x" * 64])
def test_a_client_may_bring_its_own_name_for_a_request(box: Box, name: str) -> None:
    assert box.http.get("/health", headers={"X-Request-Id": name}).headers["x-request-id"] == name


@pytest.mark.parametrize("name", ["", "x" * 65, "a b", "-a", "a\u00e9", 'a"', "a=b", "a;b", "../x"])
def test_a_name_of_another_form_is_not_taken(box: Box, name: str) -> None:
    answer = box.http.get("/health", headers=httpx.Headers({"X-Request-Id": name.encode()}))
    assert answer.headers["x-request-id"].startswith("req-")


def test_each_request_of_one_connection_has_a_name_of_its_own(box: Box) -> None:
    with box.client() as client:
        first = client.get("/health", headers={"X-Request-Id": "mine"}).headers["x-request-id"]
        assert first == "mine" and client.get("/health").headers["x-request-id"] != "mine"


def test_an_answer_that_outlives_its_request_is_logged_with_it(box: Box, heard: list[dict[str, Any]]) -> None:
    body = {"messages": [{"role": "user", "content": "[[say=hello]]"}], "detach": True}
    answer = box.http.post("/homebox/ask", json=body)
    (line,) = until(lambda: [line for line in heard if line["message"] == "finished"])
    assert line["request"] == answer.headers["x-request-id"] and line["turn"] == answer.json()["turn"]
