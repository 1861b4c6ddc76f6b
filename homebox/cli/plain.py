"""How does a conversation look when it is only ever appended to?

The line-mode chat: labels `you:`, `homebox:`, `thinking:` and `status:`, no cursor movement, no boxes, no spinner, a
status line only when it says something new. It serves screen readers, dumb terminals, pipes and tests. The daemon owns
the conversation; this reads lines, sends them as turns of one chat, and writes what the reducer says. It knows no
command line.
"""

from __future__ import annotations

import difflib
import secrets
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from homebox.cli.answer import engine_line, loading_step, notice, really_waits, stats_line, waiting_line
from homebox.cli.keyboard import Keyboard
from homebox.client import connection, stream
from homebox.client.connection import Daemon
from homebox.client.patience import Patience
from homebox.client.sanitise import Sanitiser, clean
from homebox.client.state import ChatState, ConnectionLost, fresh_text
from homebox.errors import HomeboxError, from_dict
from homebox.wire import events
from homebox.wire.requests import Options, TurnCreated, TurnRequest

HELP = {
    "/help": "this list",
    "/new": "start a new conversation",
    "/system TEXT": "start a new conversation with this instruction",
    "/stats": "counts and speeds of the last answer",
    "/quit": "leave (also Ctrl-D)",
}


class Transcript:
    """Standard output as a growing list of labelled paragraphs."""

    def __init__(self) -> None:
        self._label = ""  # of the paragraph that is being written
        self._at_line_start = True
        self._status = ""

    def write(self, label: str, text: str) -> None:
        """Go on with the paragraph `label`, or begin one. `text` is sanitised by the caller."""
        if not text:
            return
        if self._label != label:
            self.end()
            text = f"{label}: {text}"
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
        sys.stdout.write(f"status: {clean(text)}\n")
        sys.stdout.flush()
        self._status = text

    def new_line(self) -> None:
        """The person has said something: what is told next is news, whatever was told before."""
        self._status = ""


