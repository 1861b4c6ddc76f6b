"""Does each way of not reaching the daemon say what to do, and does an answer survive a broken connection?"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from homebox import errors
from homebox.client import connection, stream
from homebox.client.connection import Daemon
from homebox.client.state import ChatState, ConnectionLost
from homebox.wire import events
from homebox.wire.requests import AskRequest, Message, TurnRequest
from tests.client.fake_daemon import Exchange, FakeDaemon, answer

SHORT = (0.0, 0.0, 0.0)
QUESTION = AskRequest(messages=[Message("user", "hello")])


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeDaemon]:
    with FakeDaemon(tmp_path / "api.sock") as running:
        yield running


def daemon_at(path: Path, **more: Any) -> Daemon:
    return Daemon(socket_path=path, **more)


def last(turn: str, daemon: Daemon, **more: Any) -> tuple[ChatState, list[Any]]:
    """Follow a turn to its end without pausing: its last state, and all that was yielded."""
    steps = list(stream.follow(daemon, turn, pause=lambda seconds: None, **more))
    return steps[-1][0], [event for _, event in steps]


def test_without_a_socket_the_error_says_how_to_start(tmp_path: Path) -> None:
    with pytest.raises(errors.DaemonUnreachable, match="no socket at") as caught:
        daemon_at(tmp_path / "none.sock").json("GET", "/health")
    assert caught.value.hint == "Start it with: homebox serve"


def test_a_socket_that_nobody_listens_on_says_how_to_start(tmp_path: Path) -> None:
    stale = tmp_path / "api.sock"
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(str(stale))
    with pytest.raises(errors.DaemonUnreachable, match="Connection refused"):
        daemon_at(stale).json("GET", "/health")


@pytest.mark.skipif(os.getuid() == 0, reason="root may open every socket")
def test_a_closed_socket_names_the_group_to_join(fake: FakeDaemon) -> None:
    fake.path.chmod(0)
    with pytest.raises(errors.NotAllowed) as caught:
        daemon_at(fake.path).json("GET", "/health")
    assert "gpasswd -a" in str(caught.value.hint)


def test_a_refused_socket_is_not_allowed_and_names_its_group(
    fake: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: connection._UnixConnection) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(connection._UnixConnection, "connect", refuse)
    monkeypatch.setattr(connection.grp, "getgrgid", lambda gid: SimpleNamespace(gr_name="homebox"))
    with pytest.raises(errors.NotAllowed) as caught:
        daemon_at(fake.path).json("GET", "/health")
    assert caught.value.exit_code == 7 and "sudo gpasswd -a" in str(caught.value.hint)


def test_nobody_is_told_to_join_the_group_of_an_account(
    fake: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The daemon that somebody started by hand, as root perhaps: its group opens far more than a socket."""

    def refuse(self: connection._UnixConnection) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(connection._UnixConnection, "connect", refuse)
    with pytest.raises(errors.NotAllowed) as caught:
        daemon_at(fake.path).json("GET", "/health")
    said = str(caught.value.hint)
    assert "gpasswd" not in said and "own daemon" in said and "homebox service install" in said


def test_a_path_that_no_socket_can_have_is_refused_with_both_numbers(tmp_path: Path) -> None:
    with pytest.raises(errors.UsageError, match=r"bytes long; the limit is 107"):
        daemon_at(tmp_path / ("x" * 120)).json("GET", "/health")


def test_the_daemons_own_error_arrives_whole(fake: FakeDaemon) -> None:
    busy = errors.Busy("32 are waiting", hint="Try later.", retry_after_s=4, numbers={"limit": 32})
    fake.when("POST", "/homebox/ask", lambda exchange: exchange.error(busy))
    with pytest.raises(errors.Busy) as caught:
        stream.ask(daemon_at(fake.path), QUESTION)
    assert caught.value.as_dict() == busy.as_dict()


@pytest.mark.parametrize(
    ("status", "kind"), [(404, errors.NotFound), (502, errors.HomeboxError), (503, errors.Unavailable)]
)
def test_an_error_without_words_of_ours_keeps_its_class(
    fake: FakeDaemon, status: int, kind: type[errors.HomeboxError]
) -> None:
    fake.when("GET", "/health", lambda exchange: exchange.raw(b"<html>proxy</html>", status))
    with pytest.raises(kind, match=f"HTTP status {status}"):
        daemon_at(fake.path).json("GET", "/health")


