"""Is the line-mode chat, as a process on a terminal, stoppable, and unimpressed by what the daemon goes through?"""

from __future__ import annotations

import os
import pty
import signal
import termios
import threading
from collections.abc import Callable

import pytest

from homebox import errors
from tests.cli.conftest import Shell, Terminal
from tests.client.fake_daemon import Asked, Exchange, FakeDaemon, answer


@pytest.fixture
def box(fake: FakeDaemon) -> FakeDaemon:
    """A daemon in which every message is answered with `You said: ...`."""
    fake.when("GET", "/health", lambda exchange: exchange.json({"state": "ready", "model": "tiny"}))

    def turn(exchange: Exchange) -> None:
        exchange.json({"turn": f"t-{len(fake.requests('/homebox/chats'))}", "chat": "c"})

    def reply(exchange: Exchange) -> None:
        said = fake.requests("/homebox/chats")[-1].body["text"]
        exchange.stream(answer("You said: ", said))

    fake.when("POST", "/homebox/chats/", turn)
    fake.when("GET", "/homebox/chats/", lambda exchange: exchange.json({}))
    fake.when("GET", "/v1/models/tiny", lambda exchange: exchange.json({}))
    fake.when("GET", "/homebox/turns/", reply)
    return fake


def said(fake: FakeDaemon) -> list[Asked]:
    return [asked for asked in fake.requests("/homebox/chats") if asked.method == "POST"]


def messages(fake: FakeDaemon) -> list[str]:
    return [asked.body["text"] for asked in said(fake)]


def chats(fake: FakeDaemon) -> list[str]:
    return [asked.path.split("/")[3] for asked in said(fake)]


def slow_until_cancelled(fake: FakeDaemon) -> threading.Event:
    """Let answers say a few words and then wait until they are cancelled. The event is set once they wait."""
    cancelled, waiting = threading.Event(), threading.Event()

    def reply(exchange: Exchange) -> None:
        exchange.begin()
        exchange.say(answer("Once upon", " a time")[:4])
        waiting.set()
        assert cancelled.wait(10)
        exchange.say(answer("Once upon", " a time", reason="cancelled")[4:])
        exchange.end()

    def cancel(exchange: Exchange) -> None:
        cancelled.set()
        exchange.raw(b"")

    fake.when("GET", "/homebox/turns/", reply)
    fake.when("DELETE", "/homebox/turns/", cancel)
    return waiting


def test_an_answer_goes_on_across_a_broken_connection(box: FakeDaemon, homebox: Shell) -> None:
    def broken_once(exchange: Exchange) -> None:
        after = int(exchange.asked.path.partition("after=")[2])
        exchange.begin()
        exchange.say(answer("Half", " and half")[after : None if after else 3])
        if after:
            exchange.end()
        else:
            exchange.break_off()

    box.when("GET", "/homebox/turns/", broken_once)
    ran = homebox("chat", "--plain", stdin="x\n")
    assert ran.out.splitlines()[3:] == [
        "homebox: Half",
        "status: the daemon does not answer; what arrived is safe, trying again in 1 s",
        "homebox: and half",
    ]


def test_without_a_daemon_it_is_3(homebox: Shell) -> None:
    ran = homebox("chat", stdin="hello\n")
    assert ran.code == 3 and "Start it with: homebox serve" in ran.err


def test_ctrl_c_while_it_writes_stops_in_the_daemon_keeps_the_text_and_stays(
    box: FakeDaemon, homebox: Shell
) -> None:
    waiting = slow_until_cancelled(box)
    terminal = homebox.terminal("chat", "--plain", TERM="dumb")
    terminal.until("you: ")
    terminal.type("a story\n")
    terminal.until("homebox: Once upon a time")
    assert waiting.wait(10)
    terminal.type("\x03")
    terminal.until("\nstatus: stopped by you at 3 tokens; what arrived is kept\n")
    terminal.until("you: ")
    terminal.type("\x04")
    assert terminal.end()[0] == 0
    assert [asked.method for asked in box.requests("/homebox/turns/t-1")] == ["GET", "DELETE"]


def test_a_second_ctrl_c_returns_to_the_prompt_and_leaves_the_rest_to_the_daemon(
    box: FakeDaemon, homebox: Shell, wait_for: Callable[[Callable[[], object]], None]
) -> None:
    waiting = slow_until_cancelled(box)
    box.when("DELETE", "/homebox/turns/", lambda exchange: exchange.wait_for_hang_up())
    terminal = homebox.terminal("chat", "--plain", TERM="dumb")
    terminal.until("you: ")
    terminal.type("a story\n")
    assert waiting.wait(10)
    terminal.type("\x03")
    wait_for(lambda: box.requests("/homebox/turns/")[-1].method == "DELETE")
    terminal.type("\x03")
    terminal.until("left to the daemon")
    terminal.until("you: ")
    terminal.type("/quit\n")
    assert terminal.end()[0] == 0


