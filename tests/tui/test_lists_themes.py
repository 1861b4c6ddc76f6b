"""Themes: words can be read on every ground, short names lead to ours, and NO_COLOR sends no colour."""

from __future__ import annotations

import asyncio
import re

import pytest
from textual.color import Color
from textual.widgets import OptionList, TextArea

from homebox.errors import UsageError
from homebox.tui import themes

from . import golden
from .stage import Stage, settled

GROUNDS = ("background", "surface", "panel")
WORDS = ("foreground", "text", "text-muted", "text-disabled", "foreground-muted", "primary", "secondary", "accent",
         "warning", "error", "success", "text-primary", "text-accent", "text-warning", "text-error", "text-success")  # fmt: skip
PAIRS = [
    ("block-cursor-foreground", "block-cursor-background"),
    ("block-cursor-blurred-foreground", "block-cursor-blurred-background"),
    ("footer-key-foreground", "footer-background"),
    ("footer-foreground", "footer-background"),
    ("input-cursor-foreground", "input-cursor-background"),
    ("button-color-foreground", "primary"),
]
LEAST = 4.5


def ratio(words: Color, ground: Color) -> float:
    """Contrast as WCAG 2 counts it."""

    def light(colour: Color) -> float:
        parts = [each / 255 for each in colour.rgb]
        red, green, blue = (
            each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in parts
        )
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    dark, bright = sorted((light(words), light(ground)))
    return (bright + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("theme", [themes.DARK, themes.LIGHT], ids=lambda theme: theme.name)
def test_words_have_a_contrast_of_four_and_a_half_on_every_ground(theme: themes.Theme) -> None:
    colours = theme.to_color_system().generate()
    pairs = [(words, ground) for words in WORDS for ground in GROUNDS] + PAIRS
    weak = {}
    for words, ground in pairs:
        below = Color.parse(colours[ground])
        found = ratio(below + Color.parse(colours[words]), below)
        if found < LEAST:
            weak[words, ground] = round(found, 2)
    assert weak == {}


def test_the_ruler_of_contrast_is_right() -> None:
    assert ratio(Color(0, 0, 0), Color(255, 255, 255)) == pytest.approx(21)
    assert ratio(Color(119, 119, 119), Color(255, 255, 255)) == pytest.approx(4.48, abs=0.01)


def test_short_names_lead_to_ours_and_any_theme_of_textual_can_be_had() -> None:
    assert themes.look("light", {}) == themes.Look("homebox-light", None)
    assert themes.look(None, {}).theme == "homebox-dark"
    assert themes.look("ansi", {}).theme == "homebox-ansi-dark"
    assert themes.look("nord", {}).theme == "nord"
    assert all(themes.named(name) for name in themes.names())
    with pytest.raises(UsageError, match="'lihgt'") as raised:
        themes.named("lihgt")
    assert "light" in str(raised.value.hint)


def test_no_color_wins_over_every_wish() -> None:
    assert themes.look("light", {"NO_COLOR": "1"}) == themes.Look("homebox-colourless", True)
    with pytest.raises(UsageError):
        themes.look("lihgt", {"NO_COLOR": "1"})


def styles_of(look: str, focus: str = "list") -> str:
    async def go() -> str:
        chosen, typed = OptionList("one", "two", markup=False), TextArea("typed", id="typed")
        app = Stage(chosen, typed, look=look)
        async with app.run_test(size=(40, 6)) as pilot:
            typed.cursor_blink = False
            (chosen if "list" in focus else typed).focus()
            await settled(pilot, "typed")
            return golden.styled(app).partition("\n\n")[2]

    return asyncio.run(go())


@pytest.mark.parametrize("look", ["dark", "light", "ansi", "ansi-light"])
def test_a_list_in_each_theme(look: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    styles = styles_of(look)
    golden.check(f"theme-{look}", styles)
    assert ("#" not in styles) is look.startswith("ansi")


def test_with_no_color_no_colour_is_sent_and_the_chosen_row_and_the_cursor_are_still_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    styles = styles_of("light")
    golden.check("theme-no-color", styles)
    for each in styles.splitlines():
        style = each.partition(" ")[2]
        assert style.endswith("default on default"), each
    assert re.search(r"^1: 2-.* bold underline ", styles, re.MULTILINE)  # the chosen row
    assert re.search(r"^1: 22-23 reverse ", styles_of("light", "editor"), re.MULTILINE)  # the cursor
