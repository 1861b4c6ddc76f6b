"""Text that wants to drive the terminal is only text, whatever command shows it and wherever it came from."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from homebox.errors import HomeboxError, from_dict
from homebox.wire import events
from tests.cli.conftest import Shell
from tests.client.fake_daemon import Exchange, FakeDaemon, answer
from tests.hostile import EVERYTHING, HOSTILE, UNDECODABLE, drives, stolen

STREAM = {
    "id": "t-91c",
    "person": "",
    "state": "decode",
    "model": "",
    "klass": "",
    "tokens_in": 1,
    "tokens_out": 1,
}


def house(fake: FakeDaemon, text: str) -> None:
    """A daemon in which everything that is text is this text."""
    row = {"title": text, "created": 0.0, "updated": 0.0, "messages": 2, "model": text, "state": "stopped"}
    said = {"content": text, "think": text, "detail": text, "model": text, "state": "stopped", "turn": "t-1"}
    messages = [{"id": "m1", "role": "user"} | said, {"id": "m2", "role": "assistant"} | said]
    hit = {"chat": "c1", "title": text, "snippet": text, "updated": 0.0, "message": "m1", "role": "user"}
    stream = STREAM | {"person": text, "state": text, "model": text, "client": text}
    snapshot = {
        "at": 0.0, "version": text, "uptime_s": 1.0, "engine": text, "engine_detail": text, "model": text,
        "weights": text, "kv": text, "attention": text,
        "devices": [{"kind": "gpu", "name": text, "driver": text}], "streams": [stream, stream | {"id": text}],
        "blocks": {"total": 9, "used": 9, "cached": 0, "free": 0, "block_size": 16,
                   "people": [{"person": text, "blocks": 9}]},
    }  # fmt: skip
    rules: dict[str, Any] = {"preamble": text, "hours": [text], "models": [text]}
    person = {"name": text, "role": "adult", "entered": True, "rules": rules, "own": rules, "admin": True}
    usage = {
        "day": text,
        "person": text,
        "requests": 1,
        "refused": 0,
        "tokens_in": 1,
        "tokens_out": 1,
        "cached": 0,
    }
    line = {
        "at": text,
        "person": text,
        "spoken_by": text,
        "what": text,
        "target": text,
        "route": text,
        "code": text,
    }
    answers: dict[str, Any] = {
        "/homebox/chats": {"chats": [{"id": "c1"} | row, {"id": f"c2{text}"} | row]},
        "/homebox/chats/search": {"found": [hit, hit | {"message": None}]},
        "/homebox/chats/c1": {"id": "c1", "title": text, "created": 0.0, "updated": 0.0, "messages": messages,
                              "system": text, "model": text},
        "/homebox/streams": {"streams": snapshot["streams"]},
        "/homebox/monitor": snapshot,
        "/homebox/me": person,
        "/homebox/people": {"people": [person]},
        "/homebox/usage": {"usage": [usage | {"counted": 1}]},
        "/homebox/audit": {"lines": [line, line | {"what": "answer"}]},
        "/v1/models": {"data": [{"id": text, "max_model_len": 99}]},
        "/health": {"state": "loading", "model": text, "detail": text, "version": text, "progress": {"stage": text}},
    }  # fmt: skip
    for path, body in answers.items():
        fake.when("GET", path, lambda exchange, body=body: exchange.json(body))  # type: ignore[misc]
    fake.when("GET", "/homebox/chats/c1/export", lambda exchange: exchange.raw(text.encode()))
    fake.when("POST", "/homebox/ask", lambda exchange: exchange.stream(told(text)))
    fake.when("DELETE", "/homebox/turns", lambda exchange: exchange.error(refusal(text)))

    def take_turn(exchange: Exchange) -> None:
        # A chat that forgot its newest answer would take it off the screen: how it ended is shown by luck only.
        asked = {"id": "m3", "role": "user", "content": exchange.asked.body["text"]}
        messages.extend((asked, {"id": "m4", "role": "assistant"} | said | {"state": "length"}))
        exchange.json(BEGUN)

    fake.when("POST", "/homebox/chats/c1/turns", take_turn)
    fake.when("GET", "/homebox/turns/t-1", lambda exchange: exchange.stream(told(text)))
    fake.when("PATCH", "/homebox/chats", lambda exchange: exchange.error(refusal(text)))


BEGUN = {"turn": "t-1", "chat": "c1", "question": "m3", "answer": "m4"}


def refusal(text: str) -> HomeboxError:
    return from_dict({"code": "busy", "message": text, "hint": text})


def told(text: str) -> list[events.Event]:
    """Waiting, thinking, a notice, the answer in small pieces, and an end that has something to say."""
    begun: list[events.Event] = [
        events.Queued(position=2, waiting=2, ahead=(text, text)),
        events.Notice(code="no_space", message=text),
        events.Started(queue_ms=1.0),
        *(events.Think(text=text[at : at + 3]) for at in range(0, len(text), 3)),
    ]
    pieces = [text[at : at + 3] for at in range(0, len(text), 3)]
    whole = [*begun, *answer(*pieces, reason="length", detail=text)[2:]]
    return [msgspec.structs.replace(event, seq=seq) for seq, event in enumerate(whole, 1)]


COMMANDS = (
    ("ask", "--think", "show", "x"),
    ("chats", "list"),
    ("chats", "show", "c1", "--thinking"),
    ("chats", "search", "x"),
    ("chats", "export", "c1"),
    ("chats", "rename", "c1", "x"),
    ("streams", "list"),
    ("streams", "cancel", "91c", "--yes"),
    ("top", "--once"),
    ("people", "list"),
    ("whoami",),
    ("usage",),
    ("audit",),
    ("status",),
    ("version",),
    ("completion", "words", "chats"),
    ("completion", "words", "streams"),
    ("completion", "words", "models"),
)  # fmt: skip
AS_JSON = (
    ("ask", "--json", "x"),
    ("ask", "--jsonl", "x"),
    ("chats", "list", "--json"),
    ("chats", "show", "c1", "--json"),
    ("chats", "search", "x", "--json"),
    ("chats", "rename", "c1", "x", "--json"),
    ("streams", "list", "--json"),
    ("top", "--json"),
    ("people", "list", "--json"),
    ("whoami", "--json"),
    ("usage", "--json"),
    ("audit", "--json"),
    ("status", "--json"),
    ("version", "--json"),
)


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_an_answer_drives_nothing(fake: FakeDaemon, homebox: Shell, text: str) -> None:
    house(fake, text)
    ran = homebox("ask", "--think", "show", "x")
    assert not drives(ran.out + ran.err) and "harmless" in ran.out and ran.err.count("harmless") >= 4


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_command_shows_what_it_is_told_as_text(
    fake: FakeDaemon, homebox: Shell, command: tuple[str, ...]
) -> None:
    house(fake, EVERYTHING)
    ran = homebox(*command)
    assert not drives(ran.out + ran.err), ran
    assert "harmless" in ran.out + ran.err or "x1b" in ran.err, ran  # it had something to show


@pytest.mark.parametrize("command", AS_JSON, ids=" ".join)
def test_json_says_all_of_it_and_drives_nothing(
    fake: FakeDaemon, homebox: Shell, command: tuple[str, ...]
) -> None:
    house(fake, EVERYTHING)
    ran = homebox(*command)
    assert not drives(ran.out + ran.err)
    lines = ran.out.splitlines()
    said = "\n".join(str(each) for each in map(json.loads, lines))
    assert lines and ("\\x1b[7777m" in said or "\x1b[7777m" in said or "rename" in command)


def test_a_terminal_gets_the_answer_and_only_our_own_sequence(fake: FakeDaemon, homebox: Shell) -> None:
    house(fake, EVERYTHING)
    terminal = homebox.terminal("ask", "--think", "show", "x")
    _, screen = terminal.end()
    assert not stolen(screen.encode(), finals="K", alone="\r") and screen.count("harmless") > 3 * len(HOSTILE)


def test_plain_mode_says_what_it_is_told_as_text(fake: FakeDaemon, homebox: Shell) -> None:
    house(fake, EVERYTHING)
    typed = (
        "/chats",
        "/search x",
        "/model",
        "/title x",
        "/system " + EVERYTHING.replace("\n", " "),
        "hello",
        "/stats",
    )
    ran = homebox("chat", "--plain", "--chat", "c1", stdin="\n".join(typed) + "\n")
    assert not drives(ran.out + ran.err)
    assert ran.out.count("harmless") > 5 * len(HOSTILE)


def test_what_somebody_wrote_begins_no_line_of_a_status(fake: FakeDaemon, homebox: Shell) -> None:
    house(fake, "harmless\nhomebox: yes\nyou: give me the key")
    ran = homebox("chat", "--plain", "--chat", "c1", stdin="/chats\n/search x\n/model\n")
    listed = ran.out.partition("/chats\n")[2]
    assert listed.count("harmless") >= 6
    assert all(line.startswith(("status: ", "you: /")) for line in listed.splitlines())


def test_names_of_files_and_words_of_the_command_line_drive_nothing(
    fake: FakeDaemon, homebox: Shell, tmp_path: Path
) -> None:
    house(fake, "x")
    name = os.fsencode(tmp_path) + b"/\x1b[7777m\x9bharmless\xff"
    Path(os.fsdecode(name)).write_bytes(b"\0\1")
    for args in (
        ("ask", "-f", os.fsdecode(name), "x"),
        ("chats", "show", f"\x1b[7777m{UNDECODABLE[:1]}harmless"),
        ("chats", "import", os.fsdecode(name)),
        ("ask", "-o", os.fsdecode(name) + "/harmless", "x"),
        ("streams", "cancel", "\x1b[7777mharmless"),
        ("\x1b[7777mharmless",),
        ("ask", "--\x1b[7777mharmless"),
    ):
        ran = homebox(*args)
        assert ran.code and "harmless" in ran.err and not drives(ran.out + ran.err), ran


def test_an_error_of_the_daemon_drives_nothing(fake: FakeDaemon, homebox: Shell) -> None:
    def refuse(exchange: Exchange) -> None:
        exchange.error(refusal(EVERYTHING))

    fake.when("GET", "/", refuse)
    fake.when("POST", "/", refuse)
    for command in (("ask", "x"), ("top", "--once"), ("chats", "list"), ("streams", "list"), ("audit",)):
        ran = homebox(*command)
        assert ran.code and "harmless" in ran.err and not drives(ran.out + ran.err), ran
