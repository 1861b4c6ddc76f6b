"""How does an answer, or what a person typed, stand in a conversation?

`AnswerView` draws Markdown as it arrives, or with `plain` a text as it is. It knows of code only what can be copied and
unfolded.
"""

from __future__ import annotations

from homebox.tui.answer.code import warm_up
from homebox.tui.answer.lines import Lines


class AnswerView(Lines):
    """`grow` it with the whole text so far, `finish` it once; a text given at the start is finished."""

    _unfolded = False

    def on_mount(self) -> None:
        warm_up()

    @property
    def unfolded(self) -> bool:
        """Is code of many lines shown in full?"""
        return self._unfolded

    @unfolded.setter
    def unfolded(self, unfolded: bool) -> None:
        self._unfolded = unfolded
        self._document.fold(unfolded)
        self._lay_out()

    def code_blocks(self) -> list[str]:
        """The code of all that was drawn, exactly as it was written, without its fences."""
        return self._document.codes()
