"""Where in a long conversation is what is shown? Its scroll bar, which moves whenever an answer gains a line.

Textual's own, only that its rows come straight from the shape that it has: Textual lays out and styles each of them as
if it were text, which was a fifth of a drawing.
"""

from __future__ import annotations

from math import ceil

from textual.geometry import Region
from textual.scrollbar import ScrollBar, ScrollBarRender
from textual.strip import Strip


class Bar(ScrollBar):
    def render_lines(self, crop: Region) -> list[Strip]:
        shape = self.render()
        assert isinstance(shape, ScrollBarRender)
        style = self.app.console.get_style(shape.style)
        assert style.color is not None
        assert style.bgcolor is not None
        segments = shape.render_bar(
            size=self.size.height,
            virtual_size=ceil(shape.virtual_size),
            window_size=ceil(shape.window_size),
            position=shape.position,
            thickness=self.thickness,
            back_color=style.bgcolor,
            bar_color=style.color,
        ).segments
        _, background = self.background_colors
        strips: dict[int, Strip] = {}  # of the four segments that a bar is made of
        for segment in segments:
            if id(segment) not in strips:
                strip = Strip([segment], self.thickness)
                for line_filter in self.get_line_filters():
                    strip = strip.apply_filter(line_filter, background)
                strips[id(segment)] = strip
        return [strips[id(segment)] for segment in segments][crop.y : crop.bottom]