def test_somebody_else_on_the_socket_is_told_apart(fake: FakeDaemon) -> None:
    fake.when("GET", "/health", lambda exchange: exchange.raw(b"hello"))
    with pytest.raises(errors.DaemonUnreachable, match="not a homebox daemon"):
        daemon_at(fake.path).json("GET", "/health")


def test_a_daemon_that_says_nothing_is_given_up(fake: FakeDaemon) -> None:
    fake.when("GET", "/health", lambda exchange: exchange.wait_for_hang_up())
    with pytest.raises(errors.DaemonUnreachable, match=r"did not answer within 0\.2 s"):
        daemon_at(fake.path).json("GET", "/health", timeout_s=0.2)


def test_an_ask_that_breaks_off_is_an_error_not_an_end(fake: FakeDaemon) -> None:
    def half(exchange: Exchange) -> None:
        exchange.begin()
        exchange.say(answer("half of it")[:3])
        exchange.break_off()

    fake.when("POST", "/homebox/ask", half)
    seen: list[str] = []
    with stream.ask(daemon_at(fake.path), QUESTION) as reply, pytest.raises(errors.DaemonUnreachable):
        for state, _, _ in stream.read(reply):
            seen.append(state.text)
    assert seen[-1] == "half of it"


def test_an_ask_that_ends_without_its_last_event_is_an_error(fake: FakeDaemon) -> None:
    fake.when("POST", "/homebox/ask", lambda exchange: exchange.stream(answer("half")[:3]))
    with (
        stream.ask(daemon_at(fake.path), QUESTION) as reply,
        pytest.raises(errors.DaemonUnreachable, match="before the answer was finished"),
    ):
        list(stream.read(reply))


def test_hanging_up_ends_the_reading_with_what_arrived(fake: FakeDaemon) -> None:
    def slow(exchange: Exchange) -> None:
        exchange.begin()
        exchange.say(answer("so far")[:3])
        exchange.wait_for_hang_up()

    fake.when("POST", "/homebox/ask", slow)
    with stream.ask(daemon_at(fake.path), QUESTION) as reply:
        reading = stream.read(reply)
        state = next(state for state, _, _ in reading if state.text)
        threading.Timer(0.05, reply.hang_up).start()
        with pytest.raises(errors.DaemonUnreachable):
            next(reading)
    assert state.text == "so far"
    assert fake.asked[0].hung_up.wait(5)


def test_a_turn_goes_on_after_each_break_and_nothing_is_lost_or_doubled(fake: FakeDaemon) -> None:
    said = answer("one ", "two ", "three ", "four")
    connections: list[int] = []

    def two_at_a_time(exchange: Exchange) -> None:
        after = int(exchange.asked.path.partition("after=")[2])
        connections.append(after)
        exchange.begin()
        exchange.say(said[max(0, after - 1) : after + 2])  # one of them again: it must not count twice
        if after + 2 < len(said):
            exchange.break_off()
        else:
            exchange.end()

    fake.when("GET", "/homebox/turns/t-1/events", two_at_a_time)
    state, seen = last("t-1", daemon_at(fake.path), delays=SHORT)
    assert state.text == "one two three four" and state.done
    assert connections == [0, 2, 4, 6]
    assert sum(isinstance(event, ConnectionLost) for event in seen) == 3


def test_a_turn_reads_again_when_a_piece_is_missing(fake: FakeDaemon) -> None:
    said = answer("one ", "two ", "three")

    def first_with_a_hole(exchange: Exchange) -> None:
        after = int(exchange.asked.path.partition("after=")[2])
        exchange.stream(said[after:] if after else [*said[:3], *said[4:]])

    fake.when("GET", "/homebox/turns/t-1/events", first_with_a_hole)
    state, _ = last("t-1", daemon_at(fake.path), delays=SHORT)
    assert state.text == "one two three" and state.done


