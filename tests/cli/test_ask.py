"""Does `homebox ask` put the answer on standard output, everything else on standard error, and end with the right code?"""

from __future__ import annotations

import json
import os
import pwd
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from homebox import errors
from homebox.cli.main import main
from homebox.client.phrases import engine_line
from homebox.wire import events
from tests.cli.conftest import COMMAND, Ran, Shell
from tests.cli.golden import check
from tests.client.fake_daemon import Exchange, FakeDaemon, answer, numbered


def asked(fake: FakeDaemon) -> dict[str, object]:
    return fake.requests("/homebox/ask")[-1].body


def prompt(fake: FakeDaemon) -> str:
    return asked(fake)["messages"][-1]["content"]  # type: ignore[index]


def begun(exchange: Exchange) -> None:
    """The first half of an answer, then silence until the client hangs up."""
    exchange.begin()
    exchange.say(answer("The sky", " is")[:4])
    exchange.wait_for_hang_up()


# ---- the answer


def test_standard_output_is_the_answer_with_a_final_newline_and_nothing_else_is_said(
    fake: FakeDaemon, homebox: Shell
) -> None:
    fake.answers("The sky ", "is blue.")
    ran = homebox("ask", "Why?")
    assert (ran.code, ran.out, ran.err) == (0, "The sky is blue.\n", "")


@pytest.mark.parametrize("flags", [[], ["--no-stream"]])
def test_an_answer_that_ends_in_a_newline_gets_no_second_one(
    fake: FakeDaemon, homebox: Shell, flags: list[str]
) -> None:
    fake.answers("one\n", "two\n")
    assert homebox("ask", "x", *flags).out == "one\ntwo\n"


def test_words_are_the_instruction_and_standard_input_is_the_document_below(
    fake: FakeDaemon, homebox: Shell
) -> None:
    fake.answers("ok")
    homebox("ask", "Summarise", "this", stdin="Dear all,\n  hello.\n")
    assert prompt(fake) == "Summarise this\n\nDear all,\n  hello.\n"


def test_a_document_alone_is_sent_unchanged(fake: FakeDaemon, homebox: Shell) -> None:
    fake.answers("ok")
    homebox("ask", stdin="  just this \n\n")
    assert prompt(fake) == "  just this \n\n"


def test_several_documents_carry_their_names(fake: FakeDaemon, homebox: Shell, tmp_path: Path) -> None:
    fake.answers("ok")
    (tmp_path / "a.txt").write_text("A")
    (tmp_path / "b.txt").write_text("B")
    homebox("ask", "-f", str(tmp_path / "a.txt"), "-f", str(tmp_path / "b.txt"), "Compare", stdin="C")
    fenced = [
        f"```{name}\n{text}\n```" for name, text in ((f"{tmp_path}/a.txt", "A"), (f"{tmp_path}/b.txt", "B"))
    ]
    assert prompt(fake) == "\n\n".join(["Compare", *fenced, "```standard input\nC\n```"])


def test_all_options_arrive(fake: FakeDaemon, homebox: Shell, tmp_path: Path) -> None:
    fake.answers("ok")
    (tmp_path / "how.txt").write_text("Be brief.")
    flags = "--max-tokens 9 --temp 0.5 --top-p 0.9 --top-k 40 --min-p 0.1 --seed 7 --priority low -m tiny"
    ran = homebox(
        "ask",
        "x",
        *flags.split(),
        "--stop",
        "END",
        "--stop",
        "\n\n",
        "-s",
        f"@{tmp_path}/how.txt",
        "--as",
        "mia",
    )
    assert ran.code == 0
    assert asked(fake) == {
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "x"}],
        "options": {
            "model": "tiny",
            "max_tokens": 9,
            "temperature": 0.5,
            "top_p": 0.9,
            "top_k": 40,
            "min_p": 0.1,
            "seed": 7,
            "stop": ["END", "\n\n"],
            "priority": "low",
        },
    }
    assert fake.requests("/homebox/ask")[0].headers["X-Homebox-As"] == "mia"


