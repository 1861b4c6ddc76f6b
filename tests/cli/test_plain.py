"""Does a plain conversation make sense when it is read aloud, and does every command do what its line in the list says?

The conversation runs in this process, against a daemon that says what the test wants; what was written is a golden.
"""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from homebox import errors
from homebox.cli import mode, plain_commands
from homebox.cli.chat import chat
from homebox.client import commands, patience, summary
from homebox.client.state import ChatState
from homebox.wire import events
from tests.cli.conftest import Shell
from tests.cli.golden import check
from tests.client.fake_daemon import Asked, Exchange, FakeDaemon, answer, numbered

Talk = Callable[..., tuple[int, str]]


@pytest.fixture
def talk(fake: FakeDaemon, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Talk:
    """`talk("line", b"line", ..., flag=value)`: what a conversation fed with these lines ended with and wrote."""
    fake.when("GET", "/health", lambda exchange: exchange.json({"state": "ready", "model": "tiny"}))
    fake.when("POST", "/homebox/chats/", lambda exchange: exchange.json({"turn": "t-1", "chat": "c"}))
    fake.when("GET", "/homebox/turns/", lambda exchange: exchange.stream(answer("You said ", "that.")))
    for name in ("HOMEBOX_URL", "HOMEBOX_PLAIN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOMEBOX_SOCKET", str(fake.path))

    def run(*lines: str | bytes, **flags: Any) -> tuple[int, str]:
        raw = b"".join(line if isinstance(line, bytes) else line.encode() + b"\n" for line in lines)
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(raw), encoding="ascii"))
        capsys.readouterr()
        code = chat(**{"plain": True, **flags})
        return code, capsys.readouterr().out

    return run


def said(fake: FakeDaemon) -> list[Asked]:
    return [asked for asked in fake.requests("/homebox/chats") if asked.method == "POST"]


@dataclass(frozen=True)
class Story:
    """What is typed, and what the daemon says of the answer."""

    lines: tuple[str | bytes, ...]
    told: list[events.Event]
    code: int = 0
    health: dict[str, Any] | None = None


def told(*said: events.Event, reason: str = "stop", **finished: Any) -> list[events.Event]:
    return numbered([*said, answer(reason=reason, **finished)[-1]])


ASK = ("What is the capital of Portugal?",)
LISBON = events.Text(text="Lisbon.", offset=0)
HALF, REST = events.Text(text="The capital", offset=0), events.Text(text=" is Lisbon.", offset=11)
LOADING = {"state": "loading", "model": "tiny", "detail": "kernels " * 20, "progress": {"stage": "weights", "done": 31, "total": 100}}  # fmt: skip

STORIES = {
    "answered": Story(("hello", "", "and goodbye"), answer("Good ", "day.\nAnd you?")),
    "waiting": Story(
        ASK,
        told(
            events.Queued(position=3, waiting=5, ahead=("dad", "leo")),
            events.Queued(position=3, waiting=5, ahead=("dad", "leo")),
            events.Queued(position=1, waiting=3, ahead=("leo",), eta_s=4.0),
            events.Started(queue_ms=900.0),
            LISBON,
        ),
    ),
    "thinking": Story(ASK, told(events.Think(text="Portugal, "), events.Think(text="so ..."), LISBON)),
    "thinking_folded": Story(
        ("/thinking", *ASK, "/thinking"),
        told(events.Think(text="Portugal, "), events.Think(text="so ..."), LISBON),
    ),
    "stopped_from_elsewhere": Story(ASK, told(HALF, reason="cancelled", detail="stopped by dad")),
    "daemon_restarted": Story(ASK, told(HALF, reason="cancelled", detail="daemon restarted")),
    "cut_at_its_limit": Story(ASK, told(HALF, reason="length")),
    "cut_by_the_context": Story(
        ASK, told(HALF, reason="length", detail="the context of 2,048 tokens is full")
    ),
    "context_nearly_full": Story(
        ASK, told(LISBON, events.Stats(tokens=3, tok_s=None, ttft_ms=None, ctx_used=1900, ctx_max=2048))
    ),
    "engine_restarted": Story(
        ASK, told(HALF, events.EngineLost(safe_tokens=3), events.Queued(position=1, waiting=1), REST)
    ),
    "failed": Story(
        ASK,
        told(
            HALF,
            reason="error",
            error=errors.EngineFailed("it crashed twice", hint="Ask again.").as_dict(),
        ),
        code=1,
    ),
    "disk_full": Story(
        ASK,
        told(
            HALF,
            events.Notice(code="no_space", message="the answer goes on, but cannot be saved: 12 bytes free"),
            REST,
            events.Notice(code="saved", message="everything is saved again"),
        ),
    ),
    "control_characters": Story(("show \x1b[31mred",), answer("a\x1b]0;x", "\x07b\x1b[2J\u202e c")),
    "loading": Story((), [], health=LOADING),
    "help": Story(("/help",), []),
    "mistyped": Story(("/hlep", " /hlep", "/etc/hosts is what?"), answer("Text.")),
    "lines_that_are_no_text": Story(
        (b"windows\r\n", b"caf\xe9\n", b"nul\0\n", "café 日本".encode()), answer("Fine."), code=2
    ),
    "other_scripts": Story(("日本語? שלום!",), answer("日本語", " שלום 😀")),
}


