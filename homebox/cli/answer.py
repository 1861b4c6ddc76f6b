"""How is one answer written: as plain text, as one JSON object, or as the daemon's event lines?

Each `Writer` is told every event with the state before and after it, and at the end how it went. Standard output (or
the file of `-o`) gets the answer and nothing else. Writers decide nothing: neither when to stop nor the exit code.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec

from homebox.cli.terminal import StatusLine, say
from homebox.client.sanitise import Sanitiser, safe_json
from homebox.client.state import ChatState, ConnectionLost, Phase, fresh_text
from homebox.errors import HomeboxError, UsageError
from homebox.wire import events


@dataclass(frozen=True)
class Options:
    stream: bool = True
    think: bool = False
    stats: bool = False
    quiet: bool = False
    output: Path | None = None


@dataclass(frozen=True)
class Outcome:
    """How it went. `interrupted`: stopped by a signal or from elsewhere; the text so far is in `state`."""

    state: ChatState
    error: HomeboxError | None = None
    interrupted: bool = False


class Writer(Protocol):
    def write(self, before: ChatState, after: ChatState, event: events.Event, line: bytes) -> None: ...

    def end(self, outcome: Outcome) -> None: ...


class PlainText:
    """The answer as text, sanitised, with a final newline; what else is to be said goes to standard error."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._sanitiser = Sanitiser()
        self._status = StatusLine(quiet=options.quiet)
        self._thoughts = Sanitiser()
        self._thinking = False
        self._written = ""  # the last piece written
        self._kept: list[str] = []

    def write(self, before: ChatState, after: ChatState, event: events.Event, line: bytes) -> None:
        self._narrate(before, after, event)
        if text := self._sanitiser.feed(fresh_text(before, after)):
            self._status.clear()
            self._end_thoughts()
            self._put(text)

    def end(self, outcome: Outcome) -> None:
        self._status.clear()
        self._end_thoughts()
        if self._written and not self._written.endswith("\n"):
            self._put("\n")
        if self._kept:
            _deliver("".join(self._kept), self._options.output)
        if not self._options.quiet:
            self._last_notes(outcome)

    def _put(self, text: str) -> None:
        self._written = text
        if self._options.stream and self._options.output is None:
            sys.stdout.write(text)
            sys.stdout.flush()
        else:
            self._kept.append(text)

    def _narrate(self, before: ChatState, after: ChatState, event: events.Event) -> None:
        if self._options.think and after.think != before.think:
            self._think(after.think[len(before.think) :])
        if said := notice(event):
            self._status.clear()
            if not self._options.quiet:
                say(said)
        elif (line := waiting_line(after)) and (self._status.on_terminal or really_waits(before, event)):
            self._status.show(line)
        elif self._status.on_terminal and not after.text:
            self._status.show(progress_line(after))

    def _think(self, text: str) -> None:
        self._status.clear()
        if not self._thinking:
            self._thinking = True
            sys.stderr.write("thinking: ")
        sys.stderr.write(self._thoughts.feed(text))
        sys.stderr.flush()

    def _end_thoughts(self) -> None:
        if self._thinking:
            self._thinking = False
            sys.stderr.write("\n")
            sys.stderr.flush()

    def _last_notes(self, outcome: Outcome) -> None:
        finished = outcome.state.finished
        if outcome.interrupted:
            by = (
                f"from elsewhere ({finished.detail})"
                if finished and finished.detail
                else "before it was finished"
            )
            say(f"stopped {by}; what arrived is above" if self._written else f"stopped {by}")
        if finished and finished.reason == "length":
            say(f"the answer ended at its limit of {finished.usage.completion_tokens} tokens (--max-tokens)")
        if self._sanitiser.removed:
            say(
                f"{self._sanitiser.removed} terminal control characters were left out of the answer (--json shows them)"
            )
        if self._options.stats:
            say(stats_line(outcome.state))


class JsonObject:
    """One JSON object at the end, whatever happened: the exact text, the counts, and the error if there was one."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._status = StatusLine(quiet=options.quiet)

    def write(self, before: ChatState, after: ChatState, event: events.Event, line: bytes) -> None:
        if said := notice(event):
            self._status.clear()
            if not self._options.quiet:
                say(said)
        elif (text := waiting_line(after)) and (self._status.on_terminal or really_waits(before, event)):
            self._status.show(text)

    def end(self, outcome: Outcome) -> None:
        self._status.clear()
        state, finished = outcome.state, outcome.state.finished
        reason = finished.reason if finished else "error" if outcome.error else "cancelled"
        body: dict[str, Any] = {
            "text": state.text,
            "thinking": state.think or None,
            "reason": reason,
            "usage": finished.usage if finished else None,
            "timing": finished.timing if finished else None,
            "error": outcome.error.as_dict() if outcome.error else None,
        }
        _deliver(safe_json(msgspec.json.encode(body).decode()) + "\n", self._options.output)
        if self._options.stats and not self._options.quiet:
            say(stats_line(state))


class EventLines:
    """The daemon's lines as they come; an error that is not in them gets a last line of its own."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._kept: list[str] = []

    def write(self, before: ChatState, after: ChatState, event: events.Event, line: bytes) -> None:
        self._put(safe_json(line.decode()))

    def end(self, outcome: Outcome) -> None:
        if outcome.error is not None and outcome.state.finished is None:
            self._put(safe_json(msgspec.json.encode({"error": outcome.error.as_dict()}).decode()))
        if self._kept:
            _deliver("".join(self._kept), self._options.output)
        if self._options.stats and not self._options.quiet:
            say(stats_line(outcome.state))

    def _put(self, line: str) -> None:
        if self._options.output is None:
            sys.stdout.write(line + "\n")
            sys.stdout.flush()
        else:
            self._kept.append(line + "\n")


def _deliver(text: str, output: Path | None) -> None:
    if output is None:
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    try:
        output.write_text(text, encoding="utf-8", newline="")
    except OSError as error:
        raise UsageError(f"{output}: {error.strerror or error}") from None


# ---- words for events; the line-mode chat uses them too


def waiting_line(state: ChatState) -> str:
    """`waiting: place 3 of 5 - ahead: dad, leo`, or nothing if it does not wait in the queue."""
    if state.queue is None:
        return ""
    ahead = f" - ahead: {', '.join(dict.fromkeys(state.queue.ahead))}" if state.queue.ahead else ""
    eta = f" - about {state.queue.eta_s:.0f} s" if state.queue.eta_s is not None else ""
    return f"waiting: place {state.queue.position} of {state.queue.waiting}{ahead}{eta}"


def really_waits(before: ChatState, event: events.Event) -> bool:
    """True if somebody is ahead, or if there was time for more than one event while waiting: every request is queued
    for a moment, and a line about a moment is noise."""
    if isinstance(event, events.Queued):
        return event.position > 1 or bool(event.ahead) or before.queue is not None
    return before.queue is not None


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
