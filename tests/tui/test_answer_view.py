"""The answer view in a real app: drawn as it grows and not more often than agreed, held, folded, selected, restyled."""

from __future__ import annotations

import time

from rich.cells import cell_len
from textual import on
from textual.app import App, ComposeResult
from textual.containers import VerticalScroll
from textual.pilot import Pilot

from homebox.tui.answer.rows import Look
from homebox.tui.answer.view import AnswerView
from tests.tui import golden
from tests.tui.answer_app import painted, run, until

ANSWER = """# Lisbon

Three days, **two kids**, `one` rainy day: a paragraph that is longer than the screen is wide.

- Morning: Belem
  1. monastery
- Noon

```python
def budget(days):
    return days * 120
```
"""


class Screen(App[None]):
    CSS = "VerticalScroll { layout: stream; }"

    def __init__(self, *views: AnswerView) -> None:
        super().__init__()
        self.views = views
        self.flushed: list[int] = []

    def compose(self) -> ComposeResult:
        with VerticalScroll() as column:
            column.anchor()
            yield from self.views

    @on(AnswerView.Flushed)
    def note(self, event: AnswerView.Flushed) -> None:
        self.flushed.append(event.lines_added)


def at_once(text: str, width: int) -> str:
    found: list[str] = []

    async def story(pilot: Pilot[None]) -> None:
        await painted(pilot, view)
        found.append(view.text())

    view = AnswerView(text)
    run(Screen(view), story, (width, 30))
    return found[0]


def test_a_growing_answer_ends_as_one_that_came_at_once_and_is_drawn_twelve_times_a_second_at_most() -> None:
    async def story(pilot: Pilot[None]) -> None:
        began = time.monotonic()
        for end in range(1, len(ANSWER) + 1):
            view.grow(ANSWER[:end])
            if end % 8 == 0:
                await pilot.pause(0.001)
        view.finish()
        await until(pilot, lambda: sum(app.flushed) == view.height)
        assert len(app.flushed) <= 12 * (time.monotonic() - began) + 2
        assert view.text() == expected
        assert view.source == ANSWER
        assert view.code_blocks() == ["def budget(days):\n    return days * 120"]

    expected = at_once(ANSWER, 60)
    view = AnswerView()
    app = Screen(view)
    run(app, story)


def test_nothing_runs_where_nothing_grows() -> None:
    async def story(pilot: Pilot[None]) -> None:
        view.grow(ANSWER[:20])
        view.grow(ANSWER)
        await until(pilot, lambda: len(app.flushed) == 2)
        assert view._timer is None and view.auto_refresh is None

    view = AnswerView()
    app = Screen(view)
    run(app, story)


def test_while_held_nothing_is_drawn_and_lines_are_counted() -> None:
    async def story(pilot: Pilot[None]) -> None:
        view.grow("one\ntwo\n")
        await until(pilot, lambda: bool(app.flushed))
        view.hold = True
        view.grow("one\ntwo\nthree\n\n" + "wide " * 30)
        view.finish()
        await pilot.pause()
        assert view._timer is None
        assert (view.height, view.held_lines, len(app.flushed)) == (2, 4, 1)
        view.hold = False
        await until(pilot, lambda: len(app.flushed) == 2)
        assert view.text().startswith("one\ntwo\nthree\n\nwide wide") and view.held_lines == 0

    view = AnswerView()
    app = Screen(view)
    run(app, story)


def test_a_text_that_does_not_go_on_from_what_was_there_is_another_text() -> None:
    async def story(pilot: Pilot[None]) -> None:
        for text in ("one\n\ntwo", "one\n\ntwo and more", "other"):
            view.grow(text)
            await until(pilot, lambda text=text: view.text().split() == text.split())  # type: ignore[misc]
        view.finish()
        view.grow("other, continued")
        view.finish()
        assert view.text() == "other, continued"

    view = AnswerView("one\n\n")
    run(Screen(view), story)


def test_plain_text_is_left_as_it_was_typed() -> None:
    typed = "  # no heading\n**not bold**\n\n\n    - [x](y)\ttab"

    async def story(pilot: Pilot[None]) -> None:
        await painted(pilot, view)
        assert view.text() == typed.expandtabs(4)

    view = AnswerView(typed, plain=True)
    run(Screen(view), story)


