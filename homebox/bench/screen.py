"""Does the screen keep up with a fast model, and what does that cost?

    python -m homebox.bench.screen [--markdown] [--only answer,key,...] [--no-peer]

Every row is measured in a real Textual app without a terminal: layout, painting and the bytes for a terminal are made,
only nobody reads them. Times of work are CPU time of the app's thread, so that a busy machine changes little; the key's
way to the screen is wall time. The peer is Textual's own Markdown stream, fed the same text in the same run.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import itertools
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from textual import events
from textual._compositor import CompositorUpdate
from textual.app import App, ComposeResult
from textual.containers import VerticalScroll
from textual.pilot import Pilot
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Markdown, TextArea

from homebox.bench.figures import percentile
from homebox.tui.answer.view import AnswerView

SIZE = (100, 40)
TOKENS_S = 200
TOKEN = 4  # characters
PIECE = 15 * TOKEN  # what arrives between two drawings at that speed


@dataclass
class Row:
    """One line of the report. `kept` is None where there is no budget."""

    what: str
    budget: str
    measured: str
    kept: bool | None = None


class Column(VerticalScroll):
    """Its background is blank, and so is the screen's: to make them anew for each drawing is a third of its cost."""

    BLANK = True


class Ground(Screen[None]):
    BLANK = True


class Bench(App[None]):
    """A column of messages and a prompt."""

    CSS = "#column { layout: stream; height: 1fr; } TextArea { height: 3; }"

    def __init__(self) -> None:
        super().__init__()
        self.bytes_written = 0
        self.keys_ms: list[float] = []
        self._pressed_at = 0.0

    def get_default_screen(self) -> Screen[None]:
        return Ground()

    def compose(self) -> ComposeResult:
        column = Column(id="column")
        column.anchor()
        yield column
        yield TextArea()

    def _display(self, screen: Screen[object], renderable: object) -> None:
        super()._display(screen, renderable)  # type: ignore[arg-type]  # draws nothing without a terminal
        if isinstance(renderable, CompositorUpdate):
            self.bytes_written += len(renderable.render_segments(self.console))

    def press(self, key: str) -> None:
        self._pressed_at = time.perf_counter()
        self.query_one(TextArea).focus()
        self.screen.post_message(events.Key(key, key))

    def on_text_area_changed(self) -> None:
        self.call_after_refresh(self._painted, self._pressed_at)

    def _painted(self, pressed_at: float) -> None:
        self.keys_ms.append((time.perf_counter() - pressed_at) * 1e3)


class TimedView(AnswerView):
    """Notes what each drawing cost, up to the painted screen."""

    def __init__(self) -> None:
        super().__init__()
        self.flushes_ms: list[float] = []

    def _flush(self) -> None:
        began = time.thread_time()
        super()._flush()
        self.call_after_refresh(self._drawn, began)

    def _drawn(self, began: float) -> None:
        self.flushes_ms.append((time.thread_time() - began) * 1e3)

    def draw(self, text: str) -> None:
        """At once, without waiting for the next twelfth of a second."""
        self._source = text
        self._flush()


@asynccontextmanager
async def column_of(*views: Widget) -> AsyncIterator[tuple[Bench, Pilot[None], Column]]:
    app = Bench()
    async with app.run_test(size=SIZE) as pilot:
        column = app.query_one(Column)
        await column.mount(*views)
        await pilot.pause()
        gc.collect()
        gc.freeze()  # as an app may once it stands: else each full collection is a drawing that takes ten times as long
        yield app, pilot, column


async def painted(widget: Widget) -> None:
    done = asyncio.Event()
    widget.call_after_refresh(done.set)
    await done.wait()


def words(count: int, seed: int = 1) -> str:
    chance = random.Random(seed)
    said = (
        "the house is warm and",
        "a **bold** word with",
        "`code` that says",
        "in Lisbon, where",
        "they asked how",
    )
    return " ".join(chance.choice(said) for _ in range(count))


def listed(count: int) -> str:
    return (
        "".join(f"{n}. item {n}: {words(2, n)}\n   - with one below it\n" for n in range(1, count + 1)) + "\n"
    )