def test_ctrl_c_at_the_prompt_clears_the_line_and_says_how_to_leave(box: FakeDaemon, homebox: Shell) -> None:
    terminal = homebox.terminal("chat", "--plain", TERM="dumb")
    terminal.until("you: ")
    terminal.type("never mi")
    terminal.until("never mi")  # the line editor has the terminal now
    terminal.press_until("\x03", "status: Ctrl-D or /quit leaves\n(.|\n)*you: ")
    terminal.type("hello\n")
    terminal.until("homebox: You said: hello\nyou: ")
    terminal.type("\x04")
    assert terminal.end()[0] == 0 and messages(box) == ["hello"]


def test_the_line_editor_has_this_sessions_history(box: FakeDaemon, homebox: Shell) -> None:
    terminal = homebox.terminal("chat", "--plain")
    terminal.until("you: ")
    terminal.type("hello\n")
    terminal.until("homebox: You said: hello\n")
    terminal.until("you: ")
    terminal.type("\x1b[A again\n")
    terminal.until("homebox: You said: hello again\nyou: ")
    terminal.type("\x04")
    terminal.end()
    assert messages(box) == ["hello", "hello again"]


def test_on_a_dumb_terminal_and_in_the_c_locale_nothing_but_text_is_written_and_nothing_is_lost(
    box: FakeDaemon, homebox: Shell
) -> None:
    terminal = homebox.terminal("chat", TERM="dumb", LANG="C", LC_ALL="C")
    assert terminal.until("you: ").startswith(
        "status: plain mode, since TERM is dumb; /help lists the commands\n"
    )
    terminal.type("café 日本\n")
    seen = terminal.until("homebox: You said: café 日本\nyou: ")
    terminal.type("\x04")
    assert "\x1b" not in seen + terminal.end()[1]
    assert messages(box) == ["café 日本"]


def test_where_the_terminal_has_another_encoding_what_is_typed_arrives_and_what_it_lacks_is_said(
    box: FakeDaemon, homebox: Shell
) -> None:
    box.when("GET", "/homebox/turns/", lambda exchange: exchange.stream(answer("Café, 日本")))
    terminal = homebox.terminal("chat", "--plain", TERM="dumb", PYTHONIOENCODING="latin-1")
    terminal.until("this terminal's characters are iso8859-1; what it lacks is written as \\?\n(.|\n)*you: ")
    os.write(terminal._master, "café\n".encode("latin-1"))
    terminal.until(r"homebox: Caf\ufffd, \?\?\nyou: ")  # the terminal of the tests reads UTF-8
    terminal.type("\x04")
    assert terminal.end()[0] == 0 and messages(box) == ["café"]


def test_terminating_the_chat_is_143_and_no_cancel(box: FakeDaemon, homebox: Shell) -> None:
    slow_until_cancelled(box)
    process = homebox.start("chat", "--plain", "a story")
    assert process.stdout is not None
    out = ""
    while not out.endswith("Once upon a time"):
        out += process.stdout.read(1)
    process.send_signal(signal.SIGTERM)
    rest, err = process.communicate(timeout=10)
    assert process.returncode == 143 and "Traceback" not in rest + err
    assert [asked.method for asked in box.requests("/homebox/turns/")] == ["GET"]


# ---- what is typed and pasted at a terminal

LINES = "".join(f"line {number} of what was copied\n" for number in range(300))


def untouched_modes() -> list[object]:
    """How a fresh terminal is set."""
    ends = pty.openpty()
    try:
        return termios.tcgetattr(ends[1])
    finally:
        for end in ends:
            os.close(end)


def begin_story(terminal: Terminal, waiting: threading.Event) -> None:
    """Wait in the middle of an answer."""
    terminal.until("you: ")
    terminal.type("a story\n")
    terminal.until("homebox: Once upon a time")
    assert waiting.wait(10)


