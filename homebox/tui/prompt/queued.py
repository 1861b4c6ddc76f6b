"""Which messages wait behind the answer that is being written, and what has gone wrong just now?

The lines above and below the text that somebody else fills. They hold nothing but what they show.
"""

from __future__ import annotations

from textual.content import Content
from textual.widgets import Static

from homebox.client.sanitise import clean

MAX_ROWS = 3


class Note(Static):
    """One note below the text; nothing hides it."""

    DEFAULT_CSS = (
        "Note { display: none; height: auto; max-height: 3; padding: 0 0 0 2; color: $text-warning; }"
    )

    def show(self, text: str) -> None:
        if text or self.display:
            self.update(Content(clean(text)))
            self.display = bool(text)


class Queued(Static):
    """The messages behind a running answer, a line each."""

    DEFAULT_CSS = "Queued { display: none; height: auto; padding: 0 0 0 2; color: $text-muted; }"

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def show(self, texts: list[str]) -> None:
        """Said at every drawing of an answer; to update a text lays the whole screen out, so only for another one."""
        if texts != self.texts:
            self.texts = texts
            self.display = bool(texts)
            self._draw()

    def on_resize(self) -> None:
        self._draw()

    def _draw(self) -> None:
        lines = [Content(f"next: {_one_line(text)}") for text in self.texts[:MAX_ROWS]]
        if (more := len(self.texts) - MAX_ROWS) > 0:
            lines[-1] = Content(f"and {more + 1} more")
        if lines:
            lines[-1] += Content.styled("  (Esc drops the last)", "dim")
        width = max(self.content_size.width, 10)
        self.update(Content("\n").join(line.truncate(width, ellipsis=True) for line in lines))


def _one_line(text: str) -> str:
    return " ".join(clean(text[:1000]).split())
