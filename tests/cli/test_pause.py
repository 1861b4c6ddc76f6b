"""Is the machine free when `homebox pause` returns, and does everybody read why, and what to do?"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from homebox.cli.pause import duration_s
from homebox.errors import NotAllowed, UsageError
from homebox.wire import events
from homebox.wire.pause import Pause
from tests.cli.conftest import Shell
from tests.client.fake_daemon import Exchange, FakeDaemon, answer, numbered
from tests.daemon.box import Box, running, until
from tests.daemon.test_serve import alive

PAUSE = Pause(by="anna", since=time.time(), reason="game\x1b[31m night")
PAUSING = {"state": "pausing", "changed": True, "live": 2, "drain_s": 20.0, "pause": PAUSE}


@pytest.fixture
def homebox(homebox: Shell, request: pytest.FixtureRequest) -> Shell:
    if "box" in request.fixturenames:
        homebox.env["HOMEBOX_SOCKET"] = request.getfixturevalue("box").socket
    return homebox


# ---- with the whole daemon


def test_an_answer_that_is_paused_in_the_middle_says_so_once_and_ends_whole(box: Box, homebox: Shell) -> None:
    whole = "hello there " * 6 + "goodbye"  # some 50 tokens: a busy machine still pauses in the middle of it
    asking = homebox.start("ask", f"[[say={whole.replace(' ', '_')}]][[pace=80]]")
    until(lambda: any(row["tokens_out"] > 3 for row in box.streams()))
    engine = box.http.get("/health").json()["engine_pid"]
    ran = homebox("pause", "--now", "--for", "1h30m", "--reason", "game night")
    assert not alive(engine), "when it returns the memory is free"
    first, second = ran.out.splitlines()
    assert ran.code == 0 and first.startswith("paused by root since ")
    assert first.endswith(": game night; homebox resume ends it")
    assert second == "1 answer held until then" and ran.err == ""

    status = homebox("status")
    assert status.code == 1 and status.out.startswith("paused  tiny  by root since ")
    assert "game night" in status.out and "homebox resume ends it" in status.out
    top = homebox("top", "--once").out
    assert " paused " in top.splitlines()[0] and "by root since" in top.splitlines()[1]
    asked, waited = homebox("ask", "hello"), homebox("status", "--wait", "5")
    for refused in (asked, waited):
        assert refused.code == 5 and "the box is paused" in refused.err and "game night" in refused.err
    assert "homebox resume" in asked.err
    greeting = homebox("chat", "--plain").out
    assert "tiny is paused by root since" in greeting and "homebox resume ends it" in greeting

    back = homebox("resume")
    assert (back.code, back.out) == (0, "resumed: starting; 1 answer will go on\n")
    out, err = asking.communicate(timeout=20)
    assert asking.returncode == 0 and out == whole + "\n"
    assert err.count("the box is paused by root") == 1 and "tokens are safe, the answer goes on after" in err
    assert homebox("resume").out == "nothing was paused: ready\n"


def test_what_scripts_read_is_json(box: Box, homebox: Shell) -> None:
    paused = json.loads(homebox("pause", "--json", "--reason", "x").out)
    assert paused["state"] == "paused" and paused["pause"]["by"] == "root" and paused["held"] == 0
    resumed = json.loads(homebox("resume", "--json").out)
    assert resumed["state"] == "starting" and resumed["changed"] is True
    until(box.ready)


def test_an_unloaded_box_is_well_and_says_that_it_sleeps(model: Path, tmp_path: Path, homebox: Shell) -> None:
    with running(model, tmp_path, idle_unload_s=0.2) as box:
        homebox.env["HOMEBOX_SOCKET"] = box.socket
        until(lambda: box.snapshot().engine == "unloaded")
        for ran in (homebox("status"), homebox("status", "--wait", "5")):
            assert ran.code == 0 and ran.out.startswith("unloaded  tiny  asleep; the next request loads")
        assert homebox("ask", "[[say=hello]]").out == "hello\n"


# ---- with a daemon that says what is told


def pausing(fake: FakeDaemon, *health: dict[str, Any]) -> None:
    left = list(health)
    fake.when("POST", "/homebox/pause", lambda exchange: exchange.json(PAUSING))
    fake.when("GET", "/health", lambda exchange: exchange.json(left.pop(0) if left[1:] else left[0], 503))


def test_who_pauses_is_told_what_is_waited_for_and_for_how_long(fake: FakeDaemon, homebox: Shell) -> None:
    dying = {"state": "paused", "engine_pid": 7, "pause": PAUSE}
    pausing(fake, {"state": "pausing", "engine_pid": 7}, dying, dying | {"engine_pid": None, "waiting": 2})
    ran = homebox("pause", "--reason", "game")
    assert ran.err == "homebox: 2 answers may finish, for up to 20 s (--now holds them)\n"
    assert ran.out.splitlines()[1] == "2 answers held until then" and "\x1b" not in ran.out
    assert fake.requests("/homebox/pause")[0].body == {"reason": "game"}
    assert len(fake.requests("/health")) == 3


def test_who_leaves_is_told_that_the_daemon_goes_on(
    fake: FakeDaemon, homebox: Shell, wait_for: Callable[[Callable[[], object]], None]
) -> None:
    pausing(fake, {"state": "pausing", "engine_pid": 7})
    process = homebox.start("pause")
    wait_for(lambda: len(fake.requests("/health")) > 1)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=10)
    assert process.returncode == 130 and "homebox resume takes it back" in err and "Traceback" not in err


def test_a_pause_that_somebody_takes_back_meanwhile_is_no_success(fake: FakeDaemon, homebox: Shell) -> None:
    pausing(fake, {"state": "pausing", "engine_pid": 7}, {"state": "ready", "engine_pid": 7})
    ran = homebox("pause", "--now")
    assert ran.code == 1 and "taken back meanwhile" in ran.err and ran.out == ""


def test_who_may_not_pause_is_told_so(fake: FakeDaemon, homebox: Shell) -> None:
    fake.when("POST", "/homebox/pause", lambda exchange: exchange.error(NotAllowed("leo may not pause")))
    ran = homebox("pause")
    assert (ran.code, ran.err) == (7, "homebox: leo may not pause\n")


@pytest.mark.parametrize("words", [["chat", "--plain"], ["ask", "why?"]])
def test_a_paused_answer_is_one_line_and_goes_on_below(
    fake: FakeDaemon, homebox: Shell, words: list[str]
) -> None:
    said = numbered(
        [
            events.Started(queue_ms=3.0),
            events.Text(text="The capital", offset=0),
            events.Paused(pause=PAUSE, safe_tokens=3),
            events.Text(text=" is Lisbon.", offset=11),
            answer()[-1],
        ]
    )

    def stream(exchange: Exchange) -> None:
        exchange.stream(said)

    fake.when("GET", "/health", lambda exchange: exchange.json({"state": "ready", "model": "tiny"}))
    fake.when("POST", "/homebox/chats/", lambda exchange: exchange.json({"turn": "t-1", "chat": "c"}))
    fake.when("GET", "/homebox/turns/", stream)
    fake.when("POST", "/homebox/ask", stream)
    ran = homebox(*words, stdin="capital?\n" if words[0] == "chat" else "")
    notice = (
        f"the box is paused {PAUSE.words()}; 3 tokens are safe, the answer goes on after homebox resume"
    ).replace("\x1b[31m", "")
    if words[0] == "chat":
        assert ran.out.splitlines()[3:] == [
            "homebox: The capital",
            f"status: {notice}",
            "homebox: is Lisbon.",
        ]
    else:
        assert (ran.out, ran.err) == ("The capital is Lisbon.\n", f"homebox: {notice}\n")


# ---- words and times


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90m", 5400), ("2h", 7200), ("1h30m", 5400), ("1.5h", 5400), ("45s", 45), ("1D", 86400)],
)
def test_a_time_is_written_as_people_write_it(text: str, seconds: float) -> None:
    assert duration_s(text) == seconds


@pytest.mark.parametrize("text", ["", "5", "h", "2 hours", "-1h", "1h-5m", "nan", "1e3s"])
def test_what_is_no_time_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError) as refused:
        duration_s(text)
    assert "1h30m" in (refused.value.hint or "")


def test_a_pause_is_told_in_the_clock_of_the_reader() -> None:
    at = time.mktime((2026, 6, 12, 20, 14, 0, 0, 0, -1))
    lasting = Pause(by="anna", since=at, until=at + 7200, reason="a game")
    assert lasting.words(at + 60) == "by anna since 20:14, until 22:14: a game"
    assert lasting.words(at + 86400).startswith("by anna since Fri 20:14, until Fri 22:14")
    assert Pause(by="anna", since=at).words(at + 30 * 86400) == "by anna since 2026-06-12 20:14"
    assert lasting.left_s(at + 7100) == 100 and lasting.left_s(at + 9999) == 0
    assert Pause(by="anna", since=at).left_s() is None
