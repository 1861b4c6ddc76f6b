"""A model's thoughts: three lines while it thinks, one line after, all of them when somebody wants to know."""

from __future__ import annotations

import asyncio

from textual.app import App, ComposeResult

from homebox.tui.answer.rows import Look
from homebox.tui.answer.thoughts import ThoughtsView
from tests.tui import golden

THOUGHTS = (
    "First this.\nThen **that**.\n\nOr rather\nthe other, which is a line that does not fit in the width.\n"
)


class Thinking(App[None]):
    def __init__(self, view: ThoughtsView) -> None:
        super().__init__()
        self.view = view

    def compose(self) -> ComposeResult:
        yield self.view


def test_thoughts_live_folded_and_unfolded() -> None:
    view = ThoughtsView()
    app = Thinking(view)

    async def go() -> list[str]:
        seen = []
        async with app.run_test(size=(50, 10)) as pilot:
            for end in (0, 15, len(THOUGHTS)):
                view.grow(THOUGHTS[:end])
                view._flush()
                await pilot.pause()
                seen.append(golden.shown(app).rstrip())
            view.folded = False
            await pilot.pause()
            seen.append(golden.shown(app).rstrip())
            view.folded = True
            view.finish(6.13, 1412)
            await pilot.pause()
            seen.append(golden.shown(app).rstrip())
            view.toggle()
            await pilot.pause()
            seen.append(golden.shown(app).rstrip())
        return seen

    golden.check("thoughts", "\n=====\n".join(asyncio.run(go())) + "\n")


def test_where_there_is_no_room_the_key_is_left_out_and_what_is_unknown_is_not_said() -> None:
    async def go() -> str:
        async with app.run_test(size=(20, 5)) as pilot:
            view.finish()
            await pilot.pause()
            return golden.lines(app)[0]

    view = ThoughtsView("stored", look=Look(ascii=True))
    app = Thinking(view)
    assert asyncio.run(go()) == "[+] thought"


def test_the_mouse_takes_thoughts_without_their_head() -> None:
    async def go() -> str:
        async with app.run_test(size=(30, 12)) as pilot:
            view.folded = False
            await pilot.pause()
            app.screen.text_select_all()
            await pilot.pause()
            return app.screen.get_selected_text() or ""

    view = ThoughtsView(THOUGHTS)
    app = Thinking(view)
    assert asyncio.run(go()) == THOUGHTS.rstrip()
