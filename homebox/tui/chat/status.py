"""What is going on with the answer, in one line?

Exactly one line, so that the text above never jumps: a mark, words, and at the right what can be done about it. Only
why a wish was refused may take more: it is never cut. Pure words of the conversation and the clock; the widget only
shows them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from rich.cells import cell_len, set_cell_size
from textual.content import Content
from textual.geometry import Size
from textual.widget import Widget

from homebox.client.conversation import Conversation
from homebox.client.phrases import ended_in_words, engine_line, waiting_line
from homebox.client.sanitise import clean
from homebox.client.state import ChatState, ConnectionLost, Phase
from homebox.client.summary import needs_room
from homebox.errors import ContextLengthExceeded, HomeboxError
from homebox.wire import events

MOST_LINES = 6  # of a refusal


@dataclass(frozen=True)
class Line:
    """`kind` names its colour: quiet, busy, warning, error. The mark says it, too."""

    mark: str = "   "
    words: str = ""
    hint: str = ""
    kind: str = "quiet"


def line(
    now: Conversation,
    *,
    away: ConnectionLost | None = None,
    stopped: bool = False,
    me: str = "",
    health: dict[str, Any] | None = None,
    note: str = "",
    selected: bool = False,
    at: float = 0.0,
) -> Line:
    """`stopped`: the last answer was stopped from here. `health`: what the daemon said of itself when nothing came for
    a while. `note`: what came of the last wish, for a moment. `selected`: a message has the keys, and not the prompt.
    `at`: unix seconds."""
    if now.error is not None:
        return _refusal(now, now.error)
    if note:
        return Line("[i]", clean(note))
    if away is not None:
        return Line(
            "[!]",
            f"the daemon does not answer - trying again in {away.retry_s:g} s",
            "Esc give up",
            "warning",
        )
    growing = now.growing
    if growing is not None and growing.answer is not None:
        said = _growing(growing.answer, growing.since, me, health, at)
        return replace(said, hint=_before_esc(now, selected) + said.hint) if said.hint else said
    if _full(now):
        used = 100 * (now.ctx_used or 0) / (now.ctx_max or 1)
        return Line("[=]", f"context {used:.0f}% full - /summarise goes on, /new begins anew", "", "warning")
    last = now.items[-1] if now.items else None
    if last is not None and last.message.role == "assistant":
        said = _ended(last.answer, last.message.state, last.message.detail, stopped)
        return said if selected or not said.hint else replace(said, hint=f"Up, then {said.hint}")
    return Line()


def _before_esc(now: Conversation, selected: bool) -> str:
    """What Esc leaves before it comes to the answer."""
    return "Esc " * (selected + len(now.queued))


def _refusal(now: Conversation, error: HomeboxError) -> Line:
    hint = error.hint or ""
    if isinstance(error, ContextLengthExceeded) and now.known:
        hint = "/summarise goes on with a summary, /new begins anew."
    return Line("[!]", clean(error.message).rstrip("."), clean(hint), "error")


def _growing(state: ChatState, began: float, me: str, health: dict[str, Any] | None, at: float) -> Line:
    safe = state.stats.tokens if state.stats else 0
    if state.connection_lost:
        return Line(
            "[!]",
            f"daemon restarting - {safe} tok safe - retry in {state.connection_lost.retry_s:g} s",
            "Esc stop",
            "warning",
        )
    if state.paused:
        return Line(
            "[!]", f"paused {clean(state.paused.pause.words())} - {safe} tok safe", "Esc stop", "warning"
        )
    if state.engine_lost:
        return Line(
            "[!]",
            f"engine restarting - {state.engine_lost.safe_tokens} tok safe, the answer goes on",
            "Esc stop",
            "warning",
        )
    if state.going_down:
        return Line("[!]", f"the daemon stops in {state.going_down.grace_s:.0f} s", "", "warning")
    if state.notice and state.notice.code != "saved":
        return Line("[!]", clean(state.notice.message), "Esc stop", "warning")
    elapsed = f"{max(0.0, at - began):.1f} s"
    if state.queue is not None:
        return Line("[~]", clean(waiting_line(state, me)), "Esc withdraw", "busy")
    if state.phase in (Phase.SENT, Phase.WAITING, Phase.READING) and health and (why := engine_line(health)):
        return Line("[~]", f"{clean(why)}  {elapsed}", "Esc withdraw", "busy")
    if state.phase in (Phase.SENT, Phase.WAITING):
        return Line("[~]", f"sent  {elapsed}", "Esc withdraw", "busy")
    if state.phase is Phase.READING:
        done = f" {state.prefill.done:,} of {state.prefill.total:,} tok" if state.prefill else ""
        return Line("[~]", f"reading{done}  {elapsed}", "Esc stop", "busy")
    word = "thinking" if state.phase is Phase.THINKING else "writing"
    return Line("[#]", f"{word}  {_figures(state.stats)}  {elapsed}", "Esc stop", "busy")


def _figures(stats: events.Stats | None) -> str:
    """`418 tok  62 tok/s  TTFT 0.41 s`; a figure that is not known is n/a, never 0."""
    if stats is None:
        return "n/a tok"
    speed = f"{stats.tok_s:.0f} tok/s" if stats.tok_s is not None else "n/a tok/s"
    ttft = f"{stats.ttft_ms / 1000:.2f} s" if stats.ttft_ms is not None else "n/a"
    return f"{stats.tokens} tok  {speed}  TTFT {ttft}"


def _ended(state: ChatState | None, how: str, detail: str, stopped: bool) -> Line:
    finished = state.finished if state else None
    if state is None or finished is None:
        if how in ("done", "growing"):
            return Line()
        said = (
            ended_in_words(detail)
            or {"stopped": "stopped", "length": "cut off at its limit", "error": "failed"}[how]
        )
        return Line("[=]", f"{said} - kept", "r redo  c continue")
    tokens = finished.usage.completion_tokens
    if finished.reason == "cancelled":
        by = "stopped by you" if stopped else ended_in_words(finished.detail) or "stopped from elsewhere"
        return Line("[=]", f"{by} at {tokens} tok - kept", "r redo  c continue")
    if finished.reason == "error":
        said = (finished.error or {}).get("message") or finished.detail or "the engine failed"
        return Line("[!]", f"{clean(str(said))} - {tokens} tok kept", "r redo", "error")
    if finished.reason == "length":
        why = clean(finished.detail) or f"its limit of {tokens} tok"
        return Line("[=]", f"the answer ended here: {why}", "c continue")
    timing = finished.timing
    speed = f"  {timing.tok_s:.0f} tok/s" if timing.tok_s is not None else ""
    ttft = f"  TTFT {timing.ttft_ms / 1000:.2f} s" if timing.ttft_ms is not None else ""
    return Line("   ", f"{tokens} tok{speed}{ttft}  {timing.total_ms / 1000:.1f} s")


def _full(now: Conversation) -> bool:
    return bool(now.ctx_used and now.ctx_max and needs_room(now.ctx_used, now.ctx_max))


def fitted(shown: Line, width: int) -> list[str]:
    """The lines, each of exactly `width` cells; of what does not fit the hint goes first, then the end of the words."""
    left = f" {shown.mark} {shown.words}"
    if shown.hint and cell_len(left) + cell_len(shown.hint) + 2 <= width:
        return [set_cell_size(left, width - cell_len(shown.hint) - 1) + shown.hint + " "]
    if shown.kind != "error":
        return [set_cell_size(left, width)]
    whole = f"{shown.words}. {shown.hint}" if shown.hint else shown.words
    lines = Content(whole).wrap(max(1, width - 6))
    head, *rest = (each.plain for each in lines[:MOST_LINES])
    return [
        set_cell_size(f" {shown.mark} {head}", width),
        *(set_cell_size(f"     {each}", width) for each in rest),
    ]


class StatusLine(Widget):
    DEFAULT_CSS = """
    StatusLine { height: auto; }
    StatusLine.-busy { color: $text; }
    StatusLine.-quiet { color: $text-muted; }
    StatusLine.-warning { color: $text-warning; }
    StatusLine.-error { color: $text-error; text-style: bold; }
    """
    _shown = Line()
    _height = 1

    def show(self, shown: Line) -> None:
        if shown != self._shown:
            if shown.kind != self._shown.kind:
                self.set_classes(f"-{shown.kind}")
            self._shown = shown
            height = len(fitted(shown, self.size.width))
            self.refresh(layout=height != self._height)
            self._height = height

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return len(fitted(self._shown, width))

    def render(self) -> Content:
        return Content("\n".join(fitted(self._shown, self.size.width)))
