"""What floats above the prompt: commands and files that complete what is typed, and what choosing one does."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from homebox.client import documents
from homebox.tui.prompt import files
from homebox.tui.prompt.chips import Chips
from homebox.tui.prompt.choices import Choices
from homebox.tui.prompt.editor import Editor
from homebox.tui.prompt.prompt import Prompt
from tests.tui.prompt_app import PromptApp, showing


def offered(app: PromptApp) -> list[str]:
    choices = app.prompt.query_one(Choices)
    assert choices.open == choices.display
    return [str(choices.get_option_at_index(each).prompt).split()[0] for each in range(choices.option_count)]


def commands(app: PromptApp) -> list[tuple[str, str]]:
    return [(each.command.name, each.rest) for each in app.seen if isinstance(each, Prompt.Command)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory, and the home: some files of every kind."""
    (tmp_path / "notes.md").write_text("the notes\n")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "plan b.txt").write_text("the plan")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(files, "MAX_WALK_S", 20.0)
    return tmp_path


def test_a_slash_offers_commands_tab_and_enter_complete_and_enter_runs_a_whole_one() -> None:
    async def talk() -> None:
        async with showing() as app:
            app.type("/t")
            await app.settle()
            assert offered(app) == ["/title", "/thinking", "/top", "/theme"]
            app.press("down", "tab")
            await app.settle()
            assert app.prompt.draft == "/thinking"
            app.type("\r")
            await app.until(lambda: commands(app) == [("/thinking", "")])
            app.type("/ti\r")
            app.type("Trip to Lisbon\r")
            await app.until(lambda: commands(app)[1:] == [("/title", "Trip to Lisbon")])
            assert (app.prompt.draft, offered(app), app.sent()) == ("", [], [])

    asyncio.run(talk())


def test_escape_closes_the_list_for_this_word_and_does_nothing_else() -> None:
    async def talk() -> None:
        async with showing() as app:
            app.type("/h")
            app.press("escape")
            app.type("e")
            await app.settle()
            assert (offered(app), app.prompt.draft, app.stopped) == ([], "/he", 0)
            app.press("escape")
            await app.until(lambda: app.stopped == 1)
            app.press("ctrl+u")
            app.type("/")
            await app.settle()
            assert offered(app)

    asyncio.run(talk())


def test_only_a_whole_known_word_is_a_command_and_one_that_is_near_is_asked_about() -> None:
    async def talk() -> None:
        async with showing() as app:
            app.type("/regenrate\r")
            await app.settle()
            assert app.note() == (
                "there is no command /regenrate; did you mean /regenerate? (a space before it sends it as text)"
            )
            assert (app.prompt.draft, app.kinds()) == ("/regenrate", [])
            app.press("home")
            app.type(" \r/tmp/list is a path\r")
            await app.until(lambda: len(app.sent()) == 2)
            assert app.sent() == [" /regenrate", "/tmp/list is a path"]
            assert commands(app) == []

    asyncio.run(talk())


def test_the_list_moves_nothing_and_stays_on_the_screen_however_small_it_is() -> None:
    async def talk() -> None:
        for size in ((80, 24), (40, 12), (30, 6)):
            async with showing(*size) as app:
                await app.settle()
                before = app.query_one("#above").region, app.prompt.region
                app.type("/")
                await app.until(lambda app=app: app.prompt.query_one(Choices).region.height)
                assert (app.query_one("#above").region, app.prompt.region) == before
                region = app.prompt.query_one(Choices).region
                assert app.screen.region.contains_region(region)
                assert region.bottom <= app.prompt.region.y

    asyncio.run(talk())


def test_a_chosen_file_is_a_chip_and_goes_below_the_words(folder: Path) -> None:
    async def talk() -> None:
        async with showing() as app:
            app.type("sum up @nts")
            await app.until(lambda: offered(app) == ["notes.md"])
            app.type("\rplease")
            await app.until(app.chips)
            assert app.chips() == "[notes.md 10 B x]"
            app.type("\r")
            await app.until(app.sent)
            assert app.sent() == ["sum up please\n\n```notes.md\nthe notes\n```"]
            assert app.chips() == ""

    asyncio.run(talk())


def test_a_path_is_completed_folder_by_folder(folder: Path) -> None:
    async def talk() -> None:
        async with showing() as app:
            app.type("@~/su")
            await app.until(lambda: offered(app) == ["~/sub/"])
            app.type("\t")
            await app.until(lambda: offered(app) == ["~/sub/plan"])
            app.type("\t")
            await app.until(app.chips)
            assert app.prompt.draft == "```~/sub/plan b.txt\nthe plan\n```"
            app.prompt.draft = ""
            app.type("/attach no")
            await app.until(lambda: offered(app) == ["notes.md"])
            app.type("\r")
            await app.until(app.chips)
            assert app.prompt.query_one(Editor).text == ""
            assert commands(app) == []

    asyncio.run(talk())


