"""A person at a real terminal: the command in a shell in tmux, the real daemon, the real model. One test, one story."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import platformdirs
import pytest

from homebox.client import chats
from homebox.client.connection import Daemon
from tests.daemon.box import state_with
from tests.house.tmux import Pane, Terminals, terminals

pytestmark = [
    pytest.mark.long,
    pytest.mark.model,
    pytest.mark.timeout(1200),  # a machine with much else to do
    pytest.mark.skipif(not shutil.which("tmux"), reason="there is no tmux"),
    pytest.mark.skipif(not shutil.which("bash"), reason="there is no bash"),
]
ROOT = Path(__file__).parents[2]
CONTEXT = 1024
INVITES, WRITES, BUSY = "> ask something", "[#] writing", "> the next message"
PROMISED = 'exec "{python}" -c "from homebox.cli.main import main; main()" "$@"'


class House:
    """A daemon of its own as a process, which can be killed and comes back."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.socket = folder / "s"
        program = folder / "bin" / "homebox"
        program.parent.mkdir()
        program.write_text(f"#!/bin/sh\n{PROMISED.format(python=sys.executable)}\n")
        program.chmod(0o755)
        (folder / "home").mkdir()
        kept = {name: os.environ[name] for name in ("USER", "LOGNAME") if name in os.environ}
        self.environ = {
            **kept, "PATH": f"{program.parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT), "PS1": "$ ", "HISTFILE": "",
            "HOME": str(folder / "home"), "TMPDIR": str(folder), "LANG": "C.UTF-8", "HOMEBOX_SOCKET": str(self.socket),
            "HOMEBOX_STATE_DIR": str(folder / "state"), "HOMEBOX_KV_MEMORY": "256MiB",
            "HOMEBOX_MAX_CONTEXT": str(CONTEXT), "XDG_CACHE_HOME": str(platformdirs.user_cache_path()),
        }  # fmt: skip
        self.daemon: subprocess.Popen[bytes] | None = None

    def run(self, *words: str) -> str:
        command = [str(self.folder / "bin" / "homebox"), *words]
        done = subprocess.run(command, capture_output=True, text=True, env=self.environ, timeout=300)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def start(self) -> None:
        with (self.folder / "log").open("ab") as log:
            self.daemon = subprocess.Popen(
                [str(self.folder / "bin" / "homebox"), "serve"], env=self.environ, stdout=log, stderr=log
            )
        wait = [str(self.folder / "bin" / "homebox"), "status", "--wait", "240"]
        with subprocess.Popen(wait, env=self.environ, stderr=subprocess.DEVNULL) as waiting:
            while waiting.poll() is None:
                assert self.daemon.poll() is None, (self.folder / "log").read_text()[-2000:]
                time.sleep(0.05)
        assert waiting.returncode == 0

    def open_to_the_network(self) -> str:
        """Its address there. It needs a key first."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{free.getsockname()[1]}"
        self.environ["HOMEBOX_LISTEN"] = address
        self.kill()
        self.start()
        return f"http://{address}"

    def kill(self) -> None:
        assert self.daemon is not None
        self.daemon.send_signal(signal.SIGKILL)
        self.daemon.wait()

    @property
    def api(self) -> Daemon:
        return Daemon(socket_path=self.socket)


@pytest.fixture(scope="module")
def house(default_model: Path) -> Iterator[House]:
    folder = Path(tempfile.mkdtemp(prefix="homebox-"))
    house = House(folder)
    state_with(default_model, folder / "state")
    house.start()
    try:
        yield house
    finally:
        if house.daemon and house.daemon.poll() is None:
            house.daemon.terminate()
            house.daemon.wait(60)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def rooms(house: House) -> Iterator[Terminals]:
    with terminals(house.environ) as rooms:
        yield rooms
    for row in house.api.json("GET", "/homebox/streams")["streams"]:
        house.api.json("DELETE", f"/homebox/turns/{row['id']}")
    chats.put_draft(house.api, None, "")  # what was typed last is not the next one's


def chatting(pane: Pane, *words: str) -> Pane:
    pane.type(" ".join(("homebox", "chat", *words)))
    pane.press("Enter")
    pane.sees("> ask some")
    return pane


def story(about: str) -> str:
    """What takes long to answer, so that it can be stopped."""
    return f"Tell a very long story of a {about}, in ten chapters."


def stopped_early(pane: Pane) -> None:
    """A question's answer, as short as it may be."""
    pane.sees(WRITES)
    stopped(pane)


