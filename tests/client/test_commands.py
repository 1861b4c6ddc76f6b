"""What is a command and what is text?"""

from __future__ import annotations

import pytest

from homebox.client.commands import COMMANDS, known, near, parse


@pytest.mark.parametrize(
    "line",
    ["/tmp/list is full", "/etc", "a /new thing", " /new", "/News", "/new\nline", "", "/", "//", "/top"],
)
def test_a_line_that_does_not_begin_with_a_whole_known_word_is_text(line: str) -> None:
    assert parse(line, on_screen=False) is None


def test_a_known_word_is_a_command_with_what_follows_it() -> None:
    found = parse("/title  Trip to Lisbon \n", on_screen=False)
    assert found is not None
    assert (found[0].name, found[1]) == ("/title", "Trip to Lisbon")


def test_the_screen_has_every_command_and_the_line_mode_those_that_need_none() -> None:
    assert known(on_screen=True) == COMMANDS
    assert {"/top", "/theme"}.isdisjoint(command.name for command in known(on_screen=False))
    assert parse("/top", on_screen=True) is not None


def test_a_misspelt_command_is_recognised_and_a_path_is_not() -> None:
    assert near("/regenrate", on_screen=False) == "/regenerate"
    assert near("/usr/local/share", on_screen=False) == ""
    assert near(" /regenrate", on_screen=False) == ""
    assert near("/new", on_screen=False) == ""
