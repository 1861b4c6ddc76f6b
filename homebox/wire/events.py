"""What does the daemon tell a client about a turn, and what about the whole box?

NDJSON lines on the native routes: one tagged struct a line, each with a sequence number `seq` that only grows within
a turn, so that a reader who was cut off asks for `after=SEQ` and loses and doubles nothing. `client/state.py` folds
these into what a person sees; the daemon only writes them.
"""

from __future__ import annotations

from typing import Any

import msgspec

from homebox.wire.pause import Pause

SCHEMA = 1


class Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0


class Timing(msgspec.Struct, frozen=True):
    """Milliseconds, measured in the daemon. `tok_s` is over the tokens after the first."""

    queue_ms: float = 0.0
    ttft_ms: float | None = None
    total_ms: float = 0.0
    tok_s: float | None = None


class Base(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", omit_defaults=True):
    seq: int = 0


class Queued(Base, frozen=True, kw_only=True, tag="queued"):
    """`position` 1 is the next to run; `waiting` counts everybody in the queue."""

    position: int
    waiting: int
    ahead: tuple[str, ...] = ()
    eta_s: float | None = None


class Started(Base, frozen=True, kw_only=True, tag="started"):
    queue_ms: float


class Prefill(Base, frozen=True, kw_only=True, tag="prefill"):
    done: int
    total: int


class Think(Base, frozen=True, kw_only=True, tag="think"):
    text: str


class Text(Base, frozen=True, kw_only=True, tag="text"):
    """`offset` is the absolute character offset of `text` in the answer."""

    text: str
    offset: int


class Stats(Base, frozen=True, kw_only=True, tag="stats"):
    tokens: int
    tok_s: float | None
    ttft_ms: float | None
    ctx_used: int
    ctx_max: int


class Finished(Base, frozen=True, kw_only=True, tag="finished"):
    """The last event of a turn. `reason`: stop, length, cancelled, error; `error` as `HomeboxError.as_dict`."""

    reason: str
    usage: Usage
    timing: Timing
    detail: str = ""
    error: dict[str, Any] | None = None


class EngineLost(Base, frozen=True, kw_only=True, tag="engine_lost"):
    """The engine died or stalled; a new one starts and this answer goes on. `safe_tokens` are kept."""

    safe_tokens: int


class Paused(Base, frozen=True, kw_only=True, tag="paused"):
    """Somebody has taken the machine; this answer goes on when the box is resumed. `safe_tokens` are kept."""

    pause: Pause
    safe_tokens: int


class GoingDown(Base, frozen=True, kw_only=True, tag="going_down"):
    grace_s: float


class Resync(Base, frozen=True, kw_only=True, tag="resync"):
    """What the reader has is replaced by `text`, the answer from the start, and `think`: it was too slow, or reads an
    answer that is no longer told event by event."""

    text: str
    think: str = ""


class Notice(Base, frozen=True, kw_only=True, tag="notice"):
    """Something about this answer that a person should know while it goes on. `code`: no_space (it cannot be saved),
    saved (now it is), or that of another error of saving."""

    code: str
    message: str


class Heartbeat(Base, frozen=True, kw_only=True, tag="heartbeat"):
    pass


Event = (
    Queued
    | Started
    | Prefill
    | Think
    | Text
    | Stats
    | Finished
    | EngineLost
    | Paused
    | GoingDown
    | Resync
    | Notice
    | Heartbeat
)

# ---- the whole box


class StreamRow(msgspec.Struct, frozen=True, kw_only=True):
    """One request as the monitor shows it: names and counters, never anybody's words."""

    id: str
    person: str
    state: str  # waiting, prefill, decode, replay, held; of `Snapshot.ended`: stop, length, cancelled, error
    model: str
    klass: str
    tokens_in: int
    tokens_out: int
    position: int | None = None
    prefilled: int = 0
    tok_s: float | None = None
    ttft_ms: float | None = None
    blocks: int = 0
    age_s: float = 0.0
    mine: bool = False
    cached: int = 0  # prompt tokens that were found in the prefix cache
    max_tokens: int | None = None  # the longest that this answer may become
    queue_ms: float | None = None  # until its first step, or until now
    client: str = ""  # the door it came by: ask, chat, api
    ended_s: float | None = None  # seconds since it ended


class PersonBlocks(msgspec.Struct, frozen=True, kw_only=True):
    """Blocks that only this person's streams use; `doubled` of them serve several of their streams at once."""

    person: str
    blocks: int
    doubled: int = 0


class Blocks(msgspec.Struct, frozen=True, kw_only=True):
    total: int
    used: int
    cached: int
    free: int
    block_size: int
    people: tuple[PersonBlocks, ...] = ()  # who uses the used ones, as of the last second
    shared: int = 0  # of the used ones, those that several persons' streams use
    host_total: int = 0  # blocks that host memory can keep for conversations that rest; 0 without such a tier
    host_used: int = 0


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """`kind` is "gpu" or "cpu"; an unknown figure is None and shown as n/a, never 0."""

    kind: str
    name: str
    util_percent: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    power_limit_w: float | None = None
    clock_mhz: float | None = None
    fan_percent: float | None = None
    driver: str = ""


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """What `homebox top` shows at one moment."""

    schema: int = SCHEMA
    at: float  # unix seconds
    version: str
    uptime_s: float
    engine: str  # a state of `daemon/engine_state.py`, or draining
    engine_detail: str = ""
    engine_restarts: int = 0
    model: str | None = None
    max_context: int | None = None
    max_running: int | None = None
    devices: tuple[Device, ...] = ()
    blocks: Blocks | None = None
    prefix_hit_rate: float | None = None
    preemptions: int = 0
    running: int = 0
    waiting: int = 0
    tok_s_out: float = 0.0
    tok_s_in: float = 0.0
    step_ms: float | None = None
    ttft_p50_ms: float | None = None
    ttft_p95_ms: float | None = None
    gap_p50_ms: float | None = None
    gap_p95_ms: float | None = None
    streams: tuple[StreamRow, ...] = ()
    ended: tuple[StreamRow, ...] = ()  # of the last half minute, the newest first
    oldest_wait_s: float | None = None  # the age of the oldest request that has not begun
    weight_bytes: int | None = None  # memory of the model's weights, and of the KV blocks
    kv_bytes: int | None = None
    weights: str = ""  # the types of the matrices, as the engine says them: `int4 and int8`
    kv: str = ""  # the type of keys and values
    attention: str = ""  # the kernels: `native amx`
    host_hit_tokens: int = 0  # that came back from host memory
    past: bool = False  # one of the history, which has no rows


encode = msgspec.json.Encoder().encode
decode_event = msgspec.json.Decoder(Event).decode
decode_snapshot = msgspec.json.Decoder(Snapshot).decode