@pytest.mark.parametrize("name", STORIES)
def test_it_reads_like_this(fake: FakeDaemon, talk: Talk, name: str) -> None:
    story = STORIES[name]
    if story.health:
        fake.when("GET", "/health", lambda exchange: exchange.json(story.health))
    fake.when("GET", "/homebox/turns/", lambda exchange: exchange.stream(story.told))
    code, out = talk(*story.lines)
    check(f"plain/{name}", out)
    assert code == story.code and not set(out) & set("\x1b\x07\r\u202e\0")


def test_a_line_of_a_megabyte_is_one_message(fake: FakeDaemon, talk: Talk) -> None:
    assert talk("word " * 200_000)[0] == 0
    assert said(fake)[0].body["text"] == "word " * 200_000


def test_a_refused_message_is_a_status_the_chat_goes_on_and_its_code_is_the_last_word(
    fake: FakeDaemon, talk: Talk
) -> None:
    def full_once(exchange: Exchange) -> None:
        if len(said(fake)) == 1:
            exchange.error(errors.Busy("32 requests are waiting", hint="Try again in a moment."))
        else:
            exchange.json({"turn": "t-2"})

    fake.when("POST", "/homebox/chats/", full_once)
    code, out = talk("one", "two")
    assert "status: 32 requests are waiting. Try again in a moment.\n" in out
    assert out.endswith("homebox: You said that.\n") and code == 5


def test_the_messages_of_a_session_are_one_chat_and_each_has_its_own_key(
    fake: FakeDaemon, talk: Talk
) -> None:
    fake.when("GET", "/v1/models/tiny", lambda exchange: exchange.json({}))
    talk("more", "still more", words=["Tell", "me"], model="tiny", system="Be kind.")
    asked = said(fake)
    assert [each.body["text"] for each in asked] == ["Tell me", "more", "still more"]
    assert len({each.path for each in asked}) == 1 and len({each.body["key"] for each in asked}) == 3
    assert [each.body.get("system") for each in asked] == ["Be kind.", None, None]
    assert asked[0].body["options"] == {"model": "tiny"}


def test_who_waits_for_the_engine_is_told_once(
    fake: FakeDaemon, talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "ASK_EVERY_S", 0.02)
    asked_twice = threading.Event()

    def health(exchange: Exchange) -> None:
        exchange.json(LOADING)
        if (
            len(fake.requests("/health")) > 2
        ):  # the first was for the greeting; who asks again has told what it heard
            asked_twice.set()

    def late(exchange: Exchange) -> None:
        exchange.begin()
        exchange.say(answer()[:1])
        assert asked_twice.wait(10)
        exchange.say([events.Heartbeat(), *answer("done")[1:]])
        exchange.end()

    fake.when("GET", "/homebox/turns/", late)
    fake.when("GET", "/health", health)
    assert talk("x")[1].splitlines()[2:] == ["you: x", "status: the model is loading", "homebox: done"]


# ---- which mode


@pytest.mark.parametrize(
    ("asked", "environ", "terminals", "why"),
    [
        (True, {"TERM": "xterm"}, (True, True, True), "--plain was given"),
        (False, {"TERM": "xterm", "HOMEBOX_PLAIN": "1"}, (True, True, True), "HOMEBOX_PLAIN is set"),
        (False, {"TERM": "xterm", "HOMEBOX_PLAIN": "0"}, (True, True, True), ""),
        (False, {"TERM": "xterm"}, (False, True, True), "standard input is no terminal"),
        (False, {"TERM": "xterm"}, (True, False, True), "standard output is no terminal"),
        (False, {"TERM": "xterm"}, (True, True, False), "standard error is no terminal"),
        (False, {"TERM": "dumb"}, (True, True, True), "TERM is dumb"),
        (False, {"TERM": ""}, (True, True, True), "TERM is not set"),
        (False, {}, (True, True, True), "TERM is not set"),
        (False, {"TERM": "xterm"}, (True, True, True), ""),
    ],
)
def test_plain_mode_is_chosen_when_it_is_asked_for_or_nothing_else_can_be_drawn(
    monkeypatch: pytest.MonkeyPatch,
    asked: bool,
    environ: dict[str, str],
    terminals: tuple[bool, bool, bool],
    why: str,
) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: terminals[0]))
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(isatty=lambda: terminals[1]))
    monkeypatch.setattr(sys, "stderr", SimpleNamespace(isatty=lambda: terminals[2]))
    assert mode.why_plain(asked, environ) == why


