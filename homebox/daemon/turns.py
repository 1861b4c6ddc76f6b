"""What is one answer while it is made: whose is it, how far has it come, how did it end?

A `Turn` is one generation for one person, with one choice or several, each a stream in the engine. It ends for its
reader when every choice has closed (a stop string closes one at once), and it is *free* when the engine has confirmed
that each stream's blocks are. Who shows it to somebody watches it through `Watcher`. It knows no HTTP and no limits.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Sequence
from enum import StrEnum

from homebox.daemon.answer import Answer
from homebox.daemon.asked import Asked
from homebox.daemon.streams import Phase, Stream
from homebox.errors import HomeboxError
from homebox.wire.events import StreamRow, Timing, Usage
from homebox.wire.frames import Class, FinishReason, Progress, TokenLogprob
from homebox.wire.pause import Pause


class TurnState(StrEnum):
    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"


# By which door a turn came: the beginning of a route's pattern (`asked.route`), the key in a path left out.
_DOORS = (("POST /homebox/ask", "ask"), ("POST /homebox/", "chat"), ("POST /v1/", "api"))


class Watcher:
    """Told what happens to a turn; every method may be left out."""

    def queued(self, position: int, waiting: int, ahead: tuple[str, ...]) -> None: ...

    def started(self) -> None: ...

    def prefilled(self, done: int, total: int) -> None: ...

    def grew(self) -> None: ...

    def lost(self) -> None: ...

    def paused(self, pause: Pause) -> None: ...

    def going_down(self, grace_s: float) -> None: ...

    def done(self) -> None: ...


class Choice:
    """One of a turn's answers; what the supervisor tells about its stream lands here."""

    def __init__(self, turn: Turn, index: int, answer: Answer, prompt: Sequence[int]) -> None:
        self.turn = turn
        self.index = index
        self.answer = answer
        self.prompt = prompt
        self.prompt_logprobs: list[TokenLogprob] = []
        self.stream: Stream | None = None
        self.finish: FinishReason | None = None
        self.detail = ""
        self.error: HomeboxError | None = None
        self.tokens = 0
        self.last_token_at: float | None = None

    @property
    def closed(self) -> bool:
        return self.finish is not None

    def close(self, reason: FinishReason, detail: str = "", error: HomeboxError | None = None) -> None:
        """The end as its reader sees it; the first one counts."""
        if self.finish is None:
            self.answer.close()
            stopped = self.answer.stopped and reason != "error"
            self.finish = "stop" if stopped else reason
            self.detail, self.error = detail, error
            self.turn.choice_closed()

    # ---- Listener

    def placed(self, position: int, waiting: int, ahead: tuple[str, ...]) -> None:
        self.turn.placed(position, waiting, ahead)

    def running(self) -> None:
        self.turn.running()

    def progressed(self, progress: Progress) -> None:
        if self.closed:
            return  # tokens that were under way when a stop string or a cancel ended it
        self.prompt_logprobs += progress.prompt_logprobs
        if not progress.tokens:
            self.turn.prefilled()
            return
        before, answer = self.tokens, self.answer
        last = len(progress.tokens) - 1 if progress.finish == "stop" else -1
        for place, token in enumerate(progress.tokens):
            self.tokens += 1
            if place == last:
                break  # the end token is counted, never shown
            answer.push(token, progress.logprobs[place] if progress.logprobs else None)
            if answer.stopped:
                break
        self.turn.spoke(self, self.tokens - before, time.monotonic())
        if answer.stopped:
            self.close("stop")
            self.turn.release(self)

    def lost(self) -> None:
        if not self.tokens:
            self.prompt_logprobs.clear()  # the next engine sends them from the start
        self.turn.lost()

    def paused(self, pause: Pause) -> None:
        if not self.tokens:
            self.prompt_logprobs.clear()
        self.turn.paused(self, pause)

    def ended(self, reason: FinishReason, detail: str, error: HomeboxError | None) -> None:
        if reason == "length" and not detail and self._context_is_full():
            detail = f"the context of {len(self.prompt) + self.tokens:,} tokens is full"
        self.close(reason, detail, error)
        self.turn.stream_ended()

    def _context_is_full(self) -> bool:
        """Whether it ended for want of room, not at the length that was asked for. An engine that was not there yet when
        the turn began may have less room than the turn was told of."""
        allowed = self.stream.submit.sampling.max_tokens if self.stream else 0
        return self.tokens < allowed or len(self.prompt) + self.tokens >= self.turn.context


