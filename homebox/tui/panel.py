"""How full is this conversation, how fast is this answer, and what does the house do meanwhile?

The right side of a wide terminal: four parts, each made anew from what it is given and drawn only where its words
change. An unknown figure is `n/a`, never 0. Others are seen by name and figures, as the monitor shows them. It speaks
with nobody.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from rich.cells import cell_len
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.events import Resize
from textual.widgets import Static

from homebox.client.lines import ASCII, bar
from homebox.client.state import ChatState, Phase
from homebox.client.words import seconds
from homebox.tui.lines import both_ends, cut, graph, line
from homebox.wire.events import SCHEMA, Device, Snapshot, StreamRow, Usage
from homebox.wire.requests import Options

_BAR = 20
HISTORY = 60
_LABEL = 9  # cells of the words before a figure
_GRAPH_CELLS = 10
_NAMED = {"temperature": "temp", "top_p": "top_p", "top_k": "top_k", "max_tokens": "max", "seed": "seed"}
_PHASES = {
    Phase.SENT: "sent",
    Phase.WAITING: "waiting",
    Phase.READING: "reading",
    Phase.THINKING: "thinking",
    Phase.WRITING: "writing",
}
_ENDS = {"stop": "done", "length": "cut at its limit", "cancelled": "stopped", "error": "failed"}


class SidePanel(VerticalScroll):
    """`show_chat`, `show_answer` and `show_house` may be called as often as there is something new."""

    DEFAULT_CSS = """
    SidePanel { width: 34; height: 1fr; padding: 0 1; scrollbar-size-vertical: 1; scrollbar-gutter: stable; }
    SidePanel Static { height: auto; margin-bottom: 1; }
    """

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id, can_focus=False)
        self._parts = {
            name: Static(markup=False) for name in ("THIS CHAT", "CONTEXT", "THIS ANSWER", "HOUSE")
        }
        self._drawn: dict[str, tuple[str, ...]] = {}
        self._chat: tuple[str | None, str | None, Options] = (None, None, Options())
        self._usage: Usage | None = None  # of the answer before this one
        self._room: int | None = None
        self._answer: ChatState | None = None
        self._speeds: deque[float | None] = deque(maxlen=HISTORY)
        self._house: Snapshot | None = None
        self._loads: dict[int, deque[float | None]] = {}  # one history a device

    def compose(self) -> ComposeResult:
        yield from self._parts.values()

    def on_resize(self, event: Resize) -> None:
        self._draw()

    # ---- what it is given

    def show_chat(
        self,
        *,
        model: str | None,
        system: str | None = None,
        options: Options | None = None,
        usage: Usage | None = None,
        context: int | None = None,
    ) -> None:
        """Another conversation, or this one with another model or instruction. `usage` is that of its last answer,
        `context` the model's room in tokens."""
        self._chat = (model, system, options or Options())
        self._usage, self._room, self._answer = usage, context, None
        self._speeds.clear()
        self._draw()

    def show_answer(self, state: ChatState) -> None:
        before = self._answer
        if before is None or state.seq < before.seq:
            self._speeds.clear()
        if state.stats is not None and (before is None or state.stats is not before.stats):
            self._speeds.append(state.stats.tok_s)
        self._answer = state
        self._draw()

    def show_house(self, snapshot: Snapshot | None) -> None:
        """None where the daemon does not say."""
        self._house = snapshot
        for number, device in enumerate(snapshot.devices if snapshot else ()):
            self._loads.setdefault(number, deque(maxlen=HISTORY)).append(device.util_percent)
        self._draw()

    # ---- drawing

    def _draw(self) -> None:
        width = self.scrollable_content_region.width
        if not self.is_mounted or width < 10:
            return
        made = {
            "THIS CHAT": chat_lines(*self._chat, width),
            "CONTEXT": context_lines(self._answer, self._usage, self._room, width),
            "THIS ANSWER": answer_lines(self._answer, self._speeds, width),
            "HOUSE": house_lines(self._house, self._loads, width),
        }
        for name, lines in made.items():
            shown = tuple(cut(each, width) for each in lines)
            before = self._drawn.get(name)
            if shown != before:
                self._drawn[name] = shown
                words = Content("\n").join([Content.styled(name, "bold"), *map(Content, shown)])
                self._parts[name].update(words, layout=before is None or len(before) != len(shown))


def chat_lines(model: str | None, system: str | None, options: Options, width: int) -> Iterator[str]:
    yield _figure("model", line(model) if model else None)
    first = next((each for each in (system or "").splitlines() if each.strip()), "")
    yield _figure("system", line(first) or "none")
    limits = "  ".join(
        f"{word} {value}" for name, word in _NAMED.items() if (value := getattr(options, name)) is not None
    )
    if limits:
        yield limits