def test_escape_sequences_in_the_answer_do_not_reach_standard_output_and_that_is_said(
    fake: FakeDaemon, homebox: Shell
) -> None:
    fake.answers("safe\x1b]0;ow", "ned\x07 text\r\n")
    ran = homebox("ask", "x")
    assert ran.out == "safe text\n"
    assert "11 terminal control characters were left out" in ran.err


def test_output_is_utf8_in_the_c_locale(fake: FakeDaemon, homebox: Shell) -> None:
    fake.answers("Grüße 日本 😀")
    assert homebox("ask", "x", LANG="C", LC_ALL="C", PYTHONUTF8="0").out == "Grüße 日本 😀\n"


def test_a_file_gets_the_answer_and_standard_output_nothing(
    fake: FakeDaemon, homebox: Shell, tmp_path: Path
) -> None:
    fake.answers("for the ", "file")
    ran = homebox("ask", "x", "-o", str(tmp_path / "answer.txt"))
    assert (ran.code, ran.out) == (0, "") and (tmp_path / "answer.txt").read_text() == "for the file\n"


def test_a_file_that_cannot_be_written_is_found_out_before_anything_is_asked(
    fake: FakeDaemon, homebox: Shell, tmp_path: Path
) -> None:
    ran = homebox("ask", "x", "-o", str(tmp_path / "no" / "such" / "folder.txt"))
    assert ran.code == 2 and "cannot write to" in ran.err and fake.asked == []


def test_a_failed_answer_leaves_the_file_as_it_was(fake: FakeDaemon, homebox: Shell, tmp_path: Path) -> None:
    (tmp_path / "answer.txt").write_text("yesterday's")
    fake.when("POST", "/homebox/ask", lambda exchange: exchange.error(errors.Busy("full")))
    assert homebox("ask", "x", "-o", str(tmp_path / "answer.txt")).code == 5
    assert (tmp_path / "answer.txt").read_text() == "yesterday's"


def test_thoughts_are_hidden_unless_asked_for_and_then_on_standard_error(
    fake: FakeDaemon, homebox: Shell
) -> None:
    said = numbered([events.Think(text="Hm, "), events.Think(text="so."), *answer("Yes.")[2:]])
    fake.when("POST", "/homebox/ask", lambda exchange: exchange.stream(said))
    assert homebox("ask", "x").err == ""
    shown = homebox("ask", "x", "--think", "show")
    assert (shown.out, shown.err) == ("Yes.\n", "thinking: Hm, so.\n")


def test_stats_are_on_standard_error(fake: FakeDaemon, homebox: Shell) -> None:
    fake.answers("x")
    assert homebox("ask", "x", "--stats").err == (
        "homebox: 7 tokens in, 3 out - TTFT 0.34 s - 20.0 tok/s - queued 0.0 s - 1.5 s in all - stop\n"
    )


def test_an_answer_cut_at_its_limit_says_so_unless_quiet(fake: FakeDaemon, homebox: Shell) -> None:
    fake.answers("and so", reason="length")
    ran = homebox("ask", "x", "--max-tokens", "3")
    assert ran.code == 0 and "ended at its limit of 3 tokens (--max-tokens)" in ran.err
    for shorter in (["--max-tokens", "50"], []):  # somebody else set it: no flag would lift it
        ran = homebox("ask", "x", *shorter)
        assert (
            "its limit of 3 tokens (homebox whoami shows yours)" in ran.err and "--max-tokens" not in ran.err
        )
    assert homebox("ask", "x", "--max-tokens", "3", "-q").err == ""


def test_an_engine_restart_is_said_and_the_answer_goes_on(fake: FakeDaemon, homebox: Shell) -> None:
    said = answer("first ", "second")
    said.insert(3, events.EngineLost(safe_tokens=2))
    fake.when("POST", "/homebox/ask", lambda exchange: exchange.stream(numbered(said)))
    ran = homebox("ask", "x")
    assert ran.out == "first second\n" and "2 tokens are safe, the answer goes on" in ran.err


def test_detached_the_turn_goes_on_and_its_id_is_printed(fake: FakeDaemon, homebox: Shell) -> None:
    fake.when("POST", "/homebox/ask", lambda exchange: exchange.json({"turn": "t-42", "chat": None}))
    ran = homebox("ask", "x", "--detach")
    assert (ran.code, ran.out) == (0, "t-42\n") and "homebox streams cancel t-42" in ran.err
    assert asked(fake)["detach"] is True