class _Stop:
    """While an answer is written: the first Ctrl-C stops it in the daemon and its end is still read, the second leaves
    it to the daemon and returns to the prompt."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._turn = ""
        self._before: Any = None
        self.asked = False

    def watch(self, turn: str) -> None:
        self._turn = turn
        if self.asked:
            self._cancel()

    def __enter__(self) -> _Stop:
        self._before = signal.signal(signal.SIGINT, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        if self._turn:
            self._cancel()

    def _cancel(self) -> None:
        # Cancelling waits for the engine; the reader beside it must go on reading, or the last words are lost.
        threading.Thread(target=self._try_cancel, daemon=True).start()

    def _try_cancel(self) -> None:
        try:
            stream.cancel(self._daemon, self._turn)
        except HomeboxError:
            return  # it ended by itself, or the daemon is away; the reader sees which


class Conversation:
    """One chat of the daemon, and the lines that are said in it."""

    def __init__(self, daemon: Daemon, options: Options, system: str | None) -> None:
        self._daemon = daemon
        self._options = options
        self._system = system
        self._chat = secrets.token_hex(8)
        self._begun = False  # something was said in this chat
        self._last: ChatState | None = None
        self._out = Transcript()
        self.exit_code = 0
        self.stopped = False  # the last answer was, by Ctrl-C

    def status(self, text: str) -> None:
        self._out.status(text)

    def say(self, text: str) -> bool:
        """A line that a person typed: a command, or a message whose answer is written out. False means leave."""
        self._out.new_line()
        self.stopped = False
        word, _, rest = text.rstrip().partition(" ")
        if word == "/quit":
            return False
        if command := self._command(word):
            command(rest.strip())
        elif word.startswith("/") and not rest and (near := self._near(word)):
            self.status(
                f"there is no command {word}; did you mean {near}? (a space before it sends it as text)"
            )
        elif text.strip():
            self._turn(text)
        return True

    def _near(self, word: str) -> str:
        known = [name.split()[0] for name in HELP]
        return next(iter(difflib.get_close_matches(word, known, 1)), "")

    def _command(self, word: str) -> Callable[[str], None] | None:
        return {
            "/help": self._help,
            "/new": self._new,
            "/system": self._set_system,
            "/stats": self._stats,
        }.get(word)

    def _help(self, rest: str) -> None:
        for name, about in HELP.items():
            self.status(f"{name:14} {about}")

    def _new(self, rest: str) -> None:
        self._begin()
        self.status("a new conversation")

    def _set_system(self, rest: str) -> None:
        self._system = rest or None
        self._begin()
        self.status("a new conversation, " + ("with this instruction" if rest else "without an instruction"))

    def _begin(self) -> None:
        self._chat, self._begun = secrets.token_hex(8), False

    def _stats(self, rest: str) -> None:
        self.status(stats_line(self._last) if self._last else "nothing has been answered yet")

    def _turn(self, text: str) -> None:
        stop = _Stop(self._daemon)
        try:
            with stop:
                self._last = self._answer(text, stop)
        except KeyboardInterrupt:
            self.status("left to the daemon; homebox streams list shows whether it still writes")
        except HomeboxError as error:
            self._failed(error)
        self.stopped = stop.asked

    def _answer(self, text: str, stop: _Stop) -> ChatState:
        request = TurnRequest(
            key=secrets.token_hex(16), text=text, system=self._system, options=self._options
        )
        created = self._start(request)
        if created is None:
            self.status("the conversation so far is lost in the daemon; a new one begins")
            self._begin()
            created = self._start(request)
        assert created is not None  # a new chat cannot be lost
        self._begun = True
        stop.watch(created.turn)
        state, drawing = ChatState(), _Drawing(self._out)
        with Patience(self._daemon, drawing.explain) as patience:
            for after, event in stream.follow(self._daemon, created.turn):
                with patience.hear(after):
                    drawing.draw(state, after, event)
                state = after
        self._finish(state, drawing, stopped=stop.asked)
        return state

    def _start(self, request: TurnRequest) -> TurnCreated | None:
        away = False

        def on_retry(lost: ConnectionLost) -> None:
            nonlocal away
            away = True
            self.status(notice(lost))

        created = stream.start_turn(self._daemon, self._chat, request, begun=self._begun, on_retry=on_retry)
        if away:
            self.status("the daemon is back")
        return created

    def _finish(self, state: ChatState, drawing: _Drawing, *, stopped: bool) -> None:
        self._out.end()
        finished = state.finished
        if finished is None:
            return
        tokens = finished.usage.completion_tokens
        if finished.error or finished.reason == "error":
            self._failed(from_dict(finished.error or {"code": "engine_failed", "message": finished.detail}))
        elif finished.reason == "cancelled":
            how = "stopped by you" if stopped else finished.detail or "stopped from elsewhere"
            self.status(f"{how} at {tokens} tokens - kept")
        elif finished.reason == "length":
            ended = f"here: {finished.detail}" if finished.detail else f"at its limit of {tokens} tokens"
            self.status(f"the answer ended {ended}")
        if drawing.removed:
            self.status(f"{drawing.removed} terminal control characters were left out of the answer")

    def _failed(self, error: HomeboxError) -> None:
        self.exit_code = self.exit_code or error.exit_code
        self.status(" - ".join(part for part in (error.message, error.hint) if part))


class _Drawing:
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
            self._out.status(self._why or line)
        if after.think != before.think:
            self._out.write("thinking", self._thoughts.feed(after.think[len(before.think) :]))
        if after.text != before.text:
            self._out.write("homebox", self._text.feed(fresh_text(before, after)))


def greeting(health: dict[str, Any]) -> str:
    """`smollm2-135m is ready`, `smollm2-135m is loading (weights 31%)`: short, since it comes before every chat."""
    model, state = health.get("model") or "the daemon", health.get("state") or "there"
    if state == "paused":
        return f"{model} is paused {health.get('detail') or ''}; homebox resume ends it"
    if state == "unloaded":
        return f"{model} is {health.get('detail') or 'asleep'}"
    return f"{model} is {state}" + loading_step(health)


def converse(conversation: Conversation, first: str | None) -> int:
    """Read lines until the person leaves. Returns the exit code; at a terminal each failure was seen, and it is 0."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        _converse(conversation, first, _read_piped)
        return conversation.exit_code
    with Keyboard() as keyboard:
        _converse(conversation, first, lambda: keyboard.read_line("you: ", offer=conversation.stopped))
    return 0


def _converse(conversation: Conversation, first: str | None, read: Callable[[], str | None]) -> None:
    if first is not None:
        print(f"you: {clean(first)}", flush=True)
        conversation.say(first)
    while True:
        try:
            line = read()
        except KeyboardInterrupt:
            print()
            conversation.stopped = False
            conversation.status("Ctrl-D or /quit leaves")
            continue
        except UnicodeError:
            conversation.status("that line is not UTF-8 text and was not sent")
            continue
        if line is None or not conversation.say(line):
            return


def _read_piped() -> str | None:
    line = sys.stdin.readline()
    if not line:
        return None
    line = line.rstrip("\n")
    if line.strip():
        print(f"you: {clean(line)}", flush=True)
    return line
