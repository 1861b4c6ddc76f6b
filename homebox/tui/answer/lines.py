"""How does a growing document get onto the screen, and off it again with the mouse?

One widget a text, drawn row by row: only rows in sight are painted, and a row is painted once. What arrives is gathered
and drawn at most twelve times a second, six where drawing is slow, never while the reader looks at something older
(`hold`). No timer runs while nothing grows. It knows nothing of Markdown and nothing of messages.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter

from rich.segment import Segment
from rich.style import Style
from textual.geometry import Region, Size, Spacing
from textual.message import Message
from textual.selection import Selection
from textual.strip import Strip
from textual.timer import Timer
from textual.widget import Widget

from homebox.tui.answer.document import Document
from homebox.tui.answer.paint import paint
from homebox.tui.answer.palette import palette
from homebox.tui.answer.rows import Look, Row, copied_text, selected

FAST_S, SLOW_S = 1 / 12, 1 / 6  # between two drawings
SLOW_DRAWING_S = 0.030
MOST_STRIPS = 1000
NO_GUTTER = Spacing()


class Lines(Widget):
    """`grow` it with the whole text so far, `finish` it once."""

    ALLOW_SELECT = True
    DEFAULT_CSS = """
    Lines {
        width: 1fr;
        height: auto;
    }
    """

    @dataclass
    class Flushed(Message):
        """What had arrived was drawn. Fewer lines than before are possible: a long fence folds."""

        view: Lines
        lines_added: int

        @property
        def control(self) -> Lines:
            return self.view

    def __init__(
        self,
        text: str = "",
        *,
        plain: bool = False,
        look: Look | None = None,
        name: str | None = None,
        id: str | None = None,
        classes: str | None = None,
    ) -> None:
        super().__init__(name=name, id=id, classes=classes)
        self._plain = plain
        self._look = look or Look()
        self._source = text
        self._finished = bool(text)
        self._hold = False
        self._timer: Timer | None = None
        self._drawn_at = 0.0
        self._pause_s = FAST_S
        self._strips: dict[int, Strip] = {}
        self._painted_to = 0  # no row from here on is among them
        self._styles: dict[tuple[str, ...], Style] = {}
        self._begin()

    @property
    def source(self) -> str:
        return self._source

    @property
    def held_lines(self) -> int:
        """About how many lines have come that are not drawn, because of `hold`."""
        if not self._hold or self._fed == len(self._source):
            return 0
        unseen = self._source[self._fed :].split("\n")
        width = max(1, self.size.width)
        return sum(max(1, -(-len(line) // width)) for line in unseen if line.strip())

    @property
    def hold(self) -> bool:
        return self._hold

    @hold.setter
    def hold(self, hold: bool) -> None:
        self._hold = hold
        if not hold and self._is_behind:
            self._flush()

    def grow(self, text: str) -> None:
        """`text` is all of it so far. One that does not begin with what was there is another text."""
        if self._finished or not text.startswith(self._source):
            self._begin()
        self._source, self._finished = text, False
        if self._hold or self._timer or not self.is_mounted:
            return
        wait = self._drawn_at + self._pause_s - perf_counter()
        if wait > 0:
            self._timer = self.set_timer(wait, self._flush)
        else:
            self._flush()

    def finish(self) -> None:
        """No more comes."""
        self._finished = True
        if not self._hold:
            self._flush()

    def text(self) -> str:
        """What is drawn, as text."""
        return "\n".join(self.row(y).text.rstrip() for y in range(self.height))

    @property
    def height(self) -> int:
        return self._document.height

    def row(self, y: int) -> Row:
        return self._document.row(y)

    def _begin(self) -> None:
        self._document = Document(plain=self._plain, look=self._look)
        self._fed = 0
        self._ended = False
        self._strips.clear()

    @property
    def _is_behind(self) -> bool:
        return self._fed < len(self._source) or self._finished != self._ended

    def _feed(self) -> None:
        if self._fed < len(self._source):
            self._document.feed(self._source[self._fed :])
            self._fed = len(self._source)
        if self._finished and not self._ended:
            self._document.finish()
            self._ended = True

    def _flush(self) -> None:
        """Draw what has come."""
        if self._timer:
            self._timer.stop()
            self._timer = None
        if not self.is_mounted or self._hold:
            return
        began = self._drawn_at = perf_counter()
        before = self.height
        self._feed()
        self._lay_out()
        self.post_message(self.Flushed(self, self.height - before))
        self.call_after_refresh(self._pace, began)

    def _pace(self, began: float) -> None:
        self._pause_s = SLOW_S if perf_counter() - began > SLOW_DRAWING_S else FAST_S

    def _lay_out(self) -> None:
        """Bring the rows up to date, and have those drawn that changed."""
        width, before = self.content_size.width, self.height
        if not width:
            self.refresh(layout=True)
            return
        changed = self._document.lay_out(self._room(width))
        self._forget_from(changed)
        if self.height != before:
            self.refresh(layout=True)
        else:
            left, top = self.gutter.left, self.gutter.top
            self.refresh(Region(left, top + changed, width, self.height - changed))

    def _room(self, width: int) -> int:
        """What the document has of the widget's width."""
        return width

    def _forget_from(self, changed: int) -> None:
        """Paint the rows from here on anew. Rows that were out of sight for long are not kept either."""
        if changed == 0 or len(self._strips) > MOST_STRIPS:
            self._strips.clear()
        for y in range(changed, self._painted_to):
            self._strips.pop(y, None)
        self._painted_to = min(self._painted_to, changed)

    def on_mount(self) -> None:
        self._look = Look(self._look.ascii, self.app.no_color, self._look.copy_hint, self._look.fold_hint)
        self._document.restyle(self._look)
        if not self._hold:
            self._feed()

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        if width:
            self._forget_from(self._document.lay_out(self._room(width)))
        return self.height

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._strips.clear()
        self._styles.clear()

    def render_line(self, y: int) -> Strip:
        width = self.content_size.width
        if y >= self.height or not width:
            return Strip.blank(width, self._style(()))
        strip = self._strips.get(y)
        if strip is None:
            strip = self._strips[y] = paint(self.row(y), width, self._style).apply_offsets(0, y)
            self._painted_to = max(self._painted_to, y + 1)
        return self._with_selection(strip, y)

    def render_lines(self, crop: Region) -> list[Strip]:
        """Straight from the painted rows: Textual would go over every row in sight each time a line is added. A text
        with a border, a padding or a veil over it is left to Textual."""
        if self.gutter != NO_GUTTER or self.opacity != 1.0:
            return super().render_lines(crop)
        _, background = self.background_colors
        strips = [self.render_line(y) for y in crop.line_range]
        for line_filter in self.get_line_filters():
            strips = [strip.apply_filter(line_filter, background) for strip in strips]
        if crop.column_span != (0, self.size.width):
            strips = [strip.crop(*crop.column_span) for strip in strips]
        return strips

    def _style(self, names: tuple[str, ...]) -> Style:
        style = self._styles.get(names)
        if style is None:
            style = self.rich_style
            colours = palette(self.app.theme_variables)
            for name in names:
                style += colours[name]
            self._styles[names] = style
        return style

    def _with_selection(self, strip: Strip, y: int) -> Strip:
        selection = self.text_selection
        span = selection.get_span(y) if selection else None
        if span is None:
            return strip
        start, end = selected(self.row(y), span)
        if start >= end:
            return strip
        segments: list[Segment] = []
        at = 0
        for text, style, _ in strip:
            for begin, stop, chosen in (
                (0, start - at, False),
                (start - at, end - at, True),
                (end - at, len(text), False),
            ):
                if part := text[max(0, begin) : max(0, stop)]:
                    segments.append(
                        Segment(part, style + self.selection_style if style and chosen else style)
                    )
            at += len(text)
        return Strip(segments, strip.cell_length)

    def selection_updated(self, selection: Selection | None) -> None:
        self.refresh()

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        """The selected text: without frames, and lines that were only broken for the width in one piece."""
        spans = ((self.row(y), selection.get_span(y)) for y in range(self.height))
        return copied_text((row, span) for row, span in spans if span), "\n"
