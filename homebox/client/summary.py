"""How does a conversation that has filled its context go on in a new one?

With a summary of it, written by the model from the whole path. The path may be nearly as long as the context, so it
is read in pieces: a summary of the first, then of that summary and the second, and so on. Nothing is left out in
silence: a message that is too long goes into several pieces, a piece that turns out too long for the context is cut in
two and read again, and a summary that reached its own limit says so at its end. Thoughts of a reasoning model are not
part of what was said. It draws nothing and makes no chat: the person sees the summary, changes it, and sends it.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec

from homebox.client import models, stream
from homebox.client.connection import Daemon
from homebox.client.models import ModelRow
from homebox.client.state import ChatState
from homebox.errors import Busy, ContextLengthExceeded, EngineFailed, InvalidRequest, Unavailable, from_dict
from homebox.wire.chats import ChatView
from homebox.wire.requests import AskRequest, Message, Options

FULL = 0.9  # of the context
_ANSWER_SHARE, _MAX_ANSWER_TOKENS = 0.25, 1024
_SPARE_TOKENS = 200  # the instruction, and what a template puts around it
_CHARACTERS_PER_TOKEN = 3.0  # where nothing was counted yet
_CAREFUL = 0.8  # the counted rate is that of the whole path; a piece of it may hold more tokens
_LEAST_CHARACTERS = 200  # a context that has no room for so little holds no conversation
_WORDS_PER_TOKEN = 0.6

_SYSTEM = (
    "You write summaries of conversations, so that somebody who has only the summary can go on with them."
    " Keep names, numbers, decisions, wishes, open questions and the exact words of what must not change."
    " Leave out greetings and repetition. Write only the summary, in the language of the conversation."
)
_SO_FAR = "The summary so far:\n\n{summary}\n\nWhat was said after that:\n\n{piece}"
_ORDER = "Write one summary of all of this in at most {words} words."


class Progress(msgspec.Struct, frozen=True):
    """Piece `part` of `parts` (there may be more before the end) and the summary of it that is being written."""

    part: int
    parts: int
    state: ChatState


def needs_room(ctx_used: int, ctx_max: int) -> bool:
    """Whether it is time to offer a summary or a new chat."""
    return ctx_max > 0 and ctx_used >= FULL * ctx_max


def first_message(title: str, summary: str) -> str:
    """How the summary is put to the model in the new chat, above what the person writes."""
    about = f' about "{" ".join(title.split())}"' if title.strip() else ""
    return (
        f"We have spoken before{about}. This is a summary of what was said:\n\n{summary.strip()}\n\n"
        "Go on from there.\n\n"
    )


def summarise(daemon: Daemon, view: ChatView, *, on_progress: Callable[[Progress], None]) -> str:
    """A summary of the path of `view`. What `on_progress` raises ends it and the work in the engine.

    Raises Busy while an answer of the chat is being written, ContextLengthExceeded for a context in which nothing has
    room, EngineFailed for a summary without a word, and what the daemon refuses."""
    if view.turns:
        raise Busy("an answer of this conversation is still being written", hint="Wait for it, or stop it.")
    text = transcript(view)
    if not text:
        raise InvalidRequest("there is nothing to sum up: nothing was said", hint="Write the first message.")
    fold = _Fold(daemon, _model(daemon, view.model), on_progress)
    return fold.of(pieces(text, fold.fitting(int(fold.room * _rate(view, text) * _CAREFUL))))


class _Fold:
    """A summary that takes in one piece after the other. `room` in tokens is what a piece may have."""

    def __init__(self, daemon: Daemon, model: ModelRow, on_progress: Callable[[Progress], None]) -> None:
        self._daemon, self._name, self._context = daemon, model.name, model.context or 0
        self._tell = on_progress
        self._answer_tokens = max(16, min(_MAX_ANSWER_TOKENS, int(self._context * _ANSWER_SHARE)))
        # The summary so far comes back with the next piece, so its room is kept twice.
        self.room = self._context - 2 * self._answer_tokens - _SPARE_TOKENS

    def of(self, waiting: list[str]) -> str:
        summary, read, cut = "", 0, 0
        while waiting:
            try:
                state = self._ask(summary, waiting[0], read + 1, read + len(waiting))
            except ContextLengthExceeded as error:
                half = self.fitting(math.ceil(len(waiting[0]) / 2), error)
                waiting[:1] = pieces(waiting[0], half)
                continue
            summary = state.text.strip()
            cut += bool(state.finished and state.finished.reason == "length")
            read += 1
            del waiting[0]
        return summary + (
            f"\n\n(This summary reached its limit and was cut off there, {cut} of {read} times.)"
            if cut
            else ""
        )

    def fitting(self, characters: int, refused: ContextLengthExceeded | None = None) -> int:
        """Raises ContextLengthExceeded where so few characters are left that going on makes no sense."""
        if characters >= _LEAST_CHARACTERS:
            return characters
        raise refused or ContextLengthExceeded(
            f"the model's context of {self._context:,} tokens has no room for a summary and what it is of",
            hint="/new starts a new conversation.",
            numbers={"context_tokens": self._context},
        )

    def _ask(self, summary: str, piece: str, part: int, parts: int) -> ChatState:
        """One answer, whole. Raises what the daemon or the engine says against it, and ContextLengthExceeded where the
        context ended before the answer did."""
        request = AskRequest(
            messages=[Message("system", _SYSTEM), Message("user", self._prompt(summary, piece))],
            options=Options(model=self._name, max_tokens=self._answer_tokens, temperature=0.0),
        )
        state = ChatState()
        with stream.ask(self._daemon, request) as reply:
            for state, _, _ in stream.read(reply):
                self._tell(Progress(part, parts, state))
        self._check(state)
        return state

    def _prompt(self, summary: str, piece: str) -> str:
        said = _SO_FAR.format(summary=summary, piece=piece) if summary else piece
        return f"{said.strip()}\n\n---\n{_ORDER.format(words=int(self._answer_tokens * _WORDS_PER_TOKEN))}"

    def _check(self, state: ChatState) -> None:
        finished = state.finished
        if finished and finished.error:
            raise from_dict(finished.error)
        if finished is None or finished.reason in ("error", "cancelled"):
            why = (finished and finished.detail) or "it was stopped"
            raise EngineFailed(f"the summary was not finished: {why}", hint="/summarise tries again.")
        whole = finished.usage.prompt_tokens + finished.usage.completion_tokens
        if finished.reason == "length" and whole >= self._context:
            raise ContextLengthExceeded(
                f"the context of {self._context:,} tokens ended before the summary did",
                hint="/new starts a new conversation.",
                numbers={"context_tokens": self._context, "prompt_tokens": finished.usage.prompt_tokens},
            )
        if not state.text.strip():
            raise EngineFailed(
                "the model wrote an empty summary", hint="/summarise tries again; /new starts without one."
            )


def transcript(view: ChatView) -> str:
    """All that was said on the path, each under who said it."""
    names = {"user": "Person", "assistant": "Model"}
    return "\n\n".join(
        f"{names[each.role]}: {each.content.strip()}" for each in view.messages if each.content.strip()
    )


def pieces(text: str, most: int) -> list[str]:
    """`text` in pieces of at most `most` characters that together are all of it: cut between paragraphs where that
    leaves no piece half empty, else between lines, else between words, else anywhere."""
    made = []
    while len(text) > most:
        at = next(
            (
                found + len(gap)
                for gap in ("\n\n", "\n", " ")
                if (found := text.rfind(gap, most // 2, most - len(gap) + 1)) >= 0
            ),
            most,
        )
        made.append(text[:at])
        text = text[at:]
    return [*made, text] if text else made


def _rate(view: ChatView, text: str) -> float:
    """Characters a token in this conversation: counted by its last answer that was counted."""
    counted = [each.usage for each in view.messages if each.usage]
    tokens = counted[-1].prompt_tokens + counted[-1].completion_tokens if counted else 0
    return min(len(text) / tokens, _CHARACTERS_PER_TOKEN * 2) if tokens else _CHARACTERS_PER_TOKEN


def _model(daemon: Daemon, name: str | None) -> ModelRow:
    """The chat's own model if it is served, else the one that is. Raises Unavailable where the daemon does not say how
    long its context is."""
    listed = models.served(daemon)
    found = next((each for each in listed if each.name == name), listed[0] if listed else None)
    if found is None or not found.context:
        raise Unavailable(
            "how long the model's context is, is not known", hint="homebox status shows how the box is."
        )
    return found