def test_a_detached_answer_is_read_from_its_start_and_leaving_does_not_stop_it(
    fake: FakeDaemon, homebox: Shell
) -> None:
    fake.when("GET", "/homebox/streams", lambda exchange: exchange.json({"streams": []}))
    fake.when(
        "GET", "/homebox/turns/t-42/events", lambda exchange: exchange.stream(answer("The sky", " is."))
    )
    assert homebox("ask", "--attach", "t-42").out == "The sky is.\n"
    assert json.loads(homebox("ask", "--attach", "t-42", "--json").out)["text"] == "The sky is."
    fake.when("GET", "/homebox/turns/t-42/events", begun)
    process = homebox.start("ask", "--attach", "t-42")
    assert process.stdout is not None and process.stdout.read(10) == "The sky is"
    process.send_signal(signal.SIGINT)
    assert "the daemon goes on with it" in process.communicate(timeout=10)[1] and process.returncode == 130
    assert {asked.method for asked in fake.asked} == {"GET"}


def test_an_answer_that_the_daemon_does_not_have_is_6(fake: FakeDaemon, homebox: Shell) -> None:
    fake.when("GET", "/homebox/streams", lambda exchange: exchange.json({"streams": []}))
    ran = homebox("ask", "--attach", "../streams", "--json")
    assert ran.code == 6 and json.loads(ran.out)["error"]["code"] == "not_found"


# ---- the place in the queue


def queued_then_answered(exchange: Exchange) -> None:
    said = [
        events.Queued(position=3, waiting=5, ahead=("dad", "leo", "dad")),
        events.Queued(position=1, waiting=2),
        *answer("done")[1:],
    ]
    exchange.stream(numbered(said))


def test_who_really_waits_is_told_the_place(fake: FakeDaemon, homebox: Shell) -> None:
    fake.when("POST", "/homebox/ask", queued_then_answered)
    ran = homebox("ask", "x")
    assert ran.out == "done\n"
    assert ran.err == "homebox: waiting: place 3 of 5 - ahead: dad, leo\nhomebox: waiting: place 1 of 2\n"


def test_on_a_terminal_the_place_is_one_line_that_goes_away(fake: FakeDaemon, homebox: Shell) -> None:
    fake.when("POST", "/homebox/ask", queued_then_answered)
    reader, writer = os.pipe()
    terminal = homebox.terminal("ask", "x", stdout=writer)
    os.close(writer)
    code, screen = terminal.end()
    with os.fdopen(reader) as out:
        assert (code, out.read()) == (0, "done\n")
    assert "\r\x1b[Kwaiting: place 3 of 5 - ahead: dad, leo\r\x1b[Kwaiting: place 1 of 2" in screen
    assert screen.endswith("\r\x1b[K")


def test_of_oneself_ahead_it_says_you(fake: FakeDaemon, homebox: Shell) -> None:
    me = pwd.getpwuid(os.getuid()).pw_name
    said = [events.Queued(position=3, waiting=3, ahead=("leo", me)), *answer("done")[1:]]
    fake.when("POST", "/homebox/ask", lambda exchange: exchange.stream(numbered(said)))
    assert homebox("ask", "x").err == "homebox: waiting: place 3 of 3 - ahead: leo, you\n"
    assert f"ahead: leo, {me}" in homebox("ask", "x", "--as", "mia").err


