"""What does the daemon remember of one request in the engine, so that a new engine can go on with it?

A `Stream` holds the submit frame and everything that has come back; `again()` is the frame that continues it. It
knows neither text nor people's connections: whoever owns the request listens through `Listener`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

import msgspec

from homebox.daemon import asked
from homebox.errors import HomeboxError
from homebox.wire import frames
from homebox.wire.pause import Pause


class Listener(Protocol):
    """Told in this order: any number of placed, running, progressed, lost and paused, then ended, exactly once."""

    def placed(self, position: int, waiting: int, ahead: tuple[str, ...]) -> None: ...

    def running(self) -> None: ...

    def progressed(self, progress: frames.Progress) -> None: ...

    def lost(self) -> None: ...

    def paused(self, pause: Pause) -> None: ...

    def ended(self, reason: frames.FinishReason, detail: str, error: HomeboxError | None) -> None: ...


# After so many tokens on a new engine a stream is not what killed the last one: two unrelated crashes hours apart, or
# somebody's `kill -9`, must not end an innocent answer. A request that kills again and again still makes so many tokens
# in between, so its number of crashes is bounded by its length.
FORGIVEN_AFTER_TOKENS = 64


class Phase(StrEnum):
    """What a monitor says of a stream."""

    WAITING = "waiting"
    PREFILL = "prefill"
    DECODE = "decode"
    REPLAY = "replay"
    HELD = "held"


@dataclass(eq=False)
class Stream:
    """One choice of one turn, from submit to its one end."""

    submit: frames.Submit
    listener: Listener
    request: str | None = field(default_factory=asked.current_id)  # the HTTP request that brought it
    output: list[int] = field(default_factory=list)
    charged: int = 0
    deaths: int = 0  # engines that died while this stream was in the running step, lately
    suspect: bool = False  # it was in such a step, and has not had a token of the new engine yet
    submitted: bool = False  # the engine that lives now has it
    aborted_at: float | None = None
    phase: Phase = Phase.WAITING
    position: int | None = None
    prefilled: int = 0
    cached: int = 0
    blocks: int = 0
    _made_since: int = 0  # tokens since its last death

    @property
    def id(self) -> str:
        return self.submit.id

    @property
    def aborting(self) -> bool:
        return self.aborted_at is not None

    def again(self, *, exclusive: bool) -> frames.Submit:
        """The frame that goes on from what has arrived. Prompt logprobs are complete once there is output, and are
        not asked for twice."""
        sampling = self.submit.sampling
        if self.output and sampling.prompt_logprobs is not None:
            sampling = msgspec.structs.replace(sampling, prompt_logprobs=None)
        return msgspec.structs.replace(
            self.submit,
            sampling=sampling,
            output=list(self.output),
            charged=self.charged,
            exclusive=exclusive,
        )

    def place(self, position: int, waiting: int, ahead: tuple[str, ...]) -> None:
        if self.phase not in (Phase.REPLAY, Phase.HELD) or self.submitted:
            self.phase = Phase.WAITING
        self.position = position
        if not self.aborting:
            self.listener.placed(position, waiting, ahead)

    def in_step(self) -> None:
        self.position = None
        if self.phase is not Phase.DECODE:
            self.phase = Phase.PREFILL
        self.listener.running()

    def progress(self, progress: frames.Progress) -> None:
        self.output.extend(progress.tokens)
        self.charged = max(self.charged, progress.charged)
        self.prefilled, self.blocks = progress.prefilled, progress.blocks
        self.cached = max(self.cached, progress.cached)
        if progress.tokens:
            self.suspect = False
            self.phase = Phase.DECODE
            self._made_since += len(progress.tokens)
            if self._made_since >= FORGIVEN_AFTER_TOKENS:
                self.deaths = 0
        self.listener.progressed(progress)

    def died_with(self) -> None:
        """The engine died while it computed this stream."""
        self.deaths += 1
        self._made_since = 0

    def lose(self) -> None:
        """The engine that had it is gone, and another follows."""
        self._leave_engine(Phase.REPLAY)
        self.listener.lost()

    def hold(self, pause: Pause) -> None:
        """There is no engine until somebody resumes."""
        self._leave_engine(Phase.HELD)
        self.listener.paused(pause)

    def _leave_engine(self, phase: Phase) -> None:
        self.submitted = False
        self.prefilled = self.blocks = 0
        if self.phase is not Phase.WAITING:
            self.phase = phase

    def abort(self) -> None:
        self.aborted_at = time.monotonic()
