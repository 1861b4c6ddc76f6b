"""The person's own editor: what it makes of the text, what stays a chip, and what is said when it cannot be had."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from textual.app import App

from tests.tui.prompt_app import PromptApp, showing

Editors = Callable[[str], None]


@pytest.fixture
def editor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Editors:
    """Makes $EDITOR a shell script; "$1" is the file."""
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr("tempfile.tempdir", None)
    (tmp_path / "tmp").mkdir()

    def make(does: str) -> None:
        script = tmp_path / "my editor"
        script.write_text(f"#!/bin/sh\n{does}\n")
        script.chmod(0o755)
        monkeypatch.setenv("EDITOR", f"'{script}' --flag")

    return make


def edited(typed: str, paste: str = "") -> tuple[str, str, str]:
    """The draft, the chips and the note after the editor had it."""

    async def talk() -> tuple[str, str, str]:
        async with showing() as app:
            app.type(typed)
            if paste:
                app.paste(paste)
            app.press("ctrl+g")
            await app.settle()
            return app.prompt.draft, app.chips(), app.note()

    return asyncio.run(talk())


def test_the_editor_gets_the_text_in_a_file_that_is_nobody_elses_and_gone_afterwards(
    editor: Editors, tmp_path: Path
) -> None:
    editor(
        f'cp "$2" {tmp_path}/had; stat -c "%a %n" "$2" "$(dirname "$2")" > {tmp_path}/modes;'
        ' touch "$2~"; printf "line one\\nline two\\n" > "$2"'
    )
    assert edited("as typed") == ("line one\nline two", "", "")
    assert (tmp_path / "had").read_text() == "as typed"
    file, folder = (tmp_path / "modes").read_text().splitlines()
    assert file.startswith("600 ")
    assert file.endswith("/message.md")
    assert folder.startswith("700 ")
    assert list((tmp_path / "tmp").iterdir()) == []


def test_chips_are_words_in_the_editor_and_chips_again_afterwards(editor: Editors, tmp_path: Path) -> None:
    editor(f'cp "$2" {tmp_path}/had; sed -i "s/see/look at/" "$2"')
    long = "line\n" * 214
    assert edited("see ", long) == (f"look at {long}", "[1 pasted 214 lines x]", "")
    assert (tmp_path / "had").read_text() == "see [pasted 214 lines #1]"
    editor('echo nothing > "$2"')
    assert edited("see ", long) == ("nothing", "", "")


def test_an_editor_that_fails_changes_nothing_and_says_the_next_step(
    editor: Editors, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    editor('echo changed > "$2"; exit 3')
    draft, _, note = edited("mine")
    assert draft == "mine"
    assert "ended with code 3; the message is as it was - Save and leave it without an error" in note
    editor("kill -TERM $$")
    assert "was ended by SIGTERM" in edited("mine")[2]
    editor('printf "\\377" > "$2"')
    assert edited("mine")[::2] == (
        "mine",
        "what the editor left is not UTF-8 text (byte 0 is 0xff) - Convert it first, for example:"
        " iconv -f LATIN1 -t UTF-8 what the editor left",
    )
    for said, note in (
        ("no-such-editor -w", "$EDITOR is no-such-editor, which is not there - export EDITOR=nano"),
        ("'", "$EDITOR cannot be read as a command: No closing quotation - export EDITOR=nano"),
    ):
        monkeypatch.setenv("EDITOR", said)
        assert edited("mine")[::2] == ("mine", note)
    monkeypatch.delenv("EDITOR")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert edited("mine")[2] == "there is no editor - Say which one: export EDITOR=nano"


def test_what_an_editor_puts_in_that_drives_a_terminal_is_left_out(editor: Editors) -> None:
    editor('printf "a\\033[31mb" > "$2"')
    assert edited("x") == ("ab", "", "5 control characters were left out")


def test_ctrl_c_in_the_editor_is_the_editors(editor: Editors) -> None:
    editor('trap "echo interrupted > \\"$2\\"; exit 0" INT; kill -INT $PPID; kill -INT $$; exit 1')
    before = signal.getsignal(signal.SIGINT)
    assert edited("x")[0] == "interrupted"
    assert signal.getsignal(signal.SIGINT) is before


def test_where_the_screen_cannot_be_put_away_the_next_step_is_said(
    editor: Editors, monkeypatch: pytest.MonkeyPatch
) -> None:
    editor("exit 0")
    monkeypatch.setattr(PromptApp, "suspend", App.suspend)
    assert edited("x")[::2] == (
        "x",
        "this terminal cannot be lent to an editor - Write it in a file, and /attach that file.",
    )
