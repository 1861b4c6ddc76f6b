"""A model's thoughts: three lines while it thinks, one line after, all of them when somebody wants to know."""

from __future__ import annotations

from textual.app import App, ComposeResult
from textual.pilot import Pilot

from homebox.tui.answer.rows import Look
from homebox.tui.answer.thoughts import ThoughtsView
from tests.tui import golden
from tests.tui.answer_app import painted, run, until

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
    async def story(pilot: Pilot[None]) -> None:
        async def note() -> None:
            await painted(pilot, view)
            seen.append(golden.shown(app).rstrip())

        for end in (0, 15, len(THOUGHTS)):
            view.grow(THOUGHTS[:end])
            await until(pilot, lambda: view._timer is None)
            await note()
        view.folded = False
        await note()
        view.folded = True
        view.finish(6.13, 1412)
        await note()
        view.toggle()
        await note()

    seen: list[str] = []
    view = ThoughtsView()
    app = Thinking(view)
    run(app, story, (50, 10))
    golden.check("thoughts", "\n=====\n".join(seen) + "\n")


def test_where_there_is_no_room_the_key_is_left_out_and_what_is_unknown_is_not_said() -> None:
    async def story(pilot: Pilot[None]) -> None:
        view.finish()
        await painted(pilot, view)
        assert golden.lines(app)[0] == "[+] thought"

    view = ThoughtsView("stored", look=Look(ascii=True))
    app = Thinking(view)
    run(app, story, (20, 5))


def test_the_mouse_takes_thoughts_without_their_head() -> None:
    async def story(pilot: Pilot[None]) -> None:
        view.folded = False
        await painted(pilot, view)
        app.screen.text_select_all()
        await until(pilot, lambda: bool(app.screen.selections))
        assert app.screen.get_selected_text() == THOUGHTS.rstrip()

    view = ThoughtsView(THOUGHTS)
    app = Thinking(view)
    run(app, story, (30, 12))
