"""What is one request, while it lives in the engine?

A `Sequence` is a list of tokens and a few lengths; everything else follows from them. Prefill, chunked prefill,
decode, resume after preemption and replay after a crash are all the same thing: some tokens are not computed yet.

    tokens     |-------- prompt --------|-- output --|  ? ? (sampled, not read back: `unknown`)
    computed   |=============|                             KV valid: the steps that wrote it have completed
    scheduled  |=============|-------|                     plus what launched steps are writing now
    pending                          |....................| still to be scheduled; 1 is a decode step

Plain Python, no tensors: the scheduler and its property tests run this by the million.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from homebox.wire.frames import FinishReason, Submit

CLASS_RANK = {"live": 0, "normal": 1, "background": 2}


class State(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class Sequence:
    """One sequence of tokens. `serial` is its order of arrival and never reused; `limit` is in tokens."""

    submit: Submit
    serial: int
    limit: int  # prompt and output together may not be longer than this
    tokens: list[int] = field(init=False)
    prompt_tokens: int = field(init=False)
    state: State = State.WAITING
    computed: int = 0
    scheduled: int = 0
    unknown: int = 0
    in_flight: int = 0  # launched steps that hold a row of this sequence
    residency: int = 0  # changes with every admission: a row of an earlier one no longer moves `computed`
    slot: int = -1
    tables: list[list[int]] = field(
        default_factory=list
    )  # one block table a KV group; -1 is behind the window
    behind: int = 0  # entries of the tables whose block was given back, behind a window
    chunk: int = 0  # tokens of a chunk that has passed some of the layers ...
    depth: int = 0  # ... so many, in launched steps
    returning: bool = False  # more of it is on the host, and comes back before anything is computed
    told: list[int] = field(
        default_factory=list
    )  # per group: entries of the table that plans have said already
    chains: list[int] = field(default_factory=list)  # per group: content id of the last sealed block
    sealed: int = 0  # blocks that are in the prefix index
    cached: int | None = None  # prompt tokens that the first admission found in the prefix cache
    charged: int = 0  # prompt tokens this person has paid for
    scored: int = 0  # prompt positions whose logprobs were delivered
    admitted_at: float = 0.0
    made: int = 0  # tokens made since the last admission
    short_at: int = -1  # the scheduler's chance at which blocks for this one were short
    passed_over: int = 0  # plans in which it got nothing, or others were admitted past it

    def __post_init__(self) -> None:
        self.tokens = [*self.submit.prompt, *self.submit.output]
        self.prompt_tokens = len(self.submit.prompt)
        self.charged = self.submit.charged

    @property
    def id(self) -> str:
        return self.submit.id

    @property
    def person(self) -> str:
        return self.submit.person

    @property
    def output_tokens(self) -> int:
        return len(self.tokens) - self.prompt_tokens

    @property
    def length(self) -> int:
        """Tokens including those that a launched step samples and nobody has read yet."""
        return len(self.tokens) + self.unknown

    @property
    def pending(self) -> int:
        return self.length - self.scheduled

    @property
    def exhausted(self) -> bool:
        """Launched steps already sample the last token that this sequence may have."""
        return self.length >= self.limit

    @property
    def rank(self) -> tuple[int, int]:
        """Who keeps memory when it runs out: the smallest rank is the last to give way."""
        return CLASS_RANK[self.submit.klass], self.serial

    @property
    def alone(self) -> bool:
        """A suspect after a crash runs with nobody else until it has made a token here."""
        return self.submit.exclusive and self.output_tokens == len(self.submit.output)

    def ending(self) -> tuple[FinishReason, str] | None:
        """Why the last known token is the last one, if it is."""
        sampling, made = self.submit.sampling, self.output_tokens
        if not sampling.ignore_eos and made and self.tokens[-1] in sampling.end_tokens:
            return "stop", ""
        if made >= sampling.max_tokens:
            return "length", ""
        if len(self.tokens) >= self.limit:
            return "length", f"the context of {self.limit} tokens is full"
        return None
