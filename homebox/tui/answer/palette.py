"""Which colours and letters do the styles of an answer have in the theme of the app?

Found once for a theme, not for each widget: textual's component classes would be matched against the style sheet for
every message anew, which is most of the time in which a long conversation opens. Every difference that means something
is one of letters (bold, italic, a mark) as well, for those who see no colours.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from rich.style import Style
from textual.color import Color

# The variable of the theme that is the colour, none for that of the text, and the letters.
_STYLES: Mapping[str, tuple[str, str]] = {
    "heading": ("text-primary", "bold"),
    "strong": ("", "bold"),
    "emphasis": ("", "italic"),
    "strike": ("", "strike"),
    "code": ("text-accent", ""),
    "link": ("", "underline"),
    "bar": ("text-secondary", ""),
    "marker": ("text-primary", ""),
    "frame": ("text-secondary", ""),
    "label": ("", "italic"),
    "comment": ("", "dim italic"),
    "keyword": ("text-primary", "bold"),
    "string": ("text-success", ""),
    "number": ("text-warning", ""),
    "name": ("text-accent", ""),
    "deleted": ("text-error", ""),
}
_VARIABLES = tuple(sorted({variable for variable, _ in _STYLES.values() if variable}))


def palette(variables: Mapping[str, str]) -> Mapping[str, Style]:
    """Name of a style to what it adds to the style of the text."""
    return _palette(tuple(variables[name] for name in _VARIABLES))


@lru_cache(maxsize=8)
def _palette(colours: tuple[str, ...]) -> Mapping[str, Style]:
    known = {
        name: Style(color=Color.parse(colour).rich_color)
        for name, colour in zip(_VARIABLES, colours, strict=True)
    }
    return {
        name: Style.parse(letters) + known[variable] if variable else Style.parse(letters)
        for name, (variable, letters) in _STYLES.items()
    }
