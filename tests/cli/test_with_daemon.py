"""Do the commands and the real daemon understand each other? The daemon is whole, its engine is scripted."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess

import pytest

from homebox.bench.household import QUESTIONS
from tests.cli.conftest import COMMAND, Shell
from tests.daemon.box import Box, until

BENCH = [COMMAND[0], "-m", "homebox.bench.household"]


@pytest.fixture
def homebox(box: Box, homebox: Shell) -> Shell:
    homebox.env |= {"HOMEBOX_SOCKET": box.socket}
    return homebox


def test_an_answer_arrives_with_its_counts(homebox: Shell) -> None:
    ran = homebox("ask", "[[say=hello_there]]", "--stats")
    assert (ran.code, ran.out) == (0, "hello there\n")
    assert re.search(r"\d+ tokens in.*, \d+ out - TTFT \d", ran.err)


def test_json_lines_and_the_one_object_tell_the_same_answer(homebox: Shell) -> None:
    whole = json.loads(homebox("ask", "[[say=one_two]]", "--json").out)
    lines = [json.loads(line) for line in homebox("ask", "[[say=one_two]]", "--jsonl").out.splitlines()]
    assert whole["text"] == "one two" == "".join(line["text"] for line in lines if line["event"] == "text")
    assert lines[-1]["event"] == "finished" and lines[-1]["usage"]["completion_tokens"] > 0


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (["x", "-m", "nope"], 6, "nope"),
        (["x", "--temp", "3"], 2, "temperature"),
        (["x", "--top-k", "-5"], 2, "top_k"),
        (["word " * 3000], 8, "This model's maximum context length is 1024 tokens"),
        (["[[refuse=context_length_exceeded]]"], 8, ""),
        (["[[die=0]]"], 1, ""),
        (["x", "--as", "mia"], 0, ""),
    ],
)
def test_the_daemons_refusals_have_their_exit_codes(
    homebox: Shell, args: list[str], code: int, says: str
) -> None:
    ran = homebox("ask", *args, "--max-tokens", "4")
    assert ran.code == code, ran.err
    assert says in ran.err and "Traceback" not in ran.err


def test_stopping_an_ask_frees_what_it_held(box: Box, homebox: Shell) -> None:
    process = homebox.start("ask", "[[forever]] [[pace=20]]")
    assert process.stdout is not None and process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=10)
    assert process.returncode == 130
    until(lambda: not box.house.book.live)


def test_the_answer_goes_on_when_the_engine_is_killed(box: Box, homebox: Shell) -> None:
    question = ["ask", "[[forever]] [[pace=15]]", "--max-tokens", "30", "--seed", "7", "--timeout", "20"]
    undisturbed = homebox(*question)
    process = homebox.start(*question)
    until(lambda: any(turn.tokens_out > 3 for turn in box.house.book.live))
    assert box.house.supervisor.pid
    os.kill(box.house.supervisor.pid, signal.SIGKILL)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out) == (0, undisturbed.out)
    assert "the engine is being restarted" in err and "the engine is being restarted" not in undisturbed.err


def test_what_runs_is_listed_and_cancelled_by_the_beginning_of_its_id(box: Box, homebox: Shell) -> None:
    turn = homebox("ask", "[[forever]] [[pace=20]]", "--detach").out.strip()
    until(lambda: any(row.state == "decode" for row in (t.row("") for t in box.house.book.live)))
    listed = homebox("streams", "list").out
    assert turn.removeprefix("t-")[:6] in listed and "decode" in listed
    assert homebox("streams", "list", "--mine").out.count("\n") == 2
    top = homebox("top", "--once").out
    assert "BATCH 1/" in top and turn.removeprefix("t-")[:6] in top
    ran = homebox("streams", "cancel", turn.removeprefix("t-")[:6])
    assert (ran.code, ran.out) == (0, f"{turn} stopped\n")
    assert not box.house.book.live


def test_a_detached_answer_is_read_while_it_runs_and_after_its_end(box: Box, homebox: Shell) -> None:
    turn = homebox("ask", "[[forever]] [[pace=60]]", "--max-tokens", "30", "--detach").out.strip()
    part = turn.removeprefix("t-")[:6]
    running = homebox("ask", "--attach", part, "--json")
    until(lambda: not box.house.book.live)
    ended = homebox("ask", "--attach", turn, "--json")
    assert running.code == ended.code == 0 and json.loads(running.out)["usage"]["completion_tokens"] == 30
    assert running.out == ended.out
    assert homebox("ask", "--attach", "t-nope").code == 6


def test_a_chat_with_a_model_that_is_not_served_is_6_before_anything_is_said(homebox: Shell) -> None:
    ran = homebox("chat", "--plain", "-m", "nope", "hello")
    assert (ran.code, ran.out) == (6, "") and "nope" in ran.err
    assert homebox("chat", "--plain", "-m", "tiny").code == 0


def test_top_as_json_is_one_snapshot(homebox: Shell) -> None:
    assert json.loads(homebox("top", "--json").out)["model"] == "tiny"


def test_a_conversation_is_remembered_within_the_session(box: Box, homebox: Shell) -> None:
    ran = homebox("chat", "--plain", stdin="[[say=first_answer]]\n[[say=second_answer]]\n/stats\n")
    assert "homebox: first answer\n" in ran.out and "homebox: second answer\n" in ran.out
    tokens_in = [int(found) for found in re.findall(r"status: (\d+) tokens in", ran.out)]
    alone = json.loads(homebox("ask", "[[say=second_answer]]", "--json").out)["usage"]["prompt_tokens"]
    assert tokens_in[0] > alone


def test_ctrl_c_in_the_chat_stops_in_the_daemon_and_the_chat_goes_on(box: Box, homebox: Shell) -> None:
    terminal = homebox.terminal("chat", "--plain", TERM="dumb")
    terminal.until("you: ")
    terminal.type("[[forever]] [[pace=20]]\n")
    terminal.until("homebox: .")
    terminal.type("\x03")
    terminal.until(r"status: stopped by you at \d+ tokens; what arrived is kept\nyou: ")
    until(lambda: not box.house.book.live)
    terminal.type("[[say=still_here]]\n")
    terminal.until("homebox: still here\nyou: ")
    terminal.type("\x04")
    assert terminal.end()[0] == 0


def test_status_and_version_know_the_daemon(homebox: Shell) -> None:
    assert homebox("status", "--wait", "10").out.startswith("ready  tiny")
    assert json.loads(homebox("version", "--json").out)["daemon"] == "0.1.0"


def test_the_household_shows_four_labelled_answers_and_the_table(homebox: Shell) -> None:
    done = subprocess.run(
        [*BENCH, "--max-tokens", "24"],
        env=homebox.env,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    for person in QUESTIONS:
        assert re.search(rf"^{person:4} \| +\S", done.stdout, re.M), done.stdout
        row = re.search(rf"^{person:8} +(\d+) .*\| +(\d+) ", done.stdout, re.M)
        assert row and 0 < int(row[1]) == int(row[2]) <= 24
    assert re.search(r"^all +(\d+) +in \S+ s +\S+ \| +\1 in \S+ s", done.stdout, re.M)
    assert re.search(r"^together / one at a time: \S+ times", done.stdout, re.M)
    assert "not the same text" not in done.stdout
