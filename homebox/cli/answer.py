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
from homebox.client.phrases import engine_line, notice, progress_line, really_waits, stats_line, waiting_line
from homebox.client.sanitise import Sanitiser, safe_json
from homebox.client.state import ChatState, fresh_text
from homebox.errors import HomeboxError, UsageError
from homebox.wire import events


@dataclass(frozen=True)
class Options:
    stream: bool = True
    think: bool = False
    stats: bool = False
    quiet: bool = False
    output: Path | None = None
    me: str = ""  # the name by which the daemon knows who asks
    attached: bool = False  # the daemon goes on when we leave
    asked_tokens: int | None = None  # --max-tokens; a smaller limit is the person's or the box's


@dataclass(frozen=True)
class Outcome:
    """How it went. `interrupted`: stopped by a signal or from elsewhere; the text so far is in `state`."""

    state: ChatState
    error: HomeboxError | None = None
    interrupted: bool = False


class Writer(Protocol):
    def write(self, before: ChatState, after: ChatState, event: events.Event, line: bytes) -> None: ...

    def explain(self, health: dict[str, Any]) -> None: ...

    def end(self, outcome: Outcome) -> None: ...


class _Narration:
    """On standard error: what goes on while there is no answer yet."""

    def __init__(self, options: Options) -> None:
        self.status = StatusLine(quiet=options.quiet)
        self._options = options
        self._why = ""  # the engine is not ready: more than a place in the queue

    def tell(self, before: ChatState, after: ChatState, event: events.Event) -> bool:
        """True if there was something to tell of this event."""
        if said := notice(event):
            self.status.clear()
            if not self._options.quiet:
                say(said)
        elif (line := waiting_line(after, self._options.me)) and (
            self.status.on_terminal or really_waits(before, event)
        ):
            self.status.show(self._why or line)
        else:
            return False
        return True

    def explain(self, health: dict[str, Any]) -> None:
        line = engine_line(health)
        # A log gets a line a state, a terminal every step of it.
        self._why = line if self.status.on_terminal else line.partition(" (")[0]
        if self._why:
            self.status.show(self._why)


class PlainText:
    """The answer as text, sanitised, with a final newline; what else is to be said goes to standard error."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._sanitiser = Sanitiser()
        self._narration = _Narration(options)
        self._status = self._narration.status
        self.explain = self._narration.explain
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
        if not self._narration.tell(before, after, event) and self._status.on_terminal and not after.text:
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
        if outcome.interrupted and finished is None and self._options.attached:
            say("left; the daemon goes on with it")
        elif outcome.interrupted:
            by = (
                f"from elsewhere ({finished.detail})"
                if finished and finished.detail
                else "before it was finished"
            )
            say(f"stopped {by}; what arrived is above" if self._written else f"stopped {by}")
        if finished and finished.reason == "length":
            made = finished.usage.completion_tokens
            whose = "--max-tokens" if made == self._options.asked_tokens else "homebox whoami shows yours"
            limit = f"its limit of {made} tokens ({whose})"
            say(
                f"the answer ended here: {finished.detail}"
                if finished.detail
                else f"the answer ended at {limit}"
            )
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
        self._narration = _Narration(options)
        self.explain = self._narration.explain

    def write(self, before: ChatState, after: ChatState, event: events.Event, line: bytes) -> None:
        self._narration.tell(before, after, event)

    def end(self, outcome: Outcome) -> None:
        self._narration.status.clear()
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
    """The daemon's lines as they come. The last is always `finished`: where the daemon's did not come, it is ours."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._kept: list[str] = []

    def write(self, before: ChatState, after: ChatState, event: events.Event, line: bytes) -> None:
        self._put(safe_json(line.decode()))

    def explain(self, health: dict[str, Any]) -> None:
        return  # these lines are the daemon's

    def end(self, outcome: Outcome) -> None:
        if outcome.state.finished is None:
            self._put(safe_json(events.encode(_unfinished(outcome)).decode()))
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


def _unfinished(outcome: Outcome) -> events.Finished:
    """The end of an answer of which the daemon did not tell the end."""
    return events.Finished(
        reason="error" if outcome.error else "cancelled",
        usage=events.Usage(prompt_tokens=0, completion_tokens=outcome.state.stats.tokens)
        if outcome.state.stats
        else events.Usage(0, 0),
        timing=events.Timing(),
        error=outcome.error.as_dict() if outcome.error else None,
    )


def _deliver(text: str, output: Path | None) -> None:
    if output is None:
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    try:
        output.write_text(text, encoding="utf-8", newline="")
    except OSError as error:
        raise UsageError(f"{output}: {error.strerror or error}") from None