def test_backspace_at_the_start_takes_the_last_file_out(folder: Path) -> None:
    async def talk() -> None:
        async with showing() as app:
            app.prompt.attach("notes.md")
            app.prompt.attach("sub/plan b.txt")
            await app.until(lambda: app.chips() == "[notes.md 10 B x] [plan b.txt 8 B x]")
            app.press("backspace")
            await app.settle()
            assert app.chips() == "[notes.md 10 B x]"
            assert app.note() == "sub/plan b.txt is left out"
            await app.until(
                lambda: app.prompt.query_one("Chips").region.bottom == app.prompt.region.bottom - 2
            )
            await app.pilot.click("Chips", offset=(5, 0))
            await app.until(lambda: not app.chips())

    asyncio.run(talk())


def test_what_cannot_be_attached_is_said_and_what_was_typed_stays(folder: Path) -> None:
    async def talk() -> None:
        async with showing() as app:
            app.type("look")
            await app.settle()
            for name, said in (
                ("missing.md", "missing.md: No such file or directory - Look at the name once more."),
                ("sub", "sub is a directory - Attach the files in it that matter, one by one."),
                ("picture.png", "picture.png is not UTF-8 text (byte 0 is 0x89) - Convert it first"),
            ):
                app.prompt.attach(name)
                await app.until(lambda said=said: app.note().startswith(said))
            assert (app.prompt.draft, app.chips()) == ("look", "")

    asyncio.run(talk())


def test_a_message_that_the_daemon_would_refuse_is_kept_and_both_numbers_are_said(folder: Path) -> None:
    async def talk() -> None:
        async with showing() as app:
            app.paste("x" * 5_000_000)
            app.paste("y" * 4_000_000)
            app.type("\r")
            await app.settle()
            assert app.note().startswith("this message has 9.0 MB; the daemon takes 8.3 MB.")
            assert (app.sent(), len(app.prompt.draft)) == ([], 9_000_000)
            app.press("backspace")
            app.type("\r")
            await app.until(app.sent)

    asyncio.run(talk())


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], object]]:
    """A disk on which notes.md is read only once this was called, once for each time."""
    reader, writer = os.pipe()
    attach = documents.attach

    def slowly(name: str, *, taken_bytes: int) -> documents.Document:
        if name == "notes.md":
            os.read(reader, 1)
        return attach(name, taken_bytes=taken_bytes)

    monkeypatch.setattr(documents, "attach", slowly)
    yield lambda: os.write(writer, b"1")
    os.close(reader)
    os.close(writer)


def test_a_message_waits_for_the_file_that_is_still_being_read(
    folder: Path, slow: Callable[[], object]
) -> None:
    async def talk() -> None:
        async with showing() as app:
            app.type("with it")
            await app.settle()
            app.prompt.attach("notes.md")
            app.type("\r")
            await app.until(lambda: app.note() == "reading notes.md; it goes out once that is done")
            assert app.sent() == []
            slow()
            await app.until(app.sent)
            assert app.sent() == ["with it\n\n```notes.md\nthe notes\n```"]

    asyncio.run(talk())


def test_files_go_out_in_the_order_in_which_they_were_attached(
    folder: Path, slow: Callable[[], object]
) -> None:
    async def talk() -> None:
        async with showing() as app:
            app.prompt.attach("notes.md")
            app.prompt.attach("sub/plan b.txt")
            await app.until(lambda: app.chips() == "[plan b.txt 8 B x]")
            slow()
            await app.until(lambda: app.chips() == "[notes.md 10 B x] [plan b.txt 8 B x]")

    asyncio.run(talk())


def test_a_file_that_comes_too_late_does_not_come_into_another_message(
    folder: Path, slow: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    came: list[str] = []
    handle = Chips.on_chips_read

    def seen(chips: Chips, event: Chips.Read) -> None:
        handle(chips, event)
        came.append(event.name)

    monkeypatch.setattr(Chips, "on_chips_read", seen)

    async def talk() -> None:
        async with showing() as app:
            app.prompt.attach("notes.md")
            app.prompt.draft = "another conversation"
            slow()
            await app.until(lambda: came == ["notes.md"])
            await app.settle()
            assert (app.prompt.draft, app.chips()) == ("another conversation", "")

    asyncio.run(talk())