def context_lines(
    state: ChatState | None, usage: Usage | None, context: int | None, width: int
) -> Iterator[str]:
    """How much of the room is used: by the answer that grows, else up to the last one."""
    stats, finished = (state.stats, state.finished) if state else (None, None)
    usage = finished.usage if finished else usage
    used = usage.prompt_tokens + usage.completion_tokens if usage else None
    if stats and not finished:
        used = stats.ctx_used
    room = stats.ctx_max if stats else context
    share = 100 * used / room if used is not None and room else None
    drawn = "".join(text for text, _ in bar(share, _BAR, ASCII))
    yield f"{drawn} {_or_unknown(share, '{:.0f}%')}"
    yield f"{_or_unknown(used, '{:,}')} of {_or_unknown(room, '{:,}')} tok"
    cached = None if usage is None or (stats and not finished) else usage.cached_tokens
    yield f"cached prefix {_or_unknown(cached, '{:,}')}"


def answer_lines(state: ChatState | None, speeds: Sequence[float | None], width: int) -> Iterator[str]:
    if state is None:
        yield "nothing is being written"
        return
    stats, finished = state.stats, state.finished
    timing = finished.timing if finished else None
    tokens = finished.usage.completion_tokens if finished else stats.tokens if stats else None
    speed = timing.tok_s if timing else stats.tok_s if stats else None
    ttft = timing.ttft_ms if timing else stats.ttft_ms if stats else None
    yield _figure("state", _state(state))
    yield _figure("tokens", _or_unknown(tokens, "{:,}"))
    drawn = graph(list(speeds), min(_GRAPH_CELLS, width - _LABEL - 12))
    yield _figure("speed", f"{_or_unknown(speed, '{:.1f} tok/s')}  {drawn}")
    queue = f" (queue {seconds(timing.queue_ms)})" if timing else ""
    yield _figure("TTFT", f"{_or_unknown(ttft, '{:.2f} s', 0.001)}{queue}")
    yield _figure("elapsed", _or_unknown(_elapsed_ms(state), "{:.1f} s", 0.001))


def house_lines(
    snapshot: Snapshot | None, loads: dict[int, deque[float | None]], width: int
) -> Iterator[str]:
    if snapshot is None:
        yield "n/a: the daemon does not answer"
        return
    if snapshot.schema != SCHEMA:
        yield "n/a: our versions differ"
        return
    people: dict[str, list[StreamRow]] = {}
    for row in snapshot.streams:
        people.setdefault(row.person, []).append(row)
    for person, rows in people.items():
        yield _person(line(person), rows, width)
    if not people:
        yield "nothing is running"
    if snapshot.waiting:
        yield f"{snapshot.waiting} waiting"
    for number, device in enumerate(snapshot.devices):
        yield _device(device, loads.get(number, ()), width)


def _person(name: str, rows: Sequence[StreamRow], width: int) -> str:
    """`anna  1 run  62.0 tok/s`: what runs, at what speed together, and what waits."""
    waits = [row for row in rows if row.state == "waiting"]
    runs = [row for row in rows if row.state != "waiting"]
    parts = [f"{len(runs)} run"] if runs else []
    speeds = [row.tok_s for row in runs if row.tok_s is not None]
    if speeds:
        parts.append(f"{sum(speeds):.1f} tok/s")
    elif runs:
        parts.append(line(runs[0].state))
    if waits:
        parts.append(f"{len(waits)} wait")
    left = f"{'*' if rows[0].mine else ' '}{name}"
    if len(parts) == 3 and cell_len(left) + cell_len("  ".join(parts)) >= width:
        del parts[1]  # who it is says more than how fast
    return both_ends(left, "  ".join(parts), width)


def _device(device: Device, history: Sequence[float | None], width: int) -> str:
    load = _or_unknown(device.util_percent, "{:.0f}%")
    kind = line(device.kind).upper()
    return both_ends(f"{kind:4} {graph(list(history), width - 11, 100.0)}", load, width)


def _state(state: ChatState) -> str:
    if state.finished:
        return _ENDS.get(state.finished.reason, line(state.finished.reason))
    if state.connection_lost:
        return "reconnecting"
    if state.paused:
        return "paused"
    if state.engine_lost:
        return "engine restarting"
    if state.queue:
        return f"place {state.queue.position} of {state.queue.waiting}"
    if state.phase is Phase.READING and state.prefill:
        return f"reading {state.prefill.done:,}/{state.prefill.total:,}"
    return _PHASES.get(state.phase, str(state.phase))


def _elapsed_ms(state: ChatState) -> float | None:
    """To the end, else to the last figures: there is no clock here, and none is needed."""
    if state.finished:
        return state.finished.timing.total_ms
    stats = state.stats
    if stats is None or stats.ttft_ms is None or not stats.tok_s:
        return None
    return stats.ttft_ms + 1000 * (stats.tokens - 1) / stats.tok_s


def _figure(name: str, value: str | None) -> str:
    return f"{name:{_LABEL}}{value or 'n/a'}".rstrip()


def _or_unknown(value: float | None, form: str, scale: float | None = None) -> str:
    return "n/a" if value is None else form.format(value * scale if scale else value)