def test_a_daemon_that_stays_away_is_given_up_with_words(fake: FakeDaemon) -> None:
    def gone(exchange: Exchange) -> None:
        exchange.begin()
        exchange.say(answer("kept")[:3])
        exchange.break_off()

    fake.when("GET", "/homebox/turns/t-1/events", gone)
    steps = stream.follow(daemon_at(fake.path), "t-1", delays=(1.0, 2.0), pause=lambda seconds: fake.stop())
    seen: list[ChatState] = []
    with pytest.raises(errors.DaemonUnreachable, match="did not come back within 3 s"):
        for state, _ in steps:
            seen.append(state)
    assert seen[-1].text == "kept" and seen[-1].connection_lost == ConnectionLost(2.0)


def test_a_restarted_daemon_that_kept_a_little_less_takes_nothing_away(fake: FakeDaemon) -> None:
    """What the screen shows stays there; the end is the one that was kept."""

    def once(exchange: Exchange) -> None:
        if len(fake.requests("/homebox/turns")) == 1:
            exchange.begin()
            exchange.say(answer("kept", " and seen")[:4])
            exchange.break_off()
            return
        assert exchange.asked.path.endswith("?after=4")
        kept = answer(reason="cancelled", detail="daemon restarted")[-1]
        exchange.stream([events.Resync(text="kept a", seq=5), msgspec.structs.replace(kept, seq=6)])

    fake.when("GET", "/homebox/turns/t-1/events", once)
    state, _ = last("t-1", daemon_at(fake.path), delays=SHORT)
    assert state.text == "kept and seen"
    assert state.finished and state.finished.detail == "daemon restarted"


def test_a_message_is_sent_again_with_the_same_key_while_the_daemon_is_away(fake: FakeDaemon) -> None:
    fake.when("POST", "/homebox/chats/c/turns", lambda exchange: exchange.json({"turn": "t-1"}))
    fake.stop()
    waits: list[float] = []

    def pause(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 2:
            fake.start()

    made = stream.begin(
        daemon_at(fake.path),
        "/homebox/chats/c/turns",
        TurnRequest(key="k1", text="hello"),
        on_retry=lambda lost: None,
        pause=pause,
    )
    assert made.turn == "t-1" and waits == [1.0, 2.0]
    assert [asked.body["key"] for asked in fake.asked] == ["k1"]


def test_an_event_of_another_version_is_an_error_with_words(fake: FakeDaemon) -> None:
    def odd(exchange: Exchange) -> None:
        exchange.begin()
        exchange.line(b'{"event":"hologram","seq":1}\n')
        exchange.end()

    fake.when("POST", "/homebox/ask", odd)
    with (
        stream.ask(daemon_at(fake.path), QUESTION) as reply,
        pytest.raises(errors.HomeboxError, match="does not understand"),
    ):
        list(stream.read(reply))


def test_speaking_for_somebody_goes_in_a_header_and_no_name_can_break_out_of_it(fake: FakeDaemon) -> None:
    fake.when("GET", "/health", lambda exchange: exchange.json({"state": "ready"}))
    daemon_at(fake.path, speak_as="mia").json("GET", "/health")
    assert fake.asked[0].headers["X-Homebox-As"] == "mia"
    with pytest.raises(errors.UsageError):
        daemon_at(fake.path, speak_as="mia\r\nX-Evil: 1")


def test_over_tcp_the_key_is_sent_and_a_base_path_is_kept() -> None:
    seen: list[tuple[str, str | None]] = []

    class Requests(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            return

        def do_GET(self) -> None:
            seen.append((self.path, self.headers["Authorization"]))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"state": "ready"}')

    with HTTPServer(("127.0.0.1", 0), Requests) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/box/"
        assert Daemon(url=url, key="hb_abc").json("GET", "/health") == {"state": "ready"}
    assert seen == [("/box/health", "Bearer hb_abc")]


def test_over_tcp_nobody_there_points_at_the_url() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(errors.DaemonUnreachable) as caught:
            Daemon(url=url).json("GET", "/health")
    assert "HOMEBOX_URL" in str(caught.value.hint)


@pytest.mark.parametrize("url", ["homebox:8017", "ftp://box", "http://", "http://box:99999", "http://[::1"])
def test_a_url_that_cannot_be_meant_is_refused(url: str) -> None:
    with pytest.raises(errors.UsageError, match="HOMEBOX_URL"):
        Daemon(url=url)


def test_events_are_parsed_by_their_tag() -> None:
    assert stream.parse(b'{"event":"text","seq":3,"text":"x","offset":0}') == events.Text(
        text="x", offset=0, seq=3
    )
