"""One rich answer as it looks: in three widths, in dark and light, with the terminal's own colours and with none."""

from __future__ import annotations

import pytest
from textual.app import App, ComposeResult
from textual.pilot import Pilot

from homebox.tui.answer.lines import Lines
from homebox.tui.answer.rows import Look
from homebox.tui.answer.thoughts import ThoughtsView
from homebox.tui.answer.view import AnswerView
from tests.tui import golden
from tests.tui.answer_app import painted, run

RICH = """# Three days in Lisbon

Bring **shoes**, *patience* and ~~an umbrella~~ `sunscreen`; see [the map](https://lisbon.example/map).
日本語の文章も折り返されます。 🦊 שלום עולם

1. Belém
   - monastery, *before* ten
   - tower

     from outside
2. Alfama

> It rained.
> > Not for long, said a very long sentence that has to be broken somewhere in here.

| day | what | cost |
|----:|:----:|------|
| 1 | Belém, with a boat across the river | 24 € |
| 2 | Alfama | **free** |

```python
def budget(days: int) -> int:  # with a comment that does not fit in a narrow box
    return days * 120 + len("kids")
```

---

Done & <b>dusted</b>.
"""


class Answer(App[None]):
    CSS = "Screen { layout: vertical; }"

    def __init__(self, theme: str = "textual-dark", look: Look | None = None) -> None:
        super().__init__(ansi_color=theme.startswith("ansi"))
        self.theme = theme
        self.look = look

    def compose(self) -> ComposeResult:
        yield ThoughtsView("Lisbon is hilly.", look=self.look)
        yield AnswerView(RICH, look=self.look)

    def on_mount(self) -> None:
        self.query_one(ThoughtsView).finish(6.1, 412)


def shown(app: Answer, width: int, *, styled: bool = False) -> str:
    found: list[str] = []

    async def story(pilot: Pilot[None]) -> None:
        await painted(pilot, *app.query(Lines))
        found.append(golden.styled(app) if styled else golden.shown(app))

    run(app, story, (width, 46))
    return found[0]


@pytest.mark.parametrize("width", [80, 60, 40])
def test_a_rich_answer_in_three_widths(width: int) -> None:
    golden.check(f"answer-{width}", shown(Answer(), width))


def test_a_rich_answer_with_nothing_but_ascii_around_it() -> None:
    golden.check("answer-ascii", shown(Answer(look=Look(ascii=True)), 60))


@pytest.mark.parametrize("theme", ["textual-dark", "textual-light", "ansi-dark"])
def test_a_rich_answer_in_colours(theme: str) -> None:
    golden.check(f"answer-{theme}", shown(Answer(theme), 60, styled=True))


def test_a_rich_answer_without_colours_says_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    text = shown(Answer("ansi-dark"), 60, styled=True)
    golden.check("answer-no-color", text)
    assert "`sunscreen`" in text
