"""Boxes over the screen: a question's answer is no, help is the tables, files are not written over unasked."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from textual.screen import ModalScreen

from homebox.client.commands import COMMANDS
from homebox.client.models import ModelRow
from homebox.errors import UsageError
from homebox.tui.dialogs.confirm import Confirm
from homebox.tui.dialogs.help import Help, rows
from homebox.tui.dialogs.path import PathDialog, Target, safe_name, target
from homebox.tui.dialogs.rename import Rename
from homebox.tui.dialogs.system import SystemPrompt
from homebox.tui.keys import TABLE, in_words
from homebox.tui.lists.model_picker import ModelPicker, known

from . import golden
from .stage import HARMLESS, HOSTILE, SIZES, Stage, settled, until


def answer_of(dialog: ModalScreen[Any], *keys: str, words: str = "", size: tuple[int, int] = (80, 24)) -> Any:
    """What the dialog answers when these keys are pressed, once it shows these words."""

    async def go() -> Any:
        app, answers = Stage(), []
        async with app.run_test(size=size) as pilot:
            await app.push_screen(dialog, answers.append)
            await settled(pilot, words)
            await pilot.press(*keys)
            await until(pilot, lambda: answers)
        return answers[0]

    return asyncio.run(go())


@pytest.mark.parametrize("size", SIZES)
def test_help_and_a_question_at_every_size(size: tuple[int, int]) -> None:
    async def go() -> None:
        app = Stage()
        async with app.run_test(size=size) as pilot:
            await app.push_screen(Help({"search": "f9"}))
            golden.check(f"help-{size[0]}x{size[1]}", await settled(pilot, "Everywhere"))
            await pilot.press("escape")
            await app.push_screen(Confirm(f"Stop {HOSTILE}?", detail="It is leo's.", yes="stop"))
            golden.check(f"confirm-{size[0]}x{size[1]}", await settled(pilot, "no (n)"))

    asyncio.run(go())


@pytest.mark.parametrize(
    ("keys", "yes"),
    [
        (["y"], True),
        (["n"], False),
        (["escape"], False),
        (["enter"], False),
        (["shift+tab", "enter"], True),
        (["tab", "enter"], True),
    ],
)
def test_a_question_is_answered_no_unless_somebody_says_yes(keys: list[str], yes: bool) -> None:
    assert answer_of(Confirm("Really?"), *keys, words="Really?") is yes


def test_a_new_name_is_one_line_and_no_name_changes_nothing() -> None:
    assert answer_of(Rename("Old"), "end", *" one", "enter", words="Old") == "Old one"
    assert answer_of(Rename("Old"), "enter", words="Old") is None
    assert answer_of(Rename("Old"), "ctrl+u", "enter", words="Old") is None
    assert answer_of(Rename("Old"), "x", "escape", words="Old") is None


def test_a_hostile_title_in_a_box_is_text() -> None:
    assert answer_of(Rename(HOSTILE), "end", "!", "enter", words=HARMLESS) == f"{HARMLESS}!"


def test_the_system_prompt_says_from_when_on_it_applies() -> None:
    begun = SystemPrompt("Be brief.", begun=True)
    assert answer_of(begun, "end", *" Now", "f8", words="from the next answer on") == "Be brief. Now"
    fresh = SystemPrompt("", begun=False)
    assert (
        answer_of(fresh, *"Cook", "tab", "enter", words="from the first answer on", size=(40, 12)) == "Cook"
    )
    assert answer_of(SystemPrompt("Same", begun=True), "f8", words="Same") is None
    assert answer_of(SystemPrompt("Same", begun=True), "x", "escape", words="Same") is None


def test_one_model_is_said_plainly_and_another_can_be_chosen() -> None:
    one, two = ModelRow("small", 8192, True), ModelRow(f"big{HOSTILE}", None, False)
    assert (
        answer_of(ModelPicker([one], "small"), "enter", words="one model, so there is nothing to choose")
        is None
    )
    assert answer_of(ModelPicker([one, two], "small"), "down", "enter", words="8,192 tok, loaded") == two.name
    assert answer_of(ModelPicker([], None), "escape", words="no model that you may use") is None
    assert known(ModelRow("x")) == "context n/a"


def test_help_has_every_key_as_this_person_has_it_and_every_command() -> None:
    said = list(rows({"search": "f9", "quit": "ctrl+x"}))
    assert {key.about for row in TABLE.values() for key in row} <= {row.about for row in said}
    assert {command.about for command in COMMANDS} <= {row.about for row in said}
    assert [row.name for row in said if row.about == "search all conversations"] == ["F9"]
    assert next(row.name for row in said if row.about.startswith("leave; an")) == "Ctrl-X"


def test_help_finds_words_and_scrolls() -> None:
    async def go() -> None:
        app = Stage()
        async with app.run_test(size=(60, 20)) as pilot:
            await app.push_screen(Help({}))
            await settled(pilot, "Everywhere")
            await pilot.press("pagedown", "down")
            assert "Everywhere" not in await settled(pilot, "Ctrl-G")
            await pilot.press(*"regenerat")
            assert "Ctrl-G" not in await settled(pilot, "/regenerate")
            await pilot.press(*"zzz")
            await settled(pilot, "nothing here has these words")

    asyncio.run(go())


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ("ctrl+p", "Ctrl-P"),
        ("f2", "F2"),
        ("question_mark", "?"),
        ("left_square_bracket", "["),
        ("escape", "Esc"),
        ("pageup", "PgUp"),
        ("j,down", "j"),
        ("G", "G"),
        ("space", "Space"),
        ("shift+enter", "Shift-Enter"),
        ("", ""),
    ],
)
def test_a_key_is_said_as_it_is_printed_on_it(keys: str, words: str) -> None:
    assert in_words(keys) == words


def test_a_file_name_is_made_of_the_title_in_any_script() -> None:
    assert safe_name("Trip to Lisbon / day 2: ../../etc") == "trip-to-lisbon-day-2-etc"
    assert safe_name("料理の手順") == "料理の手順"
    assert safe_name(HOSTILE) == "red-sale-red-evil-rm-rf"
    assert safe_name("?!") == "conversation"
    assert len(safe_name("語" * 400).encode()) <= 120


def test_the_form_follows_the_suffix_and_what_cannot_be_written_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert target("a.md", tmp_path) == Target(tmp_path / "a.md", "md")
    assert target("~/a.JSON", Path("/")) == Target(tmp_path / "a.JSON", "json")
    for words, why in (("", "no name"), (".", "is a directory"), ("none/a.md", "no directory")):
        with pytest.raises(UsageError, match=why):
            target(words, tmp_path)


def test_a_file_that_is_there_is_written_over_only_after_a_question(tmp_path: Path) -> None:
    (tmp_path / "trip.md").write_text("mine")

    async def go() -> None:
        app, answers = Stage(), []
        async with app.run_test(size=(80, 24)) as pilot:
            await app.push_screen(PathDialog("Trip", tmp_path), answers.append)
            await settled(pilot, "trip.md")
            await pilot.press("enter")
            await settled(pilot, "is there already")
            await pilot.press("enter")
            await settled(pilot, "json to import again")
            assert answers == []
            await pilot.press("enter")
            await settled(pilot, "is there already")
            await pilot.press("y")
            await until(pilot, lambda: answers == [Target(tmp_path / "trip.md", "md")])

    asyncio.run(go())
    assert (tmp_path / "trip.md").read_text() == "mine"
    assert answer_of(PathDialog("Trip", tmp_path), "home", *"my-", "enter", words="trip.md") == Target(
        tmp_path / "my-trip.md", "md"
    )
