"""Text that wants to drive the terminal is only text on the screens: real processes, every byte that they write."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Terminal
from tests.cli.test_hostile_text import house
from tests.client.fake_daemon import FakeDaemon
from tests.hostile import EVERYTHING, HOSTILE, stolen

DEADLINE_S = 20.0
# What textual's driver writes: colours, the cursor's place, modes and questions about them, the keyboard's protocol.
FINALS = "mHhlpuntrJK"
CTRL_C, CTRL_R = "\x03", "\x12"


class Screen:
    """`homebox` on a terminal of 140x40, and everything that it wrote."""

    def __init__(self, args: list[str], env: dict[str, str]) -> None:
        self._terminal = Terminal(args, env)
        self._master = self._terminal._master
        self.written = b""
        self._seen = 0

    def until(self, what: str, times: int = 1) -> None:
        """Wait until it has written these words so many times since the last call."""
        deadline = time.monotonic() + DEADLINE_S
        while self.written.count(what.encode(), self._seen) < times:
            assert self._read(deadline), f"{what!r} did not come:\n{self.written[self._seen :][-4000:]!r}"
        self._seen = len(self.written)

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def end(self) -> int:
        self._terminal.process.terminate()
        deadline = time.monotonic() + DEADLINE_S
        while self._read(deadline):
            pass
        return self._terminal.process.wait(DEADLINE_S)

    def close(self) -> None:
        self._terminal.close()

    def _read(self, deadline: float) -> bool:
        if not select.select([self._master], [], [], max(0.0, deadline - time.monotonic()))[0]:
            return False
        try:
            data = os.read(self._master, 1 << 16)
        except OSError:
            return False
        self.written += data
        return bool(data)


@pytest.fixture
def env(fake: FakeDaemon, tmp_path: Path) -> dict[str, str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith(("HOMEBOX_", "XDG_"))}
    return own | {
        "HOMEBOX_SOCKET": str(fake.path), "HOME": str(tmp_path), "TERM": "xterm-256color", "COLORTERM": "truecolor",
        "PYTHONPATH": str(Path(__file__).parents[2]), "LANG": "C.UTF-8", "COLUMNS": "140", "LINES": "40",
    }  # fmt: skip


@pytest.fixture
def screen(fake: FakeDaemon, env: dict[str, str]) -> Iterator[Screen]:
    house(fake, EVERYTHING)
    fake.when("GET", "/homebox/chats/c1/draft", lambda exchange: exchange.json({"text": HOSTILE["half"]}))
    fake.when("PUT", "/homebox", lambda exchange: exchange.json({}))
    shown = Screen(["chat", "--chat", "c1"], env)
    yield shown
    shown.close()


def test_the_chat_screen_shows_everything_as_text(screen: Screen, tmp_path: Path) -> None:
    screen.until("harmless", 3 * len(HOSTILE))  # question, answer and lists
    for number, name in enumerate(("colour", "clipboard", "half", "directions")):
        screen.type(f"\x1b[200~{HOSTILE[name]}\npasted{number}\x1b[201~")
        screen.until(f"pasted{number}")
    screen.type(f"\x1b[200~{EVERYTHING}\x1b[201~")
    screen.until("[1 pasted ")
    screen.type("\t")
    screen.until("harmless", 2)
    screen.type(CTRL_C)
    screen.type("hello\r")
    screen.until("the answer ended here: harmless")
    screen.type("/title x\r")
    screen.until("[!] harmless")
    (tmp_path / "\x1b]0;stolen\x07\x9b7777m harmless").touch()
    (tmp_path / os.fsdecode(b"\xff\x9b harmless")).touch()
    screen.type(f"@{tmp_path}/")
    screen.until("harmless", 2)
    screen.type("\t")
    screen.type(CTRL_R)
    screen.until("words; the last may be a beginning")
    screen.type("harmless")
    screen.until("2 found")
    assert screen.end() == 128 + signal.SIGTERM
    assert not stolen(screen.written, FINALS, alone="\r\n")


def test_the_monitor_shows_everything_as_text(fake: FakeDaemon, env: dict[str, str]) -> None:
    house(fake, EVERYTHING)
    screen = Screen(["top"], env)
    screen.until("BATCH")
    for key, shows in (("m", "blocks of"), ("\r", "came by"), ("g", ""), ("?", "every key"), ("x", "Stop")):
        screen.type(key)
        screen.until(shows)
    screen.type("y")
    screen.until("harmless")  # why it could not be stopped
    screen.type("/\x1b[200~\x1b[7777mharmless\x9b\x1b[201~")
    screen.until("filter: harmless")
    assert screen.end() == 128 + signal.SIGTERM
    assert not stolen(screen.written, FINALS, alone="\r\n")
