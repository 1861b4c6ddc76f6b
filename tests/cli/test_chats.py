"""Do people find, keep and take along what they have said? The daemon is whole, its engine is scripted."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from homebox.cli import columns
from tests.cli.conftest import Shell
from tests.daemon.box import Box, until
from tests.daemon.test_serve import served


@pytest.fixture
def homebox(box: Box, homebox: Shell) -> Shell:
    homebox.env |= {"HOMEBOX_SOCKET": box.socket}
    return homebox


def said(box: Box, chat: str, text: str) -> dict[str, Any]:
    made: dict[str, Any] = box.say(chat, text, key=f"k-{text}").json()
    box.events(made["turn"])
    return made


def test_conversations_are_listed_shown_and_found_by_words_and_by_short_ids(box: Box, homebox: Shell) -> None:
    assert "no conversation yet" in homebox("chats", "list").err
    said(box, "aa11", "[[say=the_soup]] what is for dinner?")
    said(box, "aa22", "[[say=blue]] what colour is the sky?")
    header, *rows = homebox("chats", "list").out.splitlines()
    assert header.split() == ["ID", "CHANGED", "SAID", "TITLE"]
    assert [row.split()[0] for row in rows] == ["aa22", "aa11"] and "sky" in rows[0]
    assert [row["id"] for row in json.loads(homebox("chats", "list", "--json", "--limit", "1").out)] == [
        "aa22"
    ]
    shown = homebox("chats", "show", "aa1")
    assert shown.out == "you: [[say=the_soup]] what is for dinner?\n\nhomebox: the soup\n"
    assert json.loads(homebox("chats", "show", "aa1", "--json").out)["id"] == "aa11"
    assert (
        "aa22" in homebox("chats", "search", "sky").out and "[soup]" in homebox("chats", "search", "soup").out
    )
    vague, none = homebox("chats", "show", "aa"), homebox("chats", "show", "zz")
    assert (vague.code, none.code) == (2, 6) and "begins 2 ids" in vague.err and "chats list" in none.err


def test_what_was_deleted_is_restored(box: Box, homebox: Shell) -> None:
    said(box, "aa11", "[[say=hello]]")
    ran = homebox("chats", "rm", "aa")
    assert ran.code == 0 and "homebox chats restore aa11" in ran.out
    assert homebox("chats", "list").out == "" and "aa11" in homebox("chats", "list", "--deleted").out
    assert homebox("chats", "restore", "aa").out == "aa11 is back\n"
    assert homebox("chats", "show", "aa").out.endswith("homebox: hello\n")


def test_a_conversation_is_renamed_exported_and_imported(box: Box, homebox: Shell, tmp_path: Path) -> None:
    said(box, "aa11", "[[say=hello]]")
    assert homebox("chats", "rename", "aa", "My\x1b[31m chat").code == 0
    listed = homebox("chats", "list").out
    assert "My chat" in listed and "\x1b" not in listed
    text = homebox("chats", "export", "aa").out
    assert text.startswith("# My") and text.endswith("## homebox\n\nhello\n") and "\x1b" not in text
    file = tmp_path / "chat.json"
    assert homebox("chats", "export", "aa", "--format", "json", "-o", str(file)).code == 0
    made = homebox("chats", "import", str(file)).out.strip()
    assert made != "aa11" and homebox("chats", "show", made).out == homebox("chats", "show", "aa11").out
    for content in ("{", '{"homebox_chat": 1}'):
        refused = homebox("chats", "import", "-", stdin=content)
        assert refused.code == 2 and "Traceback" not in refused.err
    assert len(homebox("chats", "list").out.splitlines()) == 3


def test_a_branch_is_a_conversation_of_its_own_up_to_a_message_by_number_or_id(
    box: Box, homebox: Shell
) -> None:
    said(box, "aa11", "[[say=one]]")
    second = said(box, "aa11", "[[say=two]]")
    made = homebox("chats", "branch", "aa", "2").out.strip()
    assert homebox("chats", "show", made).out == "you: [[say=one]]\n\nhomebox: one\n"
    made = homebox("chats", "branch", "aa", second["question"]).out.strip()
    assert homebox("chats", "show", made).out.endswith("you: [[say=two]]\n")
    beyond, none = homebox("chats", "branch", "aa", "5"), homebox("chats", "branch", "aa", "m-none")
    assert (beyond.code, none.code) == (6, 6) and "no message 5 of 4" in beyond.err


def test_a_list_on_a_terminal_fits_and_cuts_titles_by_their_cells(box: Box, homebox: Shell) -> None:
    title = "日本の夏祭りに家族で行く計画を立てる会話" * 3
    said(box, "aa11", title)
    box.http.patch("/homebox/chats/aa11", json={"title": title})
    terminal = homebox.terminal("chats", "list")
    line = terminal.end()[1].splitlines()[1]
    assert columns.cells(line) <= 80 and line.endswith("…")
    assert title in homebox("chats", "list").out, "a pipe has it whole"


def test_the_last_conversation_or_a_named_one_goes_on(box: Box, homebox: Shell) -> None:
    said(box, "aa11", "[[say=one]] first")
    said(box, "bb22", "[[say=two]] second")
    ran = homebox("chat", "--plain", "-c", stdin="[[say=three]]\n")
    assert ran.out.splitlines()[2:] == [
        "status: going on with: [[say=two]] second (2 messages)",
        "you: [[say=two]] second",
        "homebox: two",
        "you: [[say=three]]",
        "homebox: three",
    ]
    homebox("chat", "--plain", "--chat", "aa", stdin="[[say=four]]\n")
    assert len(box.http.get("/homebox/chats/aa11").json()["messages"]) == 4
    assert len(box.http.get("/homebox/chats/bb22").json()["messages"]) == 4


def test_a_question_within_a_conversation_is_kept_there_or_only_reads_it(box: Box, homebox: Shell) -> None:
    assert homebox("ask", "-c", "x").code == 6
    said(box, "aa11", "[[say=one]] first")
    alone, within = [
        json.loads(homebox("ask", *flags, "[[say=two]]", "--json").out) for flags in ([], ["-c", "--no-save"])
    ]
    assert alone["text"] == within["text"] == "two"
    assert within["usage"]["prompt_tokens"] > alone["usage"]["prompt_tokens"]
    assert len(box.http.get("/homebox/chats/aa11").json()["messages"]) == 2
    assert homebox("ask", "--chat", "aa", "[[say=three]]").out == "three\n"
    turn = homebox("ask", "-c", "[[say=four]]", "--detach").out.strip()
    assert homebox("ask", "--attach", turn).out == "four\n"
    kept = box.http.get("/homebox/chats/aa11").json()["messages"]
    assert [each["content"] for each in kept[1::2]] == ["one", "three", "four"]


def test_who_leaves_a_question_within_a_conversation_stops_it_and_what_arrived_is_kept(
    box: Box, homebox: Shell
) -> None:
    said(box, "aa11", "[[say=one]]")
    asked = homebox.start("ask", "-c", "[[forever]][[pace=20]]")
    assert asked.stdout is not None and asked.stdout.read(1)
    asked.send_signal(signal.SIGINT)
    assert asked.communicate(timeout=10)[0] and asked.returncode == 130
    assert homebox("ask", "-c", "[[forever]][[pace=20]]", "--timeout", "0.3").code == 4
    reads_a_little = homebox.start("ask", "-c", "[[forever]][[pace=5]]")
    assert reads_a_little.stdout is not None and reads_a_little.stdout.read(1)
    reads_a_little.stdout.close()
    assert reads_a_little.wait(10) == 0
    until(lambda: not box.house.book.live)
    kept = box.http.get("/homebox/chats/aa11").json()["messages"]
    assert [each.get("state", "done") for each in kept[1::2]] == ["done", "stopped", "stopped", "stopped"]


def test_an_answer_that_is_still_written_is_read_to_its_end(box: Box, homebox: Shell) -> None:
    made = box.say("aa11", "[[forever]][[pace=10]]", "k").json()
    process = homebox.start("chat", "--plain", "--continue")
    assert process.stdout is not None
    out = ""
    while "homebox: " not in out:
        out += process.stdout.read(1)
    box.http.delete(f"/homebox/turns/{made['turn']}")
    out += process.stdout.read()
    whole = box.http.get("/homebox/chats/aa11").json()["messages"][-1]["content"]
    assert f"homebox: {whole.lstrip()}\n" in out and "status: stopped by you at" in out


def test_an_answer_is_given_again_gone_on_with_and_the_conversation_named(box: Box, homebox: Shell) -> None:
    cut = box.say("aa11", "[[say=the_cat_sat_on_the_table]]", "k", options={"max_tokens": 4}).json()
    box.events(cut["turn"])
    before = box.http.get("/homebox/chats/aa11").json()["messages"][-1]["content"]
    ran = homebox(
        "chat", "--plain", "-c", stdin="/continue\n/continue\n/regenerate\n/title Cats\n/chats\n/quit\n"
    )
    after = box.http.get("/homebox/chats/aa11").json()
    kept = box.http.get("/homebox/chats/aa11?all=1").json()["messages"][1]["content"]
    lines = ran.out.splitlines()
    assert lines[5] == "status: cut at its limit; /continue goes on with it"
    assert kept.startswith(before) and f"homebox: {kept[len(before) :]}" in lines, (
        "only what is new is written"
    )
    assert any("ended by itself" in line for line in lines)
    assert "homebox: the cat sat on the table" in lines and len(after["messages"][1]["siblings"]) == 2
    early = homebox("chat", "--plain", stdin="/title Cats\n/regenerate\n/continue\n").out
    assert early.count("status: nothing has been said in this conversation yet\n") == 3
    assert after["title"] == "Cats" and "status: aa11  Cats" in lines


def test_the_chat_on_a_terminal_outlives_a_killed_daemon(model: Path, tmp_path: Path, homebox: Shell) -> None:
    folder = tmp_path / "house"
    with served(model, folder) as daemon:
        homebox.env |= {"HOMEBOX_SOCKET": str(daemon.path)}
        terminal = homebox.terminal("chat", "--plain", TERM="dumb")
        terminal.until("you: ")
        terminal.type("[[forever]][[pace=20]]\n")
        terminal.until("homebox: (.|\n){40}")
        daemon.process.kill()
        daemon.process.wait()
        terminal.until("the daemon does not answer; what arrived is safe")
    with served(model, folder) as daemon:
        terminal.until(
            r"status: daemon restarted at \d+ tokens; what arrived is kept; /continue goes on with it\nyou: "
        )
        terminal.type("[[say=still_here]]\n")
        terminal.until("homebox: still here\nyou: ")
        terminal.type("\x04")
        assert terminal.end()[0] == 0
        listed = homebox("chats", "list", "--json").out
        assert [row["messages"] for row in json.loads(listed)] == [4]
        assert re.search("forever", listed)