def test_who_waits_for_the_engine_is_told_in_one_line_and_on_a_terminal_every_step_of_it(
    fake: FakeDaemon, homebox: Shell
) -> None:
    told = threading.Event()

    def health(exchange: Exchange) -> None:
        progress = {"stage": "weights", "done": len(fake.requests("/health")), "total": 10}
        exchange.json({"state": "loading", "progress": progress}, 503)
        if len(fake.requests("/health")) % 2 == 0:  # who asks again has shown what it heard
            told.set()

    def late(exchange: Exchange) -> None:
        exchange.begin()
        exchange.say(answer()[:1])
        assert told.wait(10)
        exchange.say([events.Heartbeat(), *answer("done")[1:]])
        exchange.end()

    fake.when("GET", "/health", health)
    fake.when("POST", "/homebox/ask", late)
    ran = homebox("ask", "x")
    assert (ran.out, ran.err) == ("done\n", "homebox: the model is loading\n")
    told.clear()
    reader, writer = os.pipe()
    terminal = homebox.terminal("ask", "x", stdout=writer)
    os.close(writer)
    assert "the model is loading (weights " in terminal.end()[1]
    os.close(reader)


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ("starting", "the model is loading"),
        ("restarting", "the engine is being restarted"),
        ("waiting for the GPU", "the engine waits for its GPU"),
        ("failed", "the engine does not start; homebox doctor says more"),
        ("ready", ""),
        ("paused", ""),
    ],
)
def test_what_is_waited_for_besides_the_queue_has_words(state: str, said: str) -> None:
    assert engine_line({"state": state}) == said


# ---- JSON


def test_json_is_exactly_one_object_with_the_exact_text(fake: FakeDaemon, homebox: Shell) -> None:
    fake.answers("raw \x1b[31m", "\u202e text")
    ran = homebox("ask", "x", "--json")
    assert ran.out.count("\n") == 1 and "\x1b" not in ran.out and "\u202e" not in ran.out
    assert json.loads(ran.out) == {
        "text": "raw \x1b[31m\u202e text",
        "thinking": None,
        "reason": "stop",
        "usage": {"prompt_tokens": 7, "completion_tokens": 3, "cached_tokens": 0},
        "timing": {"queue_ms": 12.0, "ttft_ms": 340.0, "total_ms": 1500.0, "tok_s": 20.0},
        "error": None,
    }


def test_jsonl_is_the_daemons_events(fake: FakeDaemon, homebox: Shell) -> None:
    fake.answers("a", "b")
    ran = homebox("ask", "x", "--jsonl")
    lines = [json.loads(line) for line in ran.out.splitlines()]
    assert [line["event"] for line in lines] == ["queued", "started", "text", "text", "finished"]
    refused = homebox("ask", "x", "--jsonl", HOMEBOX_SOCKET="/nowhere")
    assert json.loads(refused.out)["error"]["code"] == "daemon_unreachable"


# ---- exit codes

Handler = Callable[[Exchange], None]


def refused(error: errors.HomeboxError) -> Handler:
    return lambda exchange: exchange.error(error)


def answered(*pieces: str, **finished: Any) -> Handler:
    return lambda exchange: exchange.stream(answer(*pieces, **finished))


def broken_off(exchange: Exchange) -> None:
    exchange.begin()
    exchange.say(answer("The sky")[:3])
    exchange.break_off()


CRASHED = errors.EngineFailed("it crashed twice").as_dict()
BUSY = errors.Busy("anna has 32 requests waiting; the queue holds 32 a person", hint="Wait.", retry_after_s=3)
LONG = errors.ContextLengthExceeded("This model's maximum context length is 2048 tokens; this has 5000")
# Every row of the table of exit codes: what is typed, and what the daemon does.
OUTCOMES: list[tuple[list[str], Handler | None]] = [
    (["Why?"], answered("The sky ", "is blue.")),
    (["Why?", "--max-tokens", "3"], answered("The sky", reason="length")),
    (["Why?"], answered("The sky", reason="error", error=CRASHED)),
    (["Why?"], refused(errors.EngineFailed("the engine died twice on this request"))),
    (["Why?"], refused(errors.InvalidRequest("top_k is -1; it must be at least 0", param="top_k"))),
    ([], None),
    (["Why?", "--temp", "warm"], None),
    (["Why?", "--temp", "nan"], None),
    (["Why?", "-o", "/no/such/folder/x"], None),
    (["Why?", "--bogus"], None),
    (["Why?", "--chat", "aa", "-c"], None),
    (["--attach", "t-1", "-c"], None),
    (["Why?", "-c", "-s", "Be brief."], None),
    (["Why?"], None),
    (["Why?"], broken_off),
    (["Why?", "--timeout", "0.2"], begun),
    (["Why?"], refused(BUSY)),
    (["Why?"], refused(errors.Unavailable("the engine failed five times"))),
    (["Why?", "-m", "nope"], refused(errors.ModelNotFound("no model 'nope'", hint="homebox models list"))),
    (["Why?", "--as", "mia"], refused(errors.NotAllowed("only an administrator speaks for others"))),
    (["Why?"], refused(LONG)),
    (["Why?"], answered("The sky", reason="cancelled", detail="stopped by dad")),
]