def stopped(pane: Pane) -> None:
    pane.press("Escape")
    pane.sees("stopped by you", INVITES)


def at_shell(pane: Pane) -> None:
    """Leave the screen; the shell has the keys again."""
    pane.misses("^p palette")
    pane.runs("true")


def descendant(pid: int, words: str) -> int:
    """The process below `pid` whose command line has these words."""
    listed = subprocess.run(["ps", "-eo", "pid=,ppid=,args="], capture_output=True, text=True, check=True)
    rows = [line.split(None, 2) for line in listed.stdout.splitlines()]
    below = {pid}
    for _ in rows:
        below |= {int(row[0]) for row in rows if int(row[1]) in below}
    return next(int(row[0]) for row in rows if int(row[0]) in below and words in row[2] and "-c" in row[2])


def test_two_people_talk_at_once_and_each_sees_that_the_other_is_there(
    house: House, rooms: Terminals
) -> None:
    key = house.run("people", "keys", "new", "mia").split()[-1]
    address = house.open_to_the_network()
    anna, mia = rooms.open(), rooms.open(HOMEBOX_URL=address, HOMEBOX_KEY=key, HOMEBOX_SOCKET="")
    chatting(anna)
    chatting(mia)
    anna.says(story("dragon"))
    mia.says(story("xylophone"))
    anna.sees(WRITES)
    mia.sees(WRITES)
    anna.press("F3")
    shown = anna.sees("mia", "decode", "2 streams")
    assert "xylophone" not in shown and "dragon" not in shown
    anna.press("q")
    anna.sees(BUSY)
    stopped(anna)
    mia.sees(WRITES)
    stopped(mia)


def test_stop_then_go_on_then_other_branches_and_between_them(rooms: Terminals) -> None:
    pane = chatting(rooms.open())
    pane.says(story("dragon"))
    pane.sees(WRITES)
    stopped(pane)
    pane.press("Up", "c")
    pane.sees(WRITES)
    pane.press("Escape")
    pane.sees("stopped by you", INVITES)
    pane.press("Up", "r")
    pane.sees(WRITES, "[2/2]")
    stopped(pane)
    pane.press("Up", "k", "e")
    pane.sees("sends it as a branch")
    pane.type(" Begin with winter.")
    pane.sees("Begin with winter.")
    pane.press("Enter")
    pane.sees(WRITES)
    stopped(pane)
    pane.sees("[2/2]", "Begin with winter.")
    pane.press("Up", "k", "[")
    shown = pane.misses("Begin with winter.")
    pane.press("]")
    pane.sees("Begin with winter.", INVITES)  # the key was for the message, and not for the prompt
    assert "[1/2]" in shown or "[2/2]" in shown


def test_what_was_said_is_found_and_the_last_conversation_opens_by_itself(rooms: Terminals) -> None:
    pane = chatting(rooms.open())
    pane.says(story("marimba"))
    stopped_early(pane)
    pane.says("/new")
    pane.sees("new conversation")
    pane.says(story("oboe"))
    stopped_early(pane)
    pane.press("C-r")
    pane.type("marimba")
    pane.until(lambda: pane.screen.count("marimba") >= 3, "a hit")
    pane.press("Enter")
    pane.sees("homebox  Tell a very long story of a marimba")
    pane.press("C-d")
    at_shell(pane)
    pane.type("homebox")
    pane.press("Enter")
    pane.sees("ten chapters", INVITES)
    pane.press("F2")
    pane.sees("CHATS", "marimba", "oboe")


def test_a_daemon_that_is_killed_comes_back_and_nothing_is_lost(house: House, rooms: Terminals) -> None:
    pane = chatting(rooms.open())
    pane.says(story("dragon"))
    pane.until(lambda: len(pane.screen.split()) > 60, "some text")
    before = pane.screen
    house.kill()
    pane.sees("daemon restarting")
    begun = next(line for line in before.splitlines() if line.startswith("  ") and "  you" not in line[:6])
    assert begun in pane.screen
    house.start()
    pane.sees("daemon restarted", INVITES)
    assert begun in pane.screen
    pane.press("Up", "c")
    pane.sees(WRITES)
    stopped(pane)


