"""How does a conversation look when it is only ever appended to?

The line-mode chat: labels `you:`, `homebox:`, `thinking:` and `status:`, no boxes, no spinner, a status line only when it
says something new. It serves screen readers, dumb terminals, pipes and tests. The daemon owns the conversation; this
sends lines as turns of one chat and writes what the reducer says. What a command does is in `plain_commands.py`, where
lines come from in `converse.py`. It knows no command line.
"""

from __future__ import annotations

import secrets
import signal
import threading
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import msgspec

from homebox.cli import plain_commands
from homebox.cli.transcript import Drawing, Transcript
from homebox.client import chats, commands, stream
from homebox.client.connection import Daemon
from homebox.client.patience import Patience
from homebox.client.phrases import ended_in_words, notice
from homebox.client.sanitise import clean
from homebox.client.state import ChatState, ConnectionLost
from homebox.errors import HomeboxError, InvalidRequest, from_dict
from homebox.wire.chats import ContinueRequest, MessageView, RegenerateRequest
from homebox.wire.requests import Options, TurnRequest

_NEARLY_FULL = 0.9


class Stop:
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

    def __enter__(self) -> Stop:
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
        self.daemon = daemon
        self.system = system  # of a chat that is still to begin
        self.chat = chat or secrets.token_hex(8)
        self.begun = chat is not None  # the daemon knows it: something was said in it
        self.documents: list[str] = []  # they go with the next message
        self.deleted: str | None = None  # the chat that was deleted last
        self.last: ChatState | None = None
        self.exit_code = 0
        self.stopped = False  # the last answer was, by Ctrl-C
        self.out = Transcript()
        self._options = options

    def status(self, text: str) -> None:
        self.out.status(text)

    def paragraph(self, label: str, text: str) -> None:
        self.out.write(label, clean(text))
        self.out.end()

    def failed(self, error: HomeboxError) -> None:
        self.exit_code = self.exit_code or error.exit_code
        self.status(f"{error.message.rstrip('.')}. {error.hint}" if error.hint else error.message)

    # ---- which chat

    def begin_new(self, system: str | None = None) -> None:
        self.chat, self.begun, self.system = secrets.token_hex(8), False, system

    def go_to(self, chat: str) -> None:
        """Go on with a chat that is there. Raises NotFound."""
        self.chat, self.begun = chat, True
        self.resume()

    def resume(self) -> None:
        """Show the last question and its answer, to its end if it is still being written. Raises NotFound."""
        shown = chats.show(self.daemon, self.chat)
        self.status(f"going on with: {shown.title or shown.id} ({len(shown.messages)} messages)")
        for each in shown.messages[-2:]:
            if each.id in shown.turns:
                self.guarded(partial(self._follow, shown.turns[each.id]))
            else:
                self.paragraph("you" if each.role == "user" else "homebox", each.content)
                if each.state != "done":
                    how = ended_in_words(each.detail) or chats.in_words(each.state)
                    self.status(f"{how}; /continue goes on with it")

    def need_words(self) -> None:
        """Raises InvalidRequest where nothing was said yet: the daemon hears of a conversation with its first words."""
        if not self.begun:
            raise InvalidRequest("nothing has been said in this conversation yet")

    def last_message(self) -> MessageView:
        """Raises InvalidRequest where there is none."""
        self.need_words()
        messages = chats.show(self.daemon, self.chat).messages
        if not messages:
            raise InvalidRequest("nothing has been said in this conversation yet")
        return messages[-1]

    # ---- what is said

    def say(self, text: str) -> bool:
        """A line that a person typed: a command, or a message whose answer is written out. False means leave."""
        self.out.new_line()
        self.stopped = False
        if meant := commands.parse(text, on_screen=False):
            command, rest = meant
            if command.name == plain_commands.QUIT:
                return False
            self.guarded(partial(plain_commands.DO[command.name], self, rest))
        elif near := commands.near(text.rstrip(), on_screen=False):
            word = text.rstrip()
            self.status(
                f"there is no command {word}; did you mean {near}? (a space before it sends it as text)"
            )
        elif text.strip():
            self.guarded(partial(self._ask, text))
        return True

    def guarded(self, what: Callable[[Stop], None]) -> None:
        """Ctrl-C stops an answer; whatever goes wrong is said, and the conversation goes on."""
        stop = Stop(self.daemon)
        try:
            with stop:
                what(stop)
        except KeyboardInterrupt:
            self.status("left to the daemon; homebox streams list shows whether it still writes")
        except HomeboxError as error:
            self.failed(error)
        self.stopped = stop.asked

    # ---- answers

    def use_model(self, name: str) -> None:
        self._options = msgspec.structs.replace(self._options, model=name)

    def show_thoughts(self) -> bool:
        """Show thoughts where they were folded, and the other way round; True if they are shown now."""
        self.out.thoughts = not self.out.thoughts
        return self.out.thoughts

    def regenerate(self, stop: Stop) -> None:
        self.need_words()
        request = RegenerateRequest(key=_key(), options=self._options)
        self._follow(self._begin(chats.path(self.chat, "regenerate"), request), stop)

    def go_on(self, stop: Stop) -> None:
        """Continue the last answer. Raises InvalidRequest where there is none."""
        last = self.last_message()
        if last.turn is None:
            raise InvalidRequest("there is no answer to go on with")
        request = ContinueRequest(key=_key(), options=self._options)
        turn = self._begin(f"/homebox/turns/{last.turn}/continue", request)
        self._follow(turn, stop, ChatState(text=last.content, think=last.think))

    def _ask(self, text: str, stop: Stop) -> None:
        whole = "\n\n".join([text, *self.documents])
        request = TurnRequest(key=_key(), text=whole, system=self.system, options=self._options)
        turn = self._begin(chats.path(self.chat, "turns"), request)
        self.begun, self.system, self.documents = True, None, []
        self._follow(turn, stop)

    def _follow(self, turn: str, stop: Stop, begun: ChatState | None = None) -> None:
        stop.watch(turn)
        state, drawing = begun or ChatState(), Drawing(self.out)
        with Patience(self.daemon, drawing.explain) as patience:
            for after, event in stream.follow(self.daemon, turn, begun=begun):
                with patience.hear(after):
                    drawing.draw(state, after, event)
                state = after
        self._finish(state, drawing, stopped=stop.asked)
        self.last = state

    def _begin(self, path: str, request: TurnRequest | RegenerateRequest | ContinueRequest) -> str:
        away = False

        def on_retry(lost: ConnectionLost) -> None:
            nonlocal away
            away = True
            self.status(notice(lost))

        created = stream.begin(self.daemon, path, request, on_retry=on_retry)
        if away:
            self.status("the daemon is back")
        return created.turn

    def _finish(self, state: ChatState, drawing: Drawing, *, stopped: bool) -> None:
        self.out.end()
        finished = state.finished
        if finished is None:
            return
        tokens = finished.usage.completion_tokens
        if finished.reason == "cancelled":
            how = "stopped by you" if stopped else ended_in_words(finished.detail) or "stopped from elsewhere"
            next_step = "; /continue goes on with it" if how.startswith("daemon ") else ""
            self.status(f"{how} at {tokens} tokens; what arrived is kept{next_step}")
        elif finished.error or finished.reason == "error":
            self.failed(from_dict(finished.error or {"code": "engine_failed", "message": finished.detail}))
        elif finished.reason == "length":
            ended = (
                f"here: {finished.detail}"
                if finished.detail
                else f"at its limit of {tokens} tokens; /continue goes on with it"
            )
            self.status(f"the answer ended {ended}")
        if state.stats and state.stats.ctx_used >= _NEARLY_FULL * state.stats.ctx_max > 0:
            self.status(
                f"{state.stats.ctx_used:,} of the {state.stats.ctx_max:,} tokens of the context are used;"
                " /summarise goes on in a new conversation"
            )
        if drawing.removed:
            self.status(f"{drawing.removed} terminal control characters were left out of the answer")


def _key() -> str:
    return secrets.token_hex(16)