@pytest.fixture
def ran_here(
    fake: FakeDaemon, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., Ran]]:
    """The command in this process: for many runs whose promise is what is written and the exit code."""
    for name in [name for name in os.environ if name.startswith("HOMEBOX_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOMEBOX_SOCKET", str(fake.path))
    monkeypatch.setenv("HOME", str(fake.path.parent))
    before = signal.getsignal(signal.SIGTERM)
    with Path(os.devnull).open() as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)

        def run_here(*args: str) -> Ran:
            monkeypatch.setattr(sys, "argv", ["homebox", *args])
            capsys.readouterr()
            with pytest.raises(SystemExit) as leaving:
                main()
            return Ran(int(str(leaving.value.code)), *capsys.readouterr())

        yield run_here
    signal.signal(signal.SIGTERM, before)


def test_every_outcome_has_its_exit_code_and_the_form_that_was_asked_for(
    fake: FakeDaemon, ran_here: Callable[..., Ran]
) -> None:
    seen = []
    for args, handler in OUTCOMES:
        fake.stop()
        if handler is not None:
            fake.start()
            fake.when("POST", "/homebox/ask", handler)
        codes = set()
        for form in ([], ["--json"], ["--jsonl"]):
            ran = ran_here("ask", *args, *form)
            codes.add(ran.code)
            seen += [
                f"$ homebox {shlex.join(['ask', *args, *form])}",
                *(f"  {line}" for line in ran.out.splitlines()),
            ]
            seen += [*(f"! {line}" for line in ran.err.splitlines()), f"= {ran.code}", ""]
            if form:
                last = json.loads(ran.out.splitlines()[-1])
                assert "error" in last or last["event"] == "finished"
                assert form == ["--jsonl"] or len(ran.out.splitlines()) == 1
            assert "Traceback" not in ran.err
        assert len(codes) == 1, args
    check("ask/outcomes", "\n".join(seen).replace(str(fake.path), "SOCKET"))


def test_the_deadline_is_4_prints_what_arrived_and_hangs_up(fake: FakeDaemon, homebox: Shell) -> None:
    fake.when("POST", "/homebox/ask", begun)
    ran = homebox("ask", "x", "--timeout", "0.5")
    assert (ran.code, ran.out) == (4, "The sky is\n") and "not finished within 0.5 s" in ran.err
    assert fake.asked[0].hung_up.wait(5)


def test_the_deadline_counts_also_before_the_first_byte(fake: FakeDaemon, homebox: Shell) -> None:
    fake.when("POST", "/homebox/ask", lambda exchange: exchange.wait_for_hang_up())
    ran = homebox("ask", "x", "--timeout", "0.3")
    assert ran.code == 4 and "not finished within 0.3 s" in ran.err


@pytest.mark.parametrize(
    ("number", "code", "mode"),
    [
        (signal.SIGINT, 130, "stream"),
        (signal.SIGINT, 130, "--no-stream"),
        (signal.SIGINT, 130, "--json"),
        (signal.SIGTERM, 143, "stream"),
    ],
)
def test_a_signal_stops_hangs_up_and_prints_what_arrived(
    fake: FakeDaemon, homebox: Shell, number: signal.Signals, code: int, mode: str
) -> None:
    def half(exchange: Exchange) -> None:
        exchange.begin()
        exchange.say(answer("The sky", " is")[:4])
        exchange.say([events.EngineLost(safe_tokens=2, seq=5)])  # every mode tells this on standard error
        exchange.wait_for_hang_up()

    fake.when("POST", "/homebox/ask", half)
    process = homebox.start("ask", "x", "--stats", *([] if mode == "stream" else [mode]))
    assert process.stderr is not None and "2 tokens are safe" in process.stderr.readline()
    process.send_signal(number)
    out, err = process.communicate(timeout=10)
    assert process.returncode == code and "Traceback" not in err
    assert (json.loads(out)["text"] if mode == "--json" else out) == (
        "The sky is" if mode == "--json" else "The sky is\n"
    )
    assert fake.asked[0].hung_up.wait(5)


