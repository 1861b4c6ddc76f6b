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
from functools import partial
from types import FrameType
from typing import Any

from homebox.cli.answer import loading_step, notice, stats_line
from homebox.cli.keyboard import Keyboard
from homebox.cli.transcript import Drawing, Transcript
from homebox.client import chats, stream
from homebox.client.connection import Daemon
from homebox.client.patience import Patience
from homebox.client.sanitise import clean
from homebox.client.state import ChatState, ConnectionLost
from homebox.errors import HomeboxError, InvalidRequest, from_dict
from homebox.wire.chats import ContinueRequest, MessageView, RegenerateRequest
from homebox.wire.requests import Options, TurnRequest

HELP = {
    "/help": "this list",
    "/new": "start a new conversation",
    "/system TEXT": "start a new conversation with this instruction",
    "/regenerate": "answer the last question again",
    "/continue": "go on with an answer that was cut off",
    "/title TEXT": "give this conversation a name",
    "/chats": "the latest; homebox chat --chat ID goes on with one",
    "/stats": "counts and speeds of the last answer",
    "/quit": "leave (also Ctrl-D)",
}
LISTED = 10


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

    def __init__(self, daemon: Daemon, options: Options, system: str | None, chat: str | None = None) -> None:
        """`chat` is one that is there already; `resume` shows where it is."""
        self._daemon = daemon
        self._options = options
        self._system = system
        self._chat = chat or secrets.token_hex(8)
        self._begun = chat is not None  # the daemon knows it: something was said in it
        self._last: ChatState | None = None
        self._out = Transcript()
        self.exit_code = 0
        self.stopped = False  # the last answer was, by Ctrl-C

    def status(self, text: str) -> None:
        self._out.status(text)

    def resume(self) -> None:
        """Show the last question and its answer, to its end if it is still being written. Raises NotFound."""
        shown = chats.show(self._daemon, self._chat)
        self.status(f"going on with: {shown.title or shown.id} ({len(shown.messages)} messages)")
        for each in shown.messages[-2:]:
            if each.id in shown.turns:
                self._guarded(partial(self._follow, shown.turns[each.id]))
            else:
                self._out.write("you" if each.role == "user" else "homebox", clean(each.content))
                self._out.end()
                if each.state != "done":
                    self.status(f"{each.detail or chats.in_words(each.state)} - /continue goes on with it")

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
            self._guarded(lambda stop: self._ask(text, stop))
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
            "/regenerate": lambda rest: self._guarded(self._regenerate),
            "/continue": lambda rest: self._guarded(self._continue),
            "/title": lambda rest: self._guarded(lambda stop: self._title(rest)),
            "/chats": lambda rest: self._guarded(lambda stop: self._list()),
        }.get(word)

    def _help(self, rest: str) -> None:
        for name, about in HELP.items():
            self.status(f"{name:14} {about}")

    def _new(self, rest: str) -> None:
        self._leave()
        self.status("a new conversation")

    def _set_system(self, rest: str) -> None:
        self._system = rest or None
        self._leave()
        self.status("a new conversation, " + ("with this instruction" if rest else "without an instruction"))

    def _leave(self) -> None:
        self._chat, self._begun = secrets.token_hex(8), False

    def _need_words(self) -> None:
        """Raises InvalidRequest where nothing was said yet: the daemon hears of a conversation with its first words."""
        if not self._begun:
            raise InvalidRequest("nothing has been said in this conversation yet")

    def _stats(self, rest: str) -> None:
        self.status(stats_line(self._last) if self._last else "nothing has been answered yet")

    def _title(self, title: str) -> None:
        self._need_words()
        chats.change(self._daemon, self._chat, title=title)
        self.status(f"this conversation is called: {title}")

    def _list(self) -> None:
        for row, _ in zip(chats.rows(self._daemon, page=LISTED), range(LISTED), strict=False):
            self.status(f"{row.id}  {row.title}")

    # ---- answers

    def _guarded(self, what: Callable[[_Stop], None]) -> None:
        """Ctrl-C stops an answer; whatever goes wrong is said, and the conversation goes on."""
        stop = _Stop(self._daemon)
        try:
            with stop:
                what(stop)
        except KeyboardInterrupt:
            self.status("left to the daemon; homebox streams list shows whether it still writes")
        except HomeboxError as error:
            self._failed(error)
        self.stopped = stop.asked

    def _ask(self, text: str, stop: _Stop) -> None:
        request = TurnRequest(key=_key(), text=text, system=self._system, options=self._options)
        turn = self._begin(chats.path(self._chat, "turns"), request)
        self._begun = True
        self._follow(turn, stop)

    def _regenerate(self, stop: _Stop) -> None:
        self._need_words()
        request = RegenerateRequest(key=_key(), options=self._options)
        self._follow(self._begin(chats.path(self._chat, "regenerate"), request), stop)

    def _continue(self, stop: _Stop) -> None:
        self._need_words()
        last = self._last_message()
        request = ContinueRequest(key=_key(), options=self._options)
        turn = self._begin(f"/homebox/turns/{last.turn}/continue", request)
        self._follow(turn, stop, ChatState(text=last.content, think=last.think))

    def _last_message(self) -> MessageView:
        messages = chats.show(self._daemon, self._chat).messages
        if not messages or messages[-1].turn is None:
            raise InvalidRequest("there is no answer to go on with")
        return messages[-1]

    def _follow(self, turn: str, stop: _Stop, begun: ChatState | None = None) -> None:
        stop.watch(turn)
        state, drawing = begun or ChatState(), Drawing(self._out)
        with Patience(self._daemon, drawing.explain) as patience:
            for after, event in stream.follow(self._daemon, turn, begun=begun):
                with patience.hear(after):
                    drawing.draw(state, after, event)
                state = after
        self._finish(state, drawing, stopped=stop.asked)
        self._last = state

    def _begin(self, path: str, request: TurnRequest | RegenerateRequest | ContinueRequest) -> str:
        away = False

        def on_retry(lost: ConnectionLost) -> None:
            nonlocal away
            away = True
            self.status(notice(lost))

        created = stream.begin(self._daemon, path, request, on_retry=on_retry)
        if away:
            self.status("the daemon is back")
        return created.turn

    def _finish(self, state: ChatState, drawing: Drawing, *, stopped: bool) -> None:
        self._out.end()
        finished = state.finished
        if finished is None:
            return
        tokens = finished.usage.completion_tokens
        if finished.reason == "cancelled":
            how = "stopped by you" if stopped else finished.detail or "stopped from elsewhere"
            next_step = "; /continue goes on with it" if how.startswith("daemon ") else ""
            self.status(f"{how} at {tokens} tokens - kept{next_step}")
        elif finished.error or finished.reason == "error":
            self._failed(from_dict(finished.error or {"code": "engine_failed", "message": finished.detail}))
        elif finished.reason == "length":
            ended = (
                f"here: {finished.detail}"
                if finished.detail
                else f"at its limit of {tokens} tokens; /continue goes on with it"
            )
            self.status(f"the answer ended {ended}")
        if drawing.removed:
            self.status(f"{drawing.removed} terminal control characters were left out of the answer")

    def _failed(self, error: HomeboxError) -> None:
        self.exit_code = self.exit_code or error.exit_code
        self.status(" - ".join(part for part in (error.message, error.hint) if part))


def _key() -> str:
    return secrets.token_hex(16)


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
