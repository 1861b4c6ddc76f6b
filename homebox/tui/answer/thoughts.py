"""How do a model's thoughts stand above its answer?

As one line once it is done thinking; with the last three lines below it while it thinks; in full when unfolded.
"""

from __future__ import annotations

from homebox.tui.answer.lines import Lines
from homebox.tui.answer.rows import Look, Piece, Row, Span, Styled, cells

LIVE_LINES = 3
_INDENT = 4


class ThoughtsView(Lines):
    """`grow` it with all thoughts so far; `finish` says how long they took."""

    DEFAULT_CSS = """
    ThoughtsView { text-style: dim; }
    """

    def __init__(
        self, text: str = "", *, look: Look | None = None, id: str | None = None, classes: str | None = None
    ) -> None:
        super().__init__(text, plain=True, look=look, id=id, classes=classes)
        self._folded = True
        self._said = "thought" if text else ""

    @property
    def folded(self) -> bool:
        return self._folded

    @folded.setter
    def folded(self, folded: bool) -> None:
        self._folded = folded
        self._strips.clear()
        self.refresh(layout=True)

    def toggle(self) -> None:
        self.folded = not self.folded

    def grow(self, text: str) -> None:
        self._said = ""
        super().grow(text)

    def finish(self, seconds: float | None = None, tokens: int | None = None) -> None:
        """No more come. What is not known is not said."""
        self._said = "thought"
        if seconds is not None:
            self._said += f" for {seconds:.1f} s"
        if tokens is not None:
            self._said += f" ({tokens:,} tok)"
        super().finish()

    @property
    def height(self) -> int:
        return 1 + self._lines_shown

    def row(self, y: int) -> Row:
        if y == 0:
            return self._head()
        row = self._document.row(self._document.height - self._lines_shown + y - 1)
        return Row(
            (Piece(" " * _INDENT, "marker"), *row.lead), row.body, row.start, row.end, joined=row.joined
        )

    @property
    def _lines_shown(self) -> int:
        if not self._folded:
            return self._document.height
        return 0 if self._said else min(LIVE_LINES, self._document.height)

    def _head(self) -> Row:
        dots = "..." if self._look.ascii else "…"
        sign = "[+]" if self._folded and self._said else "[-]"
        said = f"{sign} {self._said or f'thinking {dots}'}"
        hint = f"space: {'expand' if self._folded else 'fold'}"
        fits = cells(said) + 3 + cells(hint) <= self.content_size.width
        close = (Piece(hint, "label"),) if fits else ()
        return Row((), Styled(said, (Span(0, len(said), "marker"),)), 0, len(said), close, framed=True)

    def _room(self, width: int) -> int:
        return max(1, width - _INDENT)

    def _forget_from(self, changed: int) -> None:
        self._strips.clear()  # every line moves
