"""How is a conversation written down that is only ever appended to?

Labelled paragraphs on standard output, and one answer's events as the lines they make. It reads nothing and decides
nothing.
"""

from __future__ import annotations

import sys
from typing import Any

from homebox.client import connection
from homebox.client.phrases import engine_line, notice, really_waits, waiting_line
from homebox.client.sanitise import Sanitiser, clean
from homebox.client.state import ChatState, ConnectionLost, fresh_text
from homebox.wire import events


class Transcript:
    """Standard output as a growing list of labelled paragraphs. Without `thoughts` they are one status line."""

    def __init__(self) -> None:
        self.thoughts = True
        self._label = ""  # of the paragraph that is being written
        self._at_line_start = True
        self._status = ""

    def write(self, label: str, text: str) -> None:
        """Go on with the paragraph `label`, or begin one. `text` is sanitised by the caller."""
        if not text:
            return
        if self._label != label:
            self.end()
            text = f"{label}: {text.removeprefix(' ')}"  # an answer that goes on does so with a blank
            self._label = label
        sys.stdout.write(text)
        sys.stdout.flush()
        self._at_line_start = text.endswith("\n")
        self._status = ""

    def end(self) -> None:
        """Close the open paragraph, so that the next thing starts on its own line."""
        if not self._at_line_start:
            sys.stdout.write("\n")
            sys.stdout.flush()
        self._at_line_start, self._label = True, ""

    def status(self, text: str) -> None:
        """A line about what goes on, unless it was the last thing said."""
        if text == self._status:
            return
        self.end()
        one_line = " ".join(text.split("\n"))  # what somebody wrote begins no line of its own
        sys.stdout.write(clean(f"status: {one_line}") + "\n")
        sys.stdout.flush()
        self._status = text

    def new_line(self) -> None:
        """The person has said something: what is told next is news, whatever was told before."""
        self._status = ""


class Drawing:
    """Writes one answer's events as they change its state."""

    def __init__(self, out: Transcript) -> None:
        self._out = out
        self._text = Sanitiser()
        self._thoughts = Sanitiser()
        self._why = ""  # the engine is not ready: more than a place in the queue

    def explain(self, health: dict[str, Any]) -> None:
        self._why = engine_line(health).partition(" (")[0]  # every step of it would be many lines
        if self._why:
            self._out.status(self._why)

    @property
    def removed(self) -> int:
        return self._text.removed

    def draw(self, before: ChatState, after: ChatState, event: events.Event | ConnectionLost) -> None:
        if said := notice(event):
            self._out.status(said)
        elif (
            (line := waiting_line(after, connection.own_name()))
            and not isinstance(event, ConnectionLost)
            and really_waits(before, event)
        ):
            self._out.status(self._why or line.replace(" - ", "; "))  # a dash is read out, or not at all
        if after.think != before.think and self._out.thoughts:
            self._out.write("thinking", self._thoughts.feed(after.think[len(before.think) :]))
        elif after.think != before.think:
            self._out.status("thinking")
        if after.text != before.text:
            self._out.write("homebox", self._text.feed(fresh_text(before, after)))
