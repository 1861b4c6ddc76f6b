"""How is what happens to an answer said to a person, in a few words?

Words for the states of the reducer and for what the daemon says of its engine, for every front end. It writes nothing.
"""

from __future__ import annotations

from typing import Any

from homebox.client.sanitise import clean
from homebox.client.state import ChatState, ConnectionLost, Phase
from homebox.wire import events


def waiting_line(state: ChatState, me: str = "") -> str:
    """`waiting: place 3 of 5 - ahead: dad, you`, or nothing if it does not wait in the queue."""
    if state.queue is None:
        return ""
    names = dict.fromkeys("you" if name == me else name for name in state.queue.ahead)
    ahead = f" - ahead: {', '.join(names)}" if names else ""
    eta = f" - about {state.queue.eta_s:.0f} s" if state.queue.eta_s is not None else ""
    return f"waiting: place {state.queue.position} of {state.queue.waiting}{ahead}{eta}"


def really_waits(before: ChatState, event: events.Event) -> bool:
    """True if somebody is ahead, or if there was time for more than one event while waiting: every request is queued
    for a moment, and a line about a moment is noise."""
    if isinstance(event, events.Queued):
        return event.position > 1 or bool(event.ahead) or before.queue is not None
    return before.queue is not None


def engine_line(health: dict[str, Any]) -> str:
    """What is waited for besides a place in the queue: `the model is loading (weights 20%)`; nothing if it is ready."""
    said = {
        "starting": "the model is loading",
        "loading": "the model is loading",
        "restarting": "the engine is being restarted",
        "waiting for the GPU": "the engine waits for its GPU",
        "failed": "the engine does not start; homebox doctor says more",
    }.get(str(health.get("state")), "")
    return said and said + loading_step(health)


def loading_step(health: dict[str, Any]) -> str:
    """` (weights 20%)`, or nothing."""
    progress = health.get("progress")
    if not isinstance(progress, dict) or not progress.get("stage"):
        return ""
    total = progress.get("total") or 0
    done = f" {100 * (progress.get('done') or 0) // total}%" if total else ""
    return f" ({progress['stage']}{done})"


def progress_line(state: ChatState) -> str:
    """What goes on before the first word of the answer."""
    if state.phase is Phase.THINKING:
        return "thinking ..."
    if state.prefill is not None and state.prefill.total:
        return f"reading: {state.prefill.done} of {state.prefill.total} tokens"
    return "reading ..." if state.phase is Phase.READING else ""


def notice(event: events.Event | ConnectionLost) -> str:
    """What a person should know at once, if this event is of that kind."""
    if isinstance(event, events.EngineLost):
        return f"the engine is being restarted; {event.safe_tokens} tokens are safe, the answer goes on"
    if isinstance(event, events.Paused):
        return (
            f"the box is paused {event.pause.words()}; {event.safe_tokens} tokens are safe, the answer goes on after"
            " homebox resume"
        )
    if isinstance(event, events.Notice):
        return event.message
    if isinstance(event, events.GoingDown):
        return f"the daemon stops in {event.grace_s:.0f} s"
    if isinstance(event, ConnectionLost):
        return f"the daemon does not answer; what arrived is safe, trying again in {event.retry_s:g} s"
    return ""


def stats_line(state: ChatState) -> str:
    """`31 tokens in, 118 out - TTFT 0.41 s - 62.0 tok/s - queued 0.0 s - 2.3 s in all - stop`; unknown is n/a."""
    finished = state.finished
    if finished is None:
        tokens = f"{state.stats.tokens} tokens out" if state.stats else "token counts n/a"
        return f"{tokens} - not finished"
    usage, timing = finished.usage, finished.timing
    cached = f" ({usage.cached_tokens} cached)" if usage.cached_tokens else ""
    ttft = f"{timing.ttft_ms / 1000:.2f} s" if timing.ttft_ms is not None else "n/a"
    speed = f"{timing.tok_s:.1f} tok/s" if timing.tok_s is not None else "n/a tok/s"
    return (
        f"{usage.prompt_tokens} tokens in{cached}, {usage.completion_tokens} out - TTFT {ttft} - {speed}"
        f" - queued {timing.queue_ms / 1000:.1f} s - {timing.total_ms / 1000:.1f} s in all - {finished.reason}"
    )


def ended_in_words(detail: str) -> str:
    """Why an answer ended, as the person who reads it is told: it is their own."""
    return "stopped by you" if detail == "stopped by its owner" else clean(detail)