@pytest.mark.parametrize(
    "flags",
    [
        {"go_on": True, "new": True},
        {"go_on": True, "chat_id": "aa"},
        {"new": True, "chat_id": "aa"},
    ],
)
def test_flags_that_name_two_conversations_are_refused_before_anything_is_asked(
    fake: FakeDaemon, talk: Talk, flags: dict[str, Any]
) -> None:
    with pytest.raises(errors.UsageError):
        talk(**flags)
    assert fake.asked == []


# ---- commands


def test_every_command_that_needs_no_screen_is_there() -> None:
    words = {command.name for command in commands.known(on_screen=False)}
    assert set(plain_commands.DO) == words - {plain_commands.QUIT}


@pytest.fixture
def shelf(fake: FakeDaemon) -> dict[str, Any]:
    """One stored chat, `c1`, as the daemon shows it."""
    stored: dict[str, Any] = {"id": "c1", "title": "Trip to Lisbon", "created": 0.0, "updated": 0.0}
    view = stored | {
        "messages": [
            {"id": "m1", "role": "user", "content": "Where to?"},
            {"id": "m2", "role": "assistant", "content": "To Lisbon.", "parent": "m1", "turn": "t-9"},
        ]
    }
    rows = [stored | {"messages": 2}]
    fake.when("GET", "/homebox/chats?", lambda exchange: exchange.json({"chats": rows}))
    fake.when("GET", "/homebox/chats/", lambda exchange: exchange.json(view))
    for what in ("PATCH", "DELETE"):
        fake.when(what, "/homebox/chats/", lambda exchange: exchange.json({}))
    fake.when("POST", "/homebox/chats/c1/branch", lambda exchange: exchange.json({"chat": "c2"}))
    fake.when("POST", "/homebox/chats/c1/undelete", lambda exchange: exchange.json(rows[0]))
    return view


def asked_of(fake: FakeDaemon, method: str, path: str) -> list[Any]:
    return [asked.body for asked in fake.requests(path) if asked.method == method]


def test_conversations_are_listed_gone_on_with_branched_renamed_deleted_and_had_back(
    fake: FakeDaemon, shelf: dict[str, Any], talk: Talk
) -> None:
    code, out = talk(
        "/chats", "/chats c", "/title Lisboa", "/branch", "/chats c1", "/delete", "/undo", "/undo"
    )
    check("plain/conversations", out)
    assert code == 2, "there was nothing left to undo"
    assert asked_of(fake, "PATCH", "/homebox/chats/c1") == [{"title": "Lisboa"}]
    assert asked_of(fake, "POST", "/homebox/chats/c1/branch") == [{"message": "m2"}]
    assert len(asked_of(fake, "DELETE", "/homebox/chats/c1")) == 1


def test_the_last_conversation_or_a_first_one_goes_on(
    fake: FakeDaemon, shelf: dict[str, Any], talk: Talk
) -> None:
    assert "status: going on with: Trip to Lisbon (2 messages)\nyou: Where to?\n" in talk(go_on=True)[1]
    fake.when("GET", "/homebox/chats?", lambda exchange: exchange.json({"chats": []}))
    assert talk(go_on=True)[1].endswith("status: there is no conversation yet; this one is the first\n")


def test_words_are_looked_for_and_control_characters_in_titles_go(
    fake: FakeDaemon, shelf: dict[str, Any], talk: Talk
) -> None:
    hit = {"chat": "c1", "title": "Trip\x1b[2J", "snippet": "to\n[Lisbon]", "updated": 0.0, "message": "m1"}
    fake.when("GET", "/homebox/chats/search", lambda exchange: exchange.json({"found": [hit]}))
    out = talk("/search Lisbon", "/search")[1].splitlines()
    assert out[3:5] == ["status: c1  Trip: to [Lisbon]", "status: /chats ID goes on with one of them"]
    assert out[-1] == "status: write it like: /search WORDS"
    assert fake.requests("/homebox/chats/search")[0].path.endswith("?q=Lisbon")


def test_an_instruction_begins_a_conversation_or_changes_the_one_there_is(
    fake: FakeDaemon, shelf: dict[str, Any], talk: Talk
) -> None:
    out = talk("/system Be kind.", "one", "/system Be brief.", "/system", "/new", "two")[1]
    assert "status: this conversation begins with: Be kind.\n" in out
    assert "status: from the next answer on: no instruction\n" in out
    turns = [asked for asked in said(fake) if asked.path.endswith("/turns")]
    assert [asked.body.get("system") for asked in turns] == ["Be kind.", None]
    assert asked_of(fake, "PATCH", "/homebox/chats/") == [{"system": "Be brief."}, {"system": None}]
    assert len({asked.path for asked in turns}) == 2, "/new begins another"