def test_a_second_ctrl_c_does_not_wait_for_the_daemon(
    fake: FakeDaemon, homebox: Shell, wait_for: Callable[[Callable[[], object]], None]
) -> None:
    row = {"id": "c1", "title": "", "created": 0.0, "updated": 0.0, "messages": 2}
    fake.when("GET", "/homebox/chats?", lambda exchange: exchange.json({"chats": [row]}))
    fake.when("POST", "/homebox/chats/c1/turns", lambda exchange: exchange.json({"turn": "t-1"}))
    fake.when("GET", "/homebox/turns/t-1/events", begun)
    fake.when("DELETE", "/homebox/turns/t-1", lambda exchange: exchange.wait_for_hang_up())
    process = homebox.start("ask", "-c", "x")
    assert process.stdout is not None and process.stdout.read(10) == "The sky is"
    process.send_signal(signal.SIGINT)
    wait_for(lambda: fake.asked[-1].method == "DELETE")
    process.send_signal(signal.SIGINT)
    assert process.wait(10) == -signal.SIGINT


def test_a_reader_that_leaves_cancels_without_a_word_and_ends_with_0(
    fake: FakeDaemon, homebox: Shell
) -> None:
    """Like `homebox ask ... | head -1`."""

    def lines(exchange: Exchange) -> None:
        exchange.begin()
        said = answer(*(f"line {number}\n" for number in range(2000)))
        try:
            exchange.say(said[:-1])
        except OSError:
            exchange.asked.hung_up.set()

    fake.when("POST", "/homebox/ask", lines)
    writer = homebox.start("ask", "x")
    head = subprocess.run(
        ["head", "-1"], stdin=writer.stdout, capture_output=True, text=True, timeout=10, check=True
    )
    assert writer.stdout is not None
    writer.stdout.close()
    assert writer.wait(10) == 0
    assert head.stdout == "line 0\n"
    assert writer.stderr is not None and writer.stderr.read() == ""
    assert fake.asked[0].hung_up.wait(5)


# ---- what cannot be meant


@pytest.mark.parametrize(
    ("args", "stdin", "says"),
    [
        ([], "", "there is nothing to ask"),
        (["x", "-f", "/no/such/file"], "", "/no/such/file: No such file"),
        (["x", "-s", "@/no/such/file"], "", "/no/such/file"),
        (["x"], b"\xff\xfe\x00", "standard input is not UTF-8 text (byte 0 is 0xff)"),
        (["x"], b"\xff", "iconv -f LATIN1 -t UTF-8 FILE | homebox ask\n"),
        (["x"], b"a\x00b", "holds a NUL at character 1"),
        (["x", "--temp", "nan"], "", "--temp nan"),
        (["x", "--top-p", "inf"], "", "--top-p inf"),
        (["x", "--max-tokens", "99999999999999999999"], "", "does not fit into 64 bits"),
        (["x", "--max-tokens", "many"], "", "'many' is not a whole number"),
        (["x", "--timeout", "0"], "", "--timeout 0"),
        (["x", "--json", "--jsonl"], "", "--json and --jsonl"),
        (["x", "--think", "maybe"], "", "'maybe' is not one of: show, hide"),
        (["x", "--as", "a b"], "", "is not a person's name"),
    ],
)
def test_what_cannot_be_meant_is_2_and_nothing_is_asked(
    fake: FakeDaemon, homebox: Shell, args: list[str], stdin: str | bytes, says: str
) -> None:
    ran = homebox("ask", *args, stdin=stdin)
    assert ran.code == 2 and says in ran.err and "Traceback" not in ran.err
    assert fake.asked == []


def test_words_that_are_not_utf8_are_refused_with_words(fake: FakeDaemon, homebox: Shell) -> None:
    done = subprocess.run(
        [*(part.encode() for part in COMMAND), b"ask", b"caf\xe9"],
        env=homebox.env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=10,
        check=False,
    )
    assert done.returncode == 2 and b"UTF-8" in done.stderr and b"Traceback" not in done.stderr