class Turn:
    """`id` is what its reader and the monitor call it; `abort` withdraws a stream from the engine."""

    def __init__(
        self,
        *,
        kind: str,
        person: str,
        model: str,
        klass: Class,
        context: int,
        key: str | None = None,
        abort: Callable[[Stream], None],
        on_token: Callable[[Turn, float | None], None] = lambda turn, gap_ms: None,
        on_step: Callable[[Turn], None] = lambda turn: None,
        on_free: Callable[[Turn], None] = lambda turn: None,
        eta_s: Callable[[int], float | None] = lambda position: None,
    ) -> None:
        self.id = f"{kind}-{secrets.token_hex(12)}"
        self.person, self.model, self.klass, self.context = person, model, klass, context
        self.key = key  # the id of the key with which it was asked for
        self.choices: list[Choice] = []
        self.watcher = Watcher()
        self.asked: Asked | None = None  # the request that began it
        self.state = TurnState.WAITING
        self.position: int | None = None
        self.tokens_out = 0  # of all its choices
        self.created_at = time.monotonic()
        self.created_unix = int(time.time())
        self.started_at: float | None = None
        self.first_token_at: float | None = None
        self.last_token_at: float | None = None
        self.done_at: float | None = None
        self.placed_once = asyncio.Event()  # it has its place in the queue, or has ended
        self.free = asyncio.Event()
        self._live_streams = 0
        self._prompts = 0
        self._abort, self._on_token, self._on_free = abort, on_token, on_free
        self._on_step = on_step
        self.eta_s = eta_s  # when a place in the queue may come to an end

    # ---- making and ending

    def add(self, answer: Answer, prompt: Sequence[int]) -> Choice:
        choice = Choice(self, len(self.choices), answer, prompt)
        self.choices.append(choice)
        return choice

    def submitted(self, choice: Choice, stream: Stream) -> None:
        choice.stream = stream
        self._live_streams += not choice.closed

    def cancel(self, why: str, error: HomeboxError | None = None) -> None:
        """End it for its reader at once; it is free when the engine says so."""
        if self.state is TurnState.DONE:
            return
        for choice in self.choices:
            choice.close("cancelled", why, error)
            self.release(choice)

    def cut(self, why: str) -> None:
        """End it where it is: its owner may have no more."""
        for choice in self.choices:
            choice.close("length", why)
            self.release(choice)

    def release(self, choice: Choice) -> None:
        if choice.stream is not None:
            self._abort(choice.stream)

    # ---- what the choices tell

    def placed(self, position: int, waiting: int, ahead: tuple[str, ...]) -> None:
        self.placed_once.set()
        if self.state is TurnState.WAITING and position != self.position:
            self.position = position
            self.watcher.queued(position, waiting, ahead)

    def running(self) -> None:
        if self.state is TurnState.WAITING:
            self.state = TurnState.RUNNING
            self.started_at = time.monotonic()
            self.position = None
            self.placed_once.set()
            self.watcher.started()

    def prefilled(self) -> None:
        streams = [choice.stream for choice in self.choices if choice.stream]
        self.watcher.prefilled(
            sum(stream.prefilled for stream in streams), sum(len(stream.submit.prompt) for stream in streams)
        )
        self._on_step(self)

    def spoke(self, choice: Choice, tokens: int, now: float) -> None:
        self.tokens_out += tokens
        gap_ms = (now - choice.last_token_at) * 1000 if choice.last_token_at else None
        choice.last_token_at = self.last_token_at = now
        first, self.first_token_at = self.first_token_at is None, self.first_token_at or now
        if first or gap_ms is not None:
            self._on_token(self, gap_ms)
        self.watcher.grew()
        self._on_step(self)

    def lost(self) -> None:
        if self.state is TurnState.RUNNING:
            self.watcher.lost()

    def paused(self, choice: Choice, pause: Pause) -> None:
        """Told once, though each choice hears it."""
        if self.state is not TurnState.DONE and choice is next(c for c in self.choices if not c.closed):
            self.watcher.paused(pause)

    def choice_closed(self) -> None:
        if self.state is not TurnState.DONE and all(choice.closed for choice in self.choices):
            self.state = TurnState.DONE
            self.done_at = time.monotonic()
            self.placed_once.set()
            self.watcher.done()
        else:
            self.watcher.grew()

    def stream_ended(self) -> None:
        self._live_streams -= 1
        if self._live_streams <= 0 and self.state is TurnState.DONE:
            self.free.set()
            self._on_free(self)

    # ---- how it stands

    @property
    def error(self) -> HomeboxError | None:
        return next((choice.error for choice in self.choices if choice.error), None)

    @property
    def outcome(self) -> FinishReason:
        """One word for all its choices: the worst that happened to any of them."""
        order: tuple[FinishReason, ...] = ("error", "cancelled", "length", "stop")
        reasons = {choice.finish for choice in self.choices}
        return next((reason for reason in order if reason in reasons), "error")

    @property
    def tokens_in(self) -> int:
        """Each prompt counted once, however many choices it has."""
        return sum(len(prompt) for prompt in {id(c.prompt): c.prompt for c in self.choices}.values())

    @property
    def usage(self) -> Usage:
        cached = {id(c.prompt): c.stream.cached for c in reversed(self.choices) if c.stream}
        return Usage(self.tokens_in, self.tokens_out, sum(cached.values()))

    @property
    def ttft_ms(self) -> float | None:
        return None if self.first_token_at is None else (self.first_token_at - self.created_at) * 1000

    @property
    def tok_s(self) -> float | None:
        """Tokens after each choice's first, over the time they took."""
        if (
            self.first_token_at is None
            or self.last_token_at is None
            or self.last_token_at <= self.first_token_at
        ):
            return None
        later = self.tokens_out - sum(1 for choice in self.choices if choice.tokens)
        return later / (self.last_token_at - self.first_token_at)

    @property
    def timing(self) -> Timing:
        end = self.done_at or time.monotonic()
        return Timing(
            queue_ms=((self.started_at or end) - self.created_at) * 1000,
            ttft_ms=self.ttft_ms,
            total_ms=(end - self.created_at) * 1000,
            tok_s=self.tok_s,
        )

    def row(self, for_person: str) -> StreamRow:
        """What the monitor shows of it."""
        streams = [choice.stream for choice in self.choices if choice.stream]
        phases = {stream.phase for stream in streams}
        order = (Phase.DECODE, Phase.PREFILL, Phase.REPLAY, Phase.HELD, Phase.WAITING)
        return StreamRow(
            id=self.id,
            person=self.person,
            state=next((phase for phase in order if phase in phases), Phase.WAITING),
            model=self.model,
            klass=self.klass,
            tokens_in=self.tokens_in,
            tokens_out=self.tokens_out,
            position=min((s.position for s in streams if s.position is not None), default=None),
            prefilled=sum(stream.prefilled for stream in streams),
            tok_s=self.tok_s,
            ttft_ms=self.ttft_ms,
            blocks=sum(stream.blocks for stream in streams),
            age_s=time.monotonic() - self.created_at,
            mine=self.person == for_person,
            cached=self.usage.cached_tokens,
            max_tokens=sum(stream.submit.sampling.max_tokens for stream in streams) or None,
            queue_ms=self.timing.queue_ms,
            client=self.door,
        )

    @property
    def door(self) -> str:
        route = self.asked.route.replace(" /k/{key}/", " /", 1) if self.asked else ""
        return next((door for begins, door in _DOORS if route.startswith(begins)), "")