def test_another_model_answers_from_then_on_if_it_is_served(
    fake: FakeDaemon, shelf: dict[str, Any], talk: Talk
) -> None:
    fake.when("GET", "/v1/models", lambda exchange: exchange.json({"data": [{"id": "tiny"}]}))
    fake.when("GET", "/v1/models/tiny", lambda exchange: exchange.json({"id": "tiny"}))
    fake.when("GET", "/v1/models/no", lambda exchange: exchange.error(errors.ModelNotFound("no model 'no'")))
    code, out = talk("/model", "/model no", "one", "/model tiny", "two")
    assert "status: tiny\nstatus: /model NAME lets one of them answer\n" in out
    assert "status: no model 'no'\n" in out and code == 6
    assert [asked.body["options"] for asked in said(fake)] == [{}, {"model": "tiny"}]


def test_a_file_goes_with_the_next_message_only(
    fake: FakeDaemon, shelf: dict[str, Any], talk: Talk, tmp_path: Path
) -> None:
    notes = tmp_path / "notes.md"
    notes.write_text("milk\n")
    out = talk(f"/attach {notes}", "What is missing?", "And now?", "/attach /no/such", "/attach")[1]
    assert [asked.body["text"] for asked in said(fake)] == [
        f"What is missing?\n\n```{notes}\nmilk\n```",
        "And now?",
    ]
    assert f"status: {notes} (5 B) goes with your next message\n" in out
    assert "status: /no/such: No such file or directory. Look at the name once more.\n" in out


def test_a_conversation_is_written_to_a_file_that_is_not_there_yet(
    fake: FakeDaemon, shelf: dict[str, Any], talk: Talk, tmp_path: Path
) -> None:
    fake.when("GET", "/homebox/chats/c1/export?format=md", lambda exchange: exchange.raw(b"# Trip\x1b[2J\n"))
    fake.when("GET", "/homebox/chats/c1/export?format=json", lambda exchange: exchange.raw(b'{"a": 1}'))
    lines = [f"/export {tmp_path}/trip.{form}" for form in ("md", "json", "md")]
    out = talk(*lines, "/export", chat_id="c1")[1]
    assert (tmp_path / "trip.md").read_text() == "# Trip\n"
    assert (tmp_path / "trip.json").read_text() == '{"a": 1}'
    assert f"status: {tmp_path}/trip.md is there already. Name another file.\n" in out


def test_a_summary_is_read_out_and_goes_with_the_first_message_of_a_new_conversation(
    fake: FakeDaemon, shelf: dict[str, Any], talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def summarise(daemon: object, view: Any, *, on_progress: Callable[[summary.Progress], None]) -> str:
        on_progress(summary.Progress(1, 2, ChatState()))
        on_progress(summary.Progress(1, 2, ChatState(text="more")))
        return f"Summary of {view.title}."

    monkeypatch.setattr(summary, "summarise", summarise)
    out = talk("/summarise", "go on", chat_id="c1")[1]
    assert "status: summarising: piece 1 of 2\nhomebox: Summary of Trip to Lisbon.\n" in out
    first = summary.first_message("Trip to Lisbon", "Summary of Trip to Lisbon.")
    assert said(fake)[-1].body["text"] == f"go on\n\n{first}"
    assert not said(fake)[-1].path.startswith("/homebox/chats/c1/")


@pytest.mark.parametrize("line", ["/title x", "/regenerate", "/continue", "/branch", "/export x.md", "/delete", "/summarise"])  # fmt: skip
def test_before_the_first_word_there_is_nothing_to_do_it_to(talk: Talk, line: str) -> None:
    assert talk(line)[1].endswith("status: nothing has been said in this conversation yet\n")


def test_counts_are_told_and_what_follows_quit_is_not_sent(fake: FakeDaemon, talk: Talk) -> None:
    out = talk("/stats", "one", "/stats", "/stats", "/quit", "never")[1]
    assert "status: nothing has been answered yet\n" in out
    assert out.count("status: 7 tokens in, 3 out; TTFT 0.34 s") == 2 and len(said(fake)) == 1


def test_an_instruction_given_with_a_conversation_that_is_there_changes_it(
    fake: FakeDaemon, shelf: dict[str, Any], homebox: Shell
) -> None:
    fake.when("GET", "/health", lambda exchange: exchange.json({"state": "ready", "model": "tiny"}))
    ran = homebox("chat", "--plain", "--chat", "c1", "--system", "Be brief.", stdin="/quit\n")
    assert (ran.code, ran.err) == (0, "")
    assert asked_of(fake, "PATCH", "/homebox/chats/c1") == [{"system": "Be brief."}]
