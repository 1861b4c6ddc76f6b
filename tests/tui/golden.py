"""What is on the screen, as text that a person can read in a diff, and does it still look as agreed?

A golden is a file of `goldens/`: the screen's lines and, where a test asks for them, its colours: for each line the
runs of a style. Rewrite them all with HOMEBOX_GOLDENS=write, and read the diff.
"""

from __future__ import annotations

import os
from pathlib import Path

from rich.segment import Segment
from rich.style import Style
from textual.app import App

FOLDER = Path(__file__).parent / "goldens"


def lines(app: App[object]) -> list[str]:
    """The screen as text, a string a row, without the blanks at its end."""
    return ["".join(segment.text for segment in row).rstrip() for row in _rows(app)]


def shown(app: App[object]) -> str:
    return "\n".join(lines(app)) + "\n"


def styled(app: App[object]) -> str:
    """The screen, and below it the styles: `3: 0-11 bold #ffffff on #000000` for row 3, columns 0 to 11."""
    runs = []
    for number, row in enumerate(_rows(app)):
        at = 0
        for segment in Segment.simplify(row):
            end = at + segment.cell_length
            if style := _words(segment.style):
                runs.append(f"{number}: {at}-{end} {style}")
            at = end
    return shown(app) + "\n" + "\n".join(runs) + "\n"


def check(name: str, actual: str) -> None:
    """Compare with the golden `name`, or write it where HOMEBOX_GOLDENS=write asks for it."""
    file = FOLDER / f"{name}.txt"
    if os.environ.get("HOMEBOX_GOLDENS") == "write":
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(actual, encoding="utf-8")
    assert actual == file.read_text(encoding="utf-8"), f"{name}: HOMEBOX_GOLDENS=write shows what changed"


def _rows(app: App[object]) -> list[list[Segment]]:
    screen = app.screen
    return [list(strip) for strip in screen._compositor.render_strips(screen.size)]


def _words(style: Style | None) -> str:
    return str(style.without_color) + _colours(style) if style else ""


def _colours(style: Style) -> str:
    fore = f" {style.color.name}" if style.color else ""
    back = f" on {style.bgcolor.name}" if style.bgcolor else ""
    return fore + back