def tabled(count: int) -> str:
    return (
        "| n | name | said |\n|--:|---|---|\n"
        + "".join(f"| {n} | name {n} | {words(1, n)} |\n" for n in range(count))
        + "\n"
    )


def fenced(count: int) -> str:
    lines = (f"    value_{n} = compute({n}, 'text')  # line {n}\n" for n in range(count - 1))
    return "```python\ndef work():\n" + "".join(lines) + "```\n\n"


def answer(tokens: int) -> str:
    """An answer of so many tokens with a 40-item list, a 200-line fence and a 30-row table in it."""
    parts = ["# An answer\n\n", listed(40), fenced(200), tabled(30)]
    for seed in itertools.count():
        text = "".join(parts)
        if len(text) >= tokens * TOKEN:
            return text[: tokens * TOKEN]
        parts.insert(1 + seed % len(parts), f"{words(12, seed)}.\n\n")
    raise AssertionError


def opened(messages: int) -> list[Widget]:
    """A conversation, question and answer in turn."""
    views: list[Widget] = []
    for number in range(messages):
        if number % 2:
            views.append(AnswerView(f"## Answer {number}\n\n{words(25, number)}\n\n{listed(4)}{fenced(8)}"))
        else:
            views.append(AnswerView(words(6, number), plain=True))
    return views