def test_a_marker_that_is_half_typed_is_not_drawn() -> None:
    async def story(pilot: Pilot[None]) -> None:
        seen: set[str] = set()
        for end in range(1, len(text) + 1):
            view.grow(text[:end])
            view.finish() if end == len(text) else view._flush()
            seen.update(view.text().split("\n"))
        assert not [line for line in seen if set(line) and set(line) <= set("`*-#~")]
        assert not [line for line in seen if "`" in line]

    text = "Look:\n\n```py\nx = 1\n```\n\n**done** and `this`\n- item\n"
    view = AnswerView()
    run(Screen(view), story)


def test_long_code_is_folded_to_its_end_until_it_is_unfolded() -> None:
    lines = [f"line{n}" for n in range(450)]

    async def story(pilot: Pilot[None]) -> None:
        view.grow("```\n" + "\n".join(lines) + "\n```\n")
        view.finish()
        assert view.height == 43 and "410 lines folded" in view.text() and "line409 " not in view.text()
        assert view.code_blocks() == ["\n".join(lines)]
        view.unfolded = True
        assert view.height == 452
        await until(pilot, lambda: view.size.height == 452)

    view = AnswerView()
    run(Screen(view), story)


def test_the_mouse_selects_text_without_frames_and_in_whole_lines() -> None:
    async def story(pilot: Pilot[None]) -> None:
        await painted(pilot, view)
        await pilot.mouse_down(view, offset=(6, 2))
        await pilot.hover(view, offset=(30, 12))
        await pilot.mouse_up(view, offset=(30, 12))
        await until(pilot, lambda: bool(app.screen.selections))
        text = app.screen.get_selected_text() or ""
        assert text.startswith(
            "days, two kids, one rainy day: a paragraph that is longer than the screen is wide.\n"
        )
        assert "\n• Morning: Belem\n  1. monastery\n• Noon\n" in text
        assert text.endswith("def budget(days):\n    return days * 120")
        y = 2
        bold = [segment.text for segment in view.render_line(y) if segment.style and segment.style.bold]
        assert bold == ["two kids"]
        plain, chosen = (
            next(s for s in view.render_line(y) if word in s.text).style for word in ("Three", "days")
        )
        assert plain and chosen and plain.bgcolor != chosen.bgcolor

    view = AnswerView(ANSWER)
    app = Screen(view)
    run(app, story, (40, 30))


def test_a_theme_and_a_width_that_change_are_followed() -> None:
    async def story(pilot: Pilot[None]) -> None:
        def heading() -> object:
            style = next(iter(view.render_line(0))).style
            return style and style.color

        await painted(pilot, view)
        dark = heading()
        app.theme = "textual-light"
        await until(pilot, lambda: heading() != dark)
        await pilot.resize_terminal(30, 20)
        await until(pilot, lambda: view.size.width <= 30 and "\n  1. monastery" in view.text())
        assert all(cell_len(line) <= 30 for line in view.text().split("\n"))
        await painted(pilot, view)

    view = AnswerView(ANSWER)
    app = Screen(view)
    run(app, story)


def test_ascii_look_has_only_ascii_around_the_text() -> None:
    async def story(pilot: Pilot[None]) -> None:
        await painted(pilot, view)
        assert view.text().isascii()

    view = AnswerView(ANSWER + "\n| a | b |\n|--|--|\n| 1 | 2 |\n\n> quoted\n\n---\n", look=Look(ascii=True))
    run(Screen(view), story)


def test_nothing_that_drives_a_terminal_is_drawn_though_markup_spells_it() -> None:
    spelled = "&#27;]52;c;x&#7; &#x202e; &#x9b;2J [a](http://x/%1b%5d) `&#27;` \\\x1b <&#x200f;>"

    async def story(pilot: Pilot[None]) -> None:
        await painted(pilot, *app.views)
        shown = "\n".join(golden.lines(app))
        assert not [char for char in shown if ord(char) in {*range(10), *range(11, 32), *range(127, 160)}]
        assert not {"\u202e", "\u200f", "\u2067"} & set(shown)

    app = Screen(AnswerView(spelled), AnswerView(f"| a |\n|-|\n| {spelled} |\n\n```\u202e\n\x1b[2J\n```"))
    run(app, story)
