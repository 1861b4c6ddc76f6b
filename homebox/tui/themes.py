"""How does the screen look on a dark terminal, on a light one, in the terminal's own sixteen colours, and in none?

Our own themes, and the short names by which a person asks for them. Words keep a contrast of 4.5 to 1 on every ground
that they stand on. NO_COLOR wins over every wish: no colour is sent at all, and what a colour would have said is said
by bold and underlined: textual makes `reverse` of two colours, which are then the same.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from textual.app import App
from textual.theme import BUILTIN_THEMES, Theme

from homebox.errors import UsageError

DARK = Theme(
    name="homebox-dark",
    dark=True,
    primary="#7aa7e9",
    secondary="#8fb8c9",
    accent="#e0af68",
    warning="#e0af68",
    error="#f08a92",
    success="#8fc77c",
    foreground="#d8dce4",
    background="#14171c",
    surface="#1b1f26",
    panel="#242a33",
    variables={
        "text": "#d8dce4",
        "text-muted": "#a3abb8",
        "text-disabled": "#949ca9",
        "foreground-muted": "#a3abb8",
        "border": "#5b7fb8",
        "border-blurred": "#3a424f",
        "block-cursor-foreground": "#10131a",
        "block-cursor-background": "#7aa7e9",
        "block-cursor-blurred-foreground": "#d8dce4",
        "block-cursor-blurred-background": "#2f3a4b",
        "button-color-foreground": "#10131a",
    },
)
LIGHT = Theme(
    name="homebox-light",
    dark=False,
    primary="#1f5fae",
    secondary="#28606f",
    accent="#855008",
    warning="#855008",
    error="#b0243a",
    success="#2c6a1e",
    foreground="#20252d",
    background="#fbfbf9",
    surface="#f2f2ee",
    panel="#e7e7e1",
    variables={
        "text": "#20252d",
        "text-muted": "#535b66",
        "text-disabled": "#5d6570",
        "foreground-muted": "#535b66",
        "border": "#1f5fae",
        "border-blurred": "#c3c5c2",
        "block-cursor-foreground": "#ffffff",
        "block-cursor-background": "#1f5fae",
        "block-cursor-blurred-foreground": "#20252d",
        "block-cursor-blurred-background": "#cfdcec",
        "footer-key-foreground": "#1f5fae",
        "button-color-foreground": "#ffffff",
    },
)


def _of_the_terminal(name: str, like: Theme, variables: Mapping[str, str]) -> Theme:
    """The terminal's own colours: words in its foreground, never in a pale one that its owner cannot read."""
    return Theme(
        name=name,
        ansi=True,
        dark=like.dark,
        primary=like.primary,
        secondary=like.secondary,
        accent=like.accent,
        warning=like.warning,
        error=like.error,
        success=like.success,
        foreground="ansi_default",
        background="ansi_default",
        surface="ansi_default",
        panel="ansi_default",
        boost="ansi_default",
        variables={
            **like.variables,
            "text-muted": "ansi_default",
            "text-disabled": "ansi_default",
            "foreground-muted": "ansi_default",
            **variables,
        },
    )


ANSI_DARK = _of_the_terminal("homebox-ansi-dark", BUILTIN_THEMES["ansi-dark"], {})
ANSI_LIGHT = _of_the_terminal("homebox-ansi-light", BUILTIN_THEMES["ansi-light"], {})
COLOURLESS = _of_the_terminal(
    "homebox-colourless",
    BUILTIN_THEMES["ansi-dark"],
    {
        "block-cursor-text-style": "bold underline",
        "block-cursor-blurred-text-style": "bold",
        "input-cursor-text-style": "bold underline",
        "button-focus-text-style": "bold underline",
    },
)
OURS = (DARK, LIGHT, ANSI_DARK, ANSI_LIGHT, COLOURLESS)
_SHORT = {
    "dark": DARK.name,
    "light": LIGHT.name,
    "ansi": ANSI_DARK.name,
    "ansi-dark": ANSI_DARK.name,
    "ansi-light": ANSI_LIGHT.name,
}


@dataclass(frozen=True)
class Look:
    """`theme` for `App.theme`, `ansi_color` for the App's constructor, which chooses by it how NO_COLOR is kept."""

    theme: str
    ansi_color: bool | None


def names() -> list[str]:
    """What can be asked for, our own first."""
    return [*_SHORT, *sorted(name for name in BUILTIN_THEMES if name not in _SHORT)]


def named(name: str) -> str:
    """The theme of this name as textual knows it. Raises UsageError for one that there is not."""
    found = _SHORT.get(name, name)
    if found in BUILTIN_THEMES or any(found == theme.name for theme in OURS):
        return found
    near = difflib.get_close_matches(name, names(), 1)
    raise UsageError(
        f"there is no theme {name[:40]!r}",
        hint=f"Did you mean {near[0]}?" if near else f"There are: {', '.join(names())}.",
    )


def look(name: str | None = None, environ: Mapping[str, str] = os.environ) -> Look:
    """What this person asked for, or dark; without any colour where the environment says NO_COLOR."""
    wanted = named(name or "dark")
    if "NO_COLOR" in environ:
        return Look(COLOURLESS.name, True)
    return Look(wanted, None)


def register(app: App[Any]) -> None:
    """Make our themes known to it."""
    for theme in OURS:
        app.register_theme(theme)
