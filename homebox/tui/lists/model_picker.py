"""Which model shall answer in this conversation?

Answers with the name of another one. It shows what is known of each and says plainly where there is nothing to choose.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from textual import on
from textual.widget import Widget
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from homebox.client.models import ModelRow
from homebox.tui.dialogs.box import Box
from homebox.tui.lines import line
from homebox.tui.lists.rows import Line

_ONE = (
    "This box serves one model, so there is nothing to choose. homebox models list shows what is installed;"
    " its owner names another one in the daemon's settings."
)
_NONE = "This box has no model that you may use. homebox whoami shows what you may."
_LOADED = {True: "loaded", False: "loads when asked", None: ""}


class ModelPicker(Box[str]):
    def __init__(self, models: Sequence[ModelRow], current: str | None) -> None:
        super().__init__("the model that answers")
        self._models, self._current = list(models), current

    def content(self) -> Iterable[Widget]:
        options = [Option(Line(self._left(each), known(each))) for each in self._models]
        if options:
            yield OptionList(*options, markup=False, compact=True)
        words = (
            _NONE if not options else _ONE if len(options) == 1 else "Enter chooses it for the next answer on"
        )
        yield Static(words, markup=False, classes="hint")

    def on_mount(self) -> None:
        here = [n for n, each in enumerate(self._models) if each.name == self._current]
        for shown in self.query(OptionList):
            shown.highlighted = here[0] if here else 0

    def _left(self, model: ModelRow) -> str:
        return f"{'>' if model.name == self._current else ' '} {line(model.name)}"

    @on(OptionList.OptionSelected)
    def _selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        chosen = self._models[event.option_index].name
        self.dismiss(chosen if chosen != self._current else None)


def known(model: ModelRow) -> str:
    """What there is to say of it: `16,384 tok, loaded`."""
    room = f"{model.context:,} tok" if model.context else "context n/a"
    return ", ".join(words for words in (room, _LOADED[model.loaded]) if words)