def test_a_message_to_a_daemon_that_is_away_is_given_up_or_goes_out_later(
    house: House, rooms: Terminals
) -> None:
    pane = chatting(rooms.open())
    house.kill()
    try:
        pane.says(story("cello"))
        pane.sees("the daemon does not answer", "Esc give up")
        pane.press("Escape")
        pane.sees(f"> {story('cello')}", "not sent")
        pane.press("Enter")
        pane.sees("the daemon does not answer")
    finally:
        house.start()
    stopped_early(pane)


def test_a_storm_of_sizes_leaves_a_whole_screen(rooms: Terminals) -> None:
    pane = chatting(rooms.open())
    pane.says(story("dragon"))
    pane.sees(WRITES)
    sizes = [(80, 24), (40, 12), (140, 40), (60, 20), (100, 30), (20, 6), (200, 50), (41, 13)]
    for width, height in sizes * 4:
        pane.resize(width, height)
    for width, height in ((140, 40), (80, 24), (60, 20), (40, 12)):
        pane.resize(width, height)
        pane.until(lambda height=height: len(pane.screen.splitlines()) == height, "the new size")
        shown = pane.sees("> the next", WRITES)
        assert shown.count("> the next") == 1 and shown.count(WRITES) == 1
    pane.resize(80, 24)
    pane.sees(BUSY, "^p palette", "homebox  ")
    stopped(pane)


def test_a_paste_of_a_megabyte_is_a_chip_and_is_refused_with_figures(
    rooms: Terminals, tmp_path: Path
) -> None:
    pane = chatting(rooms.open())
    pane.paste("All work and no play makes a dull box.\n" * 26_000, tmp_path)
    pane.sees("pasted")
    pane.type(" What is this?")
    pane.sees("What is this?")
    pane.press("Enter")
    pane.sees("[!]", str(CONTEXT))
    pane.press("C-c")
    pane.sees(INVITES)


def test_every_script_is_typed_sent_and_read_back(rooms: Terminals) -> None:
    pane = chatting(rooms.open())
    words = "Tell a very long story: 日本語 한국어 🙂 👩‍👩‍👧 שלום مرحبا é"
    pane.type(words)
    pane.sees("日本語", "한국어", "שלום")
    pane.press("Enter")
    stopped_early(pane)
    shown = pane.screen
    said = next(line for line in shown.splitlines() if "日本語" in line and "homebox  " not in line)
    assert "한국어" in said and "🙂" in said and "שלום" in said and "مرحبا" in said
    assert "> ask something" in shown


def test_ctrl_z_gives_the_shell_back_and_fg_the_screen(rooms: Terminals) -> None:
    pane = rooms.open()
    chatting(pane)
    pane.says(story("dragon"))
    pane.sees(WRITES)
    pane.press("C-z")
    pane.sees("Stopped")
    pane.runs("echo here-$((40+2))")
    assert "here-42" in pane.screen
    pane.type("fg")
    pane.press("Enter")
    pane.sees("^p palette", BUSY)
    pane.type("typed after")
    pane.sees("> typed after")
    pane.press("C-c")
    pane.sees("stopped by you")


def test_killing_the_screen_leaves_the_terminal_as_it_was(rooms: Terminals, tmp_path: Path) -> None:
    pane = rooms.open()
    pane.runs(f"stty -a > {tmp_path}/before")
    chatting(pane)
    pane.says(story("dragon"))
    pane.sees(WRITES)
    os.kill(descendant(pane.pid, "cli.main"), signal.SIGKILL)
    pane.misses("^p palette")
    # Who looks sees what the shell said meanwhile, or has it lost with the screen of the dead; the shell listens.
    pane.runs(f"stty -a > {tmp_path}/after")
    assert (tmp_path / "after").read_text() == (tmp_path / "before").read_text()
    chatting(pane, "-c")
    pane.sees("dragon")


def test_a_draft_and_what_is_queued_are_there_again(rooms: Terminals) -> None:
    pane = chatting(rooms.open())
    pane.says(story("tuba"))
    stopped_early(pane)
    pane.type("half a thought")
    pane.sees("> half a thought")
    pane.press("C-q")
    at_shell(pane)
    chatting_again(pane)
    pane.sees("> half a thought")
    pane.press("C-c")
    pane.sees(INVITES)
    pane.says(story("dragon"))
    pane.sees(WRITES)
    pane.says("And then?")
    pane.sees("next: And then?")
    pane.press("C-c")
    pane.misses("next: And then?")
    pane.sees("And then?", WRITES)
    stopped(pane)