async def writing(args: argparse.Namespace) -> list[Row]:
    """One chat at full speed, and somebody who types meanwhile."""
    view = TimedView()
    text = answer(args.tokens)
    async with column_of(*opened(40), view) as (app, pilot, _):
        began, cpu = time.perf_counter(), time.thread_time()
        at = 0
        next_key = 0.5
        while at < len(text):
            await asyncio.sleep(0.02)
            gone = time.perf_counter() - began
            at = min(len(text), int(gone * TOKENS_S * TOKEN))
            view.grow(text[:at])
            if gone > next_key:
                next_key += 0.2
                app.press("x")
        view.finish()
        await painted(view)
        share = (time.thread_time() - cpu) / (time.perf_counter() - began)
        await pilot.pause()
    flushes = view.flushes_ms
    tenth = max(1, len(flushes) // 10)
    first, last = sum(flushes[:tenth]) / tenth, sum(flushes[-tenth:]) / tenth
    p50, p95, p99 = (percentile(flushes, q) for q in (0.5, 0.95, 0.99))
    key95 = percentile(app.keys_ms, 0.95)
    said = f"one chat at {TOKENS_S} tok/s, {args.tokens} tokens"
    return [
        Row(f"{said}: share of a core", "25 %", f"{share:.1%}", share <= 0.25),
        Row("a drawing, p95", "12 ms", f"{p95:.1f} ms (p50 {p50:.1f}, p99 {p99:.1f}, {len(flushes)} of them)", p95 <= 12),
        Row("its last tenth of drawings against its first", "2 x", f"{last / first:.2f} x ({first:.1f} to {last:.1f} ms)", last <= 2 * first),
        Row("key to painted character meanwhile, p95", "50 ms", f"{key95:.1f} ms ({len(app.keys_ms)} keys)", key95 <= 50),
        Row("bytes for the terminal", "", f"{app.bytes_written / len(text):.0f} for each character"),
    ]  # fmt: skip


async def ours(text: str) -> float:
    view = TimedView()
    async with column_of(*opened(20), view):  # the screen is full from the start
        began = time.thread_time()
        for at in range(PIECE, len(text) + PIECE, PIECE):
            view.draw(text[:at])
            await painted(view)
        view.finish()
        await painted(view)
        return time.thread_time() - began


async def stock(text: str) -> float:
    view = Markdown()
    async with column_of(*opened(20), view):  # the screen is full from the start
        began = time.thread_time()
        for at in range(0, len(text), PIECE):
            await view.append(text[at : at + PIECE])
            await painted(view)
        return time.thread_time() - began


async def growing(args: argparse.Namespace) -> list[Row]:
    """What twice the text costs, here and there."""
    rows = []
    for name, make, count in (("list", listed, 20), ("table", tabled, 40), ("fence", fenced, 60)):
        once, twice = await ours(make(count)), await ours(make(2 * count))
        measured = f"{twice / once:.2f} x ({once:.2f} to {twice:.2f} s CPU)"
        rows.append(Row(f"{name} of {2 * count} against {count}", "2.6 x", measured, twice < 2.6 * once))
        if args.peer:
            other, other_twice = await stock(make(count)), await stock(make(2 * count))
            rows.append(
                Row(
                    "the same, Textual's Markdown stream",
                    "",
                    f"{other_twice / other:.2f} x ({other:.2f} to {other_twice:.2f} s CPU): "
                    f"{other_twice / twice:.0f} times ours",
                )
            )
    return rows


async def opening(args: argparse.Namespace) -> list[Row]:
    """Mounted to painted."""
    rows = []
    async with column_of(*opened(2)):
        pass  # what is imported and compiled once
    for messages, budget in ((40, 300), (500, None)):
        async with column_of() as (_, pilot, column):
            views = opened(messages)
            began, cpu = time.perf_counter(), time.thread_time()
            await column.mount(*views)
            await painted(views[-1])
            took, worked = (time.perf_counter() - began) * 1e3, (time.thread_time() - cpu) * 1e3
            await pilot.pause()
        what = f"{messages} messages, mounted to painted"
        said = f"{worked:.0f} ms CPU ({took:.0f} ms)"
        rows.append(Row(what, f"{budget} ms" if budget else "", said, worked <= budget if budget else None))
    return rows


async def resizing(args: argparse.Namespace) -> list[Row]:
    """Fifty sizes in a second, over twenty turns."""
    async with column_of(*opened(40)) as (_, pilot, column):
        began, cpu = time.perf_counter(), time.thread_time()
        for number in range(50):
            width = SIZE[0] - number % 40
            await pilot.resize_terminal(width, SIZE[1])
            await asyncio.sleep(max(0, began + number / 50 - time.perf_counter()))
        await painted(column)
        worked = (time.thread_time() - cpu) * 1e3
    return [Row("50 sizes in a second, 40 messages", "", f"{worked / 50:.1f} ms CPU each")]


async def idling(args: argparse.Namespace) -> list[Row]:
    async with column_of(*opened(40)) as (_, pilot, _column):
        await pilot.pause(0.5)
        cpu = time.thread_time()
        await asyncio.sleep(4)
        share = (time.thread_time() - cpu) / 4
    return [Row("nothing happens, the cursor blinks", "0.5 %", f"{share:.2%} of a core", share <= 0.005)]


MEASURES: dict[str, Callable[[argparse.Namespace], Awaitable[list[Row]]]] = {
    "writing": writing,
    "growing": growing,
    "opening": opening,
    "resizing": resizing,
    "idling": idling,
}


def report(rows: Sequence[Row], *, markdown: bool) -> str:
    marks = {None: "", True: "kept", False: "MISSED"}
    table = [
        ("what", "budget", "measured", ""),
        *((row.what, row.budget, row.measured, marks[row.kept]) for row in rows),
    ]
    if markdown:
        table.insert(1, ("---",) * 4)
        return "\n".join(f"| {' | '.join(line)} |" for line in table)
    widths = [max(len(line[column]) for line in table) for column in range(4)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in table
    )


async def measure(args: argparse.Namespace) -> list[Row]:
    wanted = args.only.split(",") if args.only else list(MEASURES)
    return [row for name in wanted for row in await MEASURES[name](args)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--markdown", action="store_true", help="print the report as a Markdown table")
    parser.add_argument("--only", default="", help=f"some of {','.join(MEASURES)}")
    parser.add_argument("--tokens", type=int, default=4000, help="of the answer that is written")
    parser.add_argument(
        "--no-peer", dest="peer", action="store_false", help="without Textual's Markdown stream"
    )
    args = parser.parse_args()
    print(report(asyncio.run(measure(args)), markdown=args.markdown))


if __name__ == "__main__":
    main()
