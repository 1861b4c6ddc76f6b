"""What does a box draw that only holds others?

Nothing: the ground of the screen is behind it. Textual would draw a box's own background, row by row, under all that it
holds, each time that something in it moves, and a growing answer moves in five boxes twelve times a second.
"""

from __future__ import annotations

from textual import containers
from textual.geometry import Region
from textual.strip import Strip


class Bare:
    """For a box without border and background, over a screen that covers all of itself. No widget by itself: textual
    looks for the style of a box along its first bases only."""

    def render_lines(self, crop: Region) -> list[Strip]:
        return []


class Horizontal(Bare, containers.Horizontal):
    """A row of others."""


class Vertical(Bare, containers.Vertical):
    """A column of others."""


class Container(Bare, containers.Container):
    """Others in layers."""