def chatting_again(pane: Pane) -> None:
    pane.type("homebox chat -c")
    pane.press("Enter")
    pane.sees("^p palette", "tuba")


def test_export_copy_and_the_editor(house: House, rooms: Terminals, tmp_path: Path) -> None:
    editor = tmp_path / "editor"
    text = story("viola")
    editor.write_text(f'#!/bin/sh\nprintf "%s" "{text}" > "$1"\n')
    editor.chmod(0o755)
    pane = chatting(rooms.open(EDITOR=str(editor), VISUAL=""))
    pane.press("C-g")
    pane.sees(f"> {text}")
    pane.press("Enter")
    stopped_early(pane)
    pane.press("Up", "k", "y")
    pane.sees("copied to tmux")
    assert rooms.tmux("show-buffer") == text
    pane.press("Escape")
    pane.says(f"/export {tmp_path}/out.md")
    pane.sees("written to")
    assert text in (tmp_path / "out.md").read_text()


def test_a_full_context_is_said_and_goes_on_with_a_summary(rooms: Terminals) -> None:
    pane = chatting(rooms.open())
    pane.type("Remember this: " + "the cat sat on the mat and looked at the moon. " * 76)
    pane.sees("moon.")
    pane.press("Enter")
    pane.sees("% full", "/summarise")
    pane.says("/summarise")
    pane.sees("summarising: piece")
    pane.sees("sent with the summary", "new conversation", within_s=900)
    pane.type(" And now?")
    pane.press("Enter")
    pane.sees(WRITES)
    stopped(pane)


@pytest.mark.parametrize(("width", "height"), [(80, 24), (60, 20), (40, 12), (140, 40)])
def test_all_is_there_at_every_size(rooms: Terminals, width: int, height: int) -> None:
    pane = chatting(rooms.open(width, height))
    pane.says(story("harp"))
    pane.sees("[#] writing")
    pane.press("Escape")
    shown = pane.sees("harp", "stopped by you", "> ask some")
    assert len(shown.splitlines()) == height
    pane.press("C-p")
    pane.type("export")
    pane.sees("/export")
    pane.press("Escape")
    pane.misses("/export")
    if width < 130:  # beside the conversation it is there already
        pane.press("F2")
        pane.sees("CHATS")
        pane.press("Escape")
        pane.misses("CHATS")
    else:
        assert "CHATS" in shown and "THIS CHAT" in shown
    pane.press("F3")
    pane.sees("homebox top", "CPU")
    pane.press("q")
    pane.sees("> ask some")


def test_no_color_draws_without_colours(rooms: Terminals) -> None:
    pane = chatting(rooms.open(NO_COLOR="1"))
    pane.says(story("drum"))
    stopped_early(pane)
    codes = {code for part in pane.escapes.split("\x1b[")[1:] for code in part.split("m")[0].split(";")}
    assert not codes & {"31", "32", "33", "34", "35", "36", "38", "41", "42", "43", "44", "45", "46"}, codes


def test_a_terminal_that_cannot_be_drawn_on_gets_lines(rooms: Terminals) -> None:
    pane = rooms.open(TERM="dumb")
    pane.type("homebox chat")
    pane.press("Enter")
    pane.sees("plain mode, since")
    pane.type(story("gong"))
    pane.press("Enter")
    pane.sees("homebox: ")
    pane.press("C-c")
    pane.sees("stopped by you")


def test_a_terminal_of_the_c_locale_gets_ascii(rooms: Terminals) -> None:
    pane = rooms.open(LANG="C")
    chatting(pane)
    pane.says(story("bell"))
    stopped_early(pane)
    pane.press("F3")
    shown = pane.sees("homebox top", "CPU")
    assert shown.isascii()
    pane.press("q")
    pane.misses("homebox top")
    pane.press("F2")
    assert pane.sees("CHATS").isascii()


def test_the_next_step_is_said_where_there_is_no_daemon(house: House, rooms: Terminals) -> None:
    pane = rooms.open(HOMEBOX_SOCKET=str(house.folder / "nowhere"))
    pane.type("homebox")
    pane.press("Enter")
    shown = pane.sees("homebox:", "\n$")
    pane.until(lambda: "homebox serve" in pane.screen or "service" in pane.screen, "a next step")
    assert "Traceback" not in shown
