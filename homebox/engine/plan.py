"""What exactly does one step compute?

A `StepPlan` is all that the runner gets: immutable, made of numbers only, serialisable (`encode`), so that a step that
hung or crashed can be written down and run again elsewhere. It says what is new, not what the runner knows: who took a
slot, and where a block table changed. The plans since a sequence was admitted say all of it; they are played again in
their order, or the last one alone on the tables as they stand. A `StepResult` is all that comes back.
"""

from __future__ import annotations

import msgspec

from homebox.wire.frames import Sampling, TokenLogprob


class Admission(msgspec.Struct, frozen=True):
    """A sequence takes a slot of the runner: how its tokens are chosen, and what it holds so far."""

    slot: int
    sampling: Sampling
    prompt: tuple[int, ...]
    output: tuple[int, ...]


class Row(msgspec.Struct, gc=False, frozen=True):
    """Tokens `start` .. `start + count - 1` of one sequence.

    `tokens` are their ids; it is empty where the only one was sampled by a step that is not read back yet: the runner
    keeps it in its token pool under `slot`. With `sample`, the step chooses the token at position `start + count`.
    `targets` are the prompt's next tokens whose logprobs are asked for, aligned with the row's first positions.

    `layers`: the first, and the one behind the last, that this step computes for it; None is all of them. A chunk of a
    long prompt may pass through the layers in several steps: it is the same row in each of them, the runner keeps what it
    has come to, and `sample` and `targets` are of the last. At most one row of a plan, the last one, has some layers only.
    """

    id: str
    serial: int
    residency: int
    slot: int
    start: int
    count: int
    tokens: tuple[int, ...]
    sample: bool
    targets: tuple[int, ...] = ()
    layers: tuple[int, int] | None = None


class TableChange(msgspec.Struct, gc=False, frozen=True, array_like=True):
    """The block table of `slot` in `group` holds these blocks from entry `index` on; what it held before that entry it
    still holds. Blocks behind a sliding window may be -1: no row reads them any more."""

    slot: int
    group: int
    index: int
    blocks: tuple[int, ...]


Move = tuple[int, int, int]  # a group, a block of it on the device, a slot of it on the host


class StepPlan(msgspec.Struct, frozen=True):
    step: int
    rows: tuple[Row, ...]
    admitted: tuple[Admission, ...]
    tables: tuple[TableChange, ...]  # since the last plan, of the sequences in `rows`
    decode_rows: int
    prefill_tokens: int  # of the prompts whose rows pass the last layer
    tokens: int  # computed; a token in some of the layers counts as much of one, here and below
    kv_tokens: int  # context tokens read
    query_key_pairs: int
    predicted_ms: float
    # First all of these are copied from block to slot, then all of these from slot to block; then the rows are computed.
    moved_out: tuple[Move, ...] = ()
    moved_in: tuple[Move, ...] = ()


class Outcome(msgspec.Struct, gc=False, frozen=True):
    """What a row made. `error` in words: the request ends with it, the engine goes on."""

    token: int = -1
    logprob: TokenLogprob | None = None
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    error: str = ""


class StepResult(msgspec.Struct, frozen=True):
    """One outcome for each row of the plan, in its order. `step_ms`: how long the device computed, which says nothing about the
    next such step where it was not a `usual` one; `moved_ms`: how long the plan's moves took. `fits`: a step of more tokens
    did not fit into the device's memory and was computed in parts; 0: no trouble."""

    step: int
    outcomes: tuple[Outcome, ...]
    step_ms: float
    moved_ms: float = 0.0
    usual: bool = True
    fits: int = 0


encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(StepPlan).decode