@pytest.mark.parametrize(
    ("term", "pasted"), [("xterm", f"\x1b[200~{LINES}\x1b[201~"), ("xterm", LINES), ("dumb", LINES)]
)
def test_a_paste_is_one_message_and_waits_for_enter(
    box: FakeDaemon, homebox: Shell, term: str, pasted: str
) -> None:
    terminal = homebox.terminal("chat", "--plain", TERM=term)
    terminal.until("you: ")
    terminal.type(pasted)
    terminal.until(r"\[300 lines pasted\]")
    assert messages(box) == []
    terminal.type(" Sum it up.")
    terminal.until(r"Sum it up\.")
    terminal.type("\n")
    terminal.until("\nyou: ")
    terminal.type("\x04")
    assert terminal.end()[0] == 0
    assert messages(box) == [LINES.rstrip("\n") + " Sum it up."]


def test_ctrl_c_stops_an_answer_also_after_a_long_paste_and_the_paste_is_kept(
    box: FakeDaemon, homebox: Shell
) -> None:
    waiting = slow_until_cancelled(box)
    terminal = homebox.terminal("chat", "--plain")
    begin_story(terminal, waiting)
    terminal.type(LINES + "\x03")
    seen = terminal.until("stopped by you at 3 tokens; what arrived is kept\n")
    assert "copied" not in seen
    terminal.until(r"you: \[300 lines pasted\]")
    assert messages(box) == ["a story"]
    terminal.press_until("\x03", "Ctrl-D or /quit leaves\nyou: ")
    terminal.type("\x04")
    assert terminal.end()[0] == 0 and messages(box) == ["a story"]


def test_a_line_typed_while_an_answer_is_written_is_unseen_there_and_sent_next(
    box: FakeDaemon, homebox: Shell
) -> None:
    go_on = threading.Event()
    waiting = threading.Event()

    def reply(exchange: Exchange) -> None:
        exchange.begin()
        exchange.say(answer("Once upon", " a time")[:4])
        waiting.set()
        assert go_on.wait(10)
        exchange.say(answer("Once upon", " a time")[4:])
        exchange.end()

    box.when("GET", "/homebox/turns/", reply)
    terminal = homebox.terminal("chat", "--plain")
    begin_story(terminal, waiting)
    terminal.type("and then?\n")
    go_on.set()
    assert terminal.until("homebox: Once").startswith("\nyou: and then?\nhomebox: Once")
    terminal.until("you: ")
    terminal.type("\x04")
    assert terminal.end()[0] == 0 and messages(box) == ["a story", "and then?"]


def test_a_line_typed_before_ctrl_c_is_offered_and_not_sent(box: FakeDaemon, homebox: Shell) -> None:
    waiting = slow_until_cancelled(box)
    terminal = homebox.terminal("chat", "--plain")
    begin_story(terminal, waiting)
    terminal.type("and than\x7f\x7fen?\n")
    terminal.type("\x03")
    terminal.until(r"kept\nyou: and then\?")
    assert messages(box) == ["a story"]
    terminal.type("!\n")
    terminal.until("homebox: Once")
    terminal.until("you: ")
    terminal.type("\x04")
    assert terminal.end()[0] == 0 and messages(box) == ["a story", "and then?!"]


def test_the_terminal_is_given_back_as_it_was(box: FakeDaemon, homebox: Shell) -> None:
    before = untouched_modes()
    terminal = homebox.terminal("chat", "--plain")
    assert "\x1b[?2004h" in terminal.until("you: ")
    assert termios.tcgetattr(terminal._master) != before
    terminal.type("\x04")
    code, rest = terminal.end()
    assert code == 0 and "\x1b[?2004l" in rest and termios.tcgetattr(terminal._master) == before


def test_a_suspended_chat_gives_the_terminal_back_and_takes_it_again(
    box: FakeDaemon, homebox: Shell, wait_for: Callable[[Callable[[], object]], None]
) -> None:
    before = untouched_modes()
    terminal = homebox.terminal("chat", "--plain")
    terminal.until("you: ")
    terminal.type("half")
    terminal.until("half")
    ours = termios.tcgetattr(terminal._master)
    terminal.process.send_signal(signal.SIGTSTP)
    wait_for(lambda: termios.tcgetattr(terminal._master) == before)
    terminal.process.send_signal(signal.SIGCONT)
    terminal.until("you: half")
    assert termios.tcgetattr(terminal._master) == ours
    terminal.type(" done\n")
    terminal.until("You said: half done\nyou: ")
    terminal.type("\x04")
    assert terminal.end()[0] == 0


def test_a_model_that_is_not_served_is_6_at_once(box: FakeDaemon, homebox: Shell) -> None:
    box.when("GET", "/v1/models/", lambda exchange: exchange.error(errors.ModelNotFound("no model 'nope'")))
    ran = homebox("chat", "-m", "nope", "--plain", stdin="hello\n")
    assert (ran.code, ran.out) == (6, "") and "no model 'nope'" in ran.err
