"""Copying: which way a text takes in which surroundings, byte for byte, and that this is said."""

from __future__ import annotations

import asyncio
import base64
import os
import stat
import time
from pathlib import Path

import pytest

from homebox.tui import clipboard
from homebox.tui.clipboard import MAX_OSC_BYTES, copy

TEXT = "schöne Grüße 👋"
CODE = base64.b64encode(TEXT.encode()).decode()
OSC = f"\x1b]52;c;{CODE}\x07"


class Place:
    """A machine with a folder of programs of its own, and what its terminal was sent."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.written = folder, ""
        (folder / "bin").mkdir()

    def tool(self, name: str, does: str) -> None:
        file = self.folder / "bin" / name
        file.write_text(f"#!/bin/sh\n{does}\n")
        file.chmod(0o755)

    def copy(self, text: str = TEXT, platform: str = "linux", **environ: str) -> str:
        return asyncio.run(self.copying(text, platform, **environ))

    async def copying(self, text: str = TEXT, platform: str = "linux", **environ: str) -> str:
        surroundings = {"TERM": "xterm-256color", "PATH": f"{self.folder}/bin"} | environ
        return await copy(
            text, self._write, environ=surroundings, platform=platform, folder=self.folder / "cache"
        )

    def _write(self, text: str) -> None:
        self.written += text

    def got(self, name: str = "got") -> str:
        return (self.folder / name).read_text()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_without_a_display_the_terminal_is_asked(place: Place) -> None:
    assert place.copy() == "copied by the terminal (OSC 52)"
    assert place.written == OSC


def test_tmux_is_passed_through_with_every_escape_doubled(place: Place) -> None:
    assert "allow-passthrough" in place.copy(TMUX="/tmp/tmux-1000/default,1,0")
    assert place.written == f"\x1bPtmux;\x1b\x1b]52;c;{CODE}\x07\x1b\\"


def test_screen_gets_pieces_that_it_takes(place: Place) -> None:
    text = "x" * 3000
    assert place.copy(text, STY="1.pts-0").endswith("through screen")
    pieces = place.written.removesuffix("\x1b\\").split("\x1b\\")
    assert all(piece.startswith("\x1bP") and len(piece) < 768 for piece in pieces)
    whole = "".join(piece.removeprefix("\x1bP") for piece in pieces)
    assert whole == f"\x1b]52;c;{base64.b64encode(text.encode()).decode()}\x07"


@pytest.mark.parametrize(
    ("tool", "environ", "platform"),
    [
        ("wl-copy", {"WAYLAND_DISPLAY": "wayland-0"}, "linux"),
        ("xclip", {"DISPLAY": ":0"}, "linux"),
        ("xsel", {"DISPLAY": ":0"}, "linux"),
        ("xclip", {"DISPLAY": "localhost:10.0", "SSH_CONNECTION": "1 2 3 4"}, "linux"),
        ("pbcopy", {}, "darwin"),
        ("tmux", {"TMUX": "x"}, "linux"),
    ],
)
def test_the_tool_of_the_desktop_is_used_where_there_is_one(
    place: Place, tool: str, environ: dict[str, str], platform: str
) -> None:
    place.tool(tool, f"exec /bin/cat > {place.folder}/got")
    assert tool in place.copy(platform=platform, **environ)
    assert place.got() == TEXT
    assert place.written == ""


@pytest.mark.parametrize(
    ("tool", "environ", "platform"),
    [
        ("xclip", {}, "linux"),
        ("xclip", {"DISPLAY": ":0", "SSH_CONNECTION": "1 2 3 4"}, "linux"),
        ("wl-copy", {"WAYLAND_DISPLAY": "wayland-0", "SSH_TTY": "/dev/pts/1"}, "linux"),
        ("pbcopy", {"SSH_TTY": "/dev/ttys1"}, "darwin"),
    ],
)
def test_the_display_of_somebody_else_is_left_alone(
    place: Place, tool: str, environ: dict[str, str], platform: str
) -> None:
    place.tool(tool, f"exec /bin/cat > {place.folder}/got")
    place.copy(platform=platform, **environ)
    assert place.written == OSC
    assert not (place.folder / "got").exists()


def test_a_tool_that_fails_or_hangs_gives_way_to_the_next(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clipboard, "_TOOL_S", 1.0)
    place.tool("wl-copy", "exit 1")
    place.tool("xclip", "exec /bin/sleep 60")
    place.tool("xsel", f"exec /bin/cat > {place.folder}/got")
    begun = time.monotonic()
    assert place.copy(WAYLAND_DISPLAY="wayland-0", DISPLAY=":0") == "copied with xsel"
    assert place.got() == TEXT
    assert time.monotonic() - begun < 30


def test_a_tool_that_stays_to_serve_the_clipboard_is_not_waited_for(place: Place) -> None:
    place.tool("xclip", f"/bin/cat > {place.folder}/got; /bin/sleep 60 & echo $! > {place.folder}/pid")
    begun = time.monotonic()
    assert place.copy(DISPLAY=":0") == "copied with xclip"
    assert time.monotonic() - begun < 30
    os.kill(int(place.got("pid")), 9)


def test_the_loop_goes_on_while_a_tool_is_slow(place: Place) -> None:
    place.tool("xclip", f"while [ ! -e {place.folder}/go ]; do /bin/sleep 0.02; done")

    async def both() -> str:
        copying = asyncio.create_task(place.copying(DISPLAY=":0"))
        await asyncio.sleep(0)
        (place.folder / "go").touch()  # nobody could, if copying held the loop
        return await copying

    assert asyncio.run(both()) == "copied with xclip"


@pytest.mark.parametrize(
    ("text", "term"), [("x" * (MAX_OSC_BYTES + 1), "xterm"), (TEXT, "linux"), (TEXT, "dumb")]
)
def test_what_no_terminal_takes_is_saved_for_its_owner_alone(place: Place, text: str, term: str) -> None:
    file = place.folder / "cache" / "copied.txt"
    for _ in range(2):
        assert place.copy(text, TERM=term).startswith(f"saved to {file}: ")
    assert file.read_text() == text
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [each.name for each in file.parent.iterdir()] == ["copied.txt"]
    assert place.written == ""


def test_the_most_that_a_terminal_takes_still_goes_to_it(place: Place) -> None:
    place.copy("x" * MAX_OSC_BYTES)
    assert len(place.written) < 102_000


def test_a_file_that_cannot_be_written_is_said(place: Place) -> None:
    (place.folder / "cache").write_text("not a folder")
    assert place.copy(TERM="dumb").startswith("not copied: this terminal has no clipboard, and ")


def test_nothing_that_drives_a_terminal_is_copied(place: Place) -> None:
    place.copy("a\x1b]52;c;ZXZpbA==\x07b\x1b[31mc\x9bd")
    code = place.written.removeprefix("\x1b]52;c;").removesuffix("\x07")
    assert base64.b64decode(code) == b"abc"
