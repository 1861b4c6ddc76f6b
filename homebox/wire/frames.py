"""What do the daemon and an engine say to each other?

Length-prefixed msgpack over a socketpair: four bytes little-endian length, then one tagged struct. The daemon sends
`Start` once, then `Submit` and `Abort`; the engine answers with `Loading`, `Ready`, then for every step `StepStarted`
before it is launched and `StepDone` after. A `Submit` carries enough to go on in a *new* engine (prompt, what was
already generated, the resolved seed), so the supervisor replays live streams after a crash by sending it again.

Nothing here assumes that the engine is a local child. Bump `VERSION` when a field changes its meaning.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Literal

import msgspec

# Structs with `gc=False` hold numbers and words only: a step makes some for each stream, and the collector need not look.
VERSION = 1
MAX_FRAME_BYTES = 256 * 1024 * 1024

Class = Literal["live", "normal", "background"]
FinishReason = Literal["stop", "length", "cancelled", "error"]


class Sampling(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """How the next token is chosen. Ranges are checked by the daemon before anything is queued.

    The order is the field's usual one: logit bias and penalties, temperature, top-k, top-p, min-p.
    """

    max_tokens: int
    temperature: float = 1.0  # 0 is greedy
    top_k: int = 0  # 0 is off
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0  # over prompt and output
    presence_penalty: float = 0.0  # over output
    frequency_penalty: float = 0.0  # over output
    logit_bias: dict[int, float] = {}
    seed: int = 0  # resolved: the daemon draws one where the person gave none
    min_tokens: int = 0
    end_tokens: tuple[
        int, ...
    ] = ()  # the union of the tokeniser's, the generation config's and the template's
    ignore_eos: bool = False
    logprobs: int | None = None  # None: none; n: the chosen token's and the n most likely
    prompt_logprobs: int | None = None  # the same for the prompt; such a request bypasses the prefix cache


# ---- daemon to engine


class Start(msgspec.Struct, frozen=True, tag="start"):
    """The first frame. `model_dir` is a directory of the library, `kv_bytes` 0 and `kv_host_bytes` None let the engine
    choose."""

    model_dir: str
    version: int = VERSION
    device: str = "auto"
    kv_bytes: int = 0
    max_running: int = 32
    max_chunk_tokens: int = 512
    block_size: int = 16
    threads: int = 0  # 0: all cores that this process may use, as kernels.cpu.placement says
    kernels: str = "auto"  # or "native", or "reference"
    attention: str = "auto"  # or "own": on a GPU nobody's kernels but ours
    quantize: str = (
        "auto"  # or "none": fp32; or "int8", "int4": float weights in groups of so many bits; or "fp8"
    )
    kv_type: str = "auto"  # or "bf16", "int8", "fp8": of keys and values, on a GPU
    depth: int = 1  # steps launched before the oldest is collected
    kv_host_bytes: int | None = None  # of host memory for KV that the device has no room for; 0: none


class Submit(msgspec.Struct, frozen=True, tag="submit", omit_defaults=True):
    """One request, whole. `output` and `charged` are what a replay brings along from the engine that died."""

    id: str
    person: str
    prompt: list[int]
    sampling: Sampling
    klass: Class = "normal"
    weight: float = 1.0
    output: list[int] = []
    choice: int = 0
    shared_prefix: int = 0  # the first so many prompt tokens are vouched for: cached across persons
    adapter: str = ""
    grammar: str = ""
    kind: Literal["generate", "embed"] = "generate"
    charged: int = 0  # prompt tokens this person has already paid for
    exclusive: bool = False  # nobody else in its step until its next token: a suspect after a crash


class Abort(msgspec.Struct, frozen=True, tag="abort"):
    id: str


class Stop(msgspec.Struct, frozen=True, tag="stop_engine"):
    """Leave after the running step; whatever is live is lost here and replayed elsewhere."""


# ---- engine to daemon


class Loading(msgspec.Struct, frozen=True, tag="loading"):
    stage: str
    done: int = 0
    total: int = 0


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    pid: int
    device: str
    max_context: int  # tokens one sequence may hold: the model's context, or less if the pool is smaller
    vocab_size: int
    block_size: int
    total_blocks: int
    kv_bytes: int
    weight_bytes: int
    max_running: int
    attention: str  # the kernels
    weights: str = ""  # the types of the matrices, as a person would say it
    kv: str = ""  # the type of keys and values
    path: str = "native"  # or "generic": said at load
    notes: list[str] = []  # what a person should know: fallbacks, reductions
    host_blocks: int = 0  # that the host tier can keep, of each group


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """A submit that can never run here; ends the request. `code` is an `errors` code."""

    id: str
    code: str
    message: str


class TopToken(msgspec.Struct, gc=False, frozen=True, array_like=True):
    token: int
    logprob: float


class TokenLogprob(msgspec.Struct, gc=False, frozen=True, array_like=True):
    logprob: float
    top: tuple[TopToken, ...] = ()


class StepStarted(msgspec.Struct, frozen=True, tag="step_started"):
    step: int
    predicted_ms: float
    requests: list[str]


class Progress(msgspec.Struct, gc=False, frozen=True, array_like=True):
    """What one step did for one request. `prefilled`: prompt tokens whose KV is valid now; `cached`: of those, taken
    from the prefix cache; `finish`: set on the request's last frame and never again."""

    id: str
    prefilled: int
    cached: int
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    finish: FinishReason | None = None
    detail: str = ""  # why, in words, where `finish` alone does not say it
    blocks: int = 0  # blocks held now
    charged: int = 0  # prompt tokens paid for so far


class Place(msgspec.Struct, gc=False, frozen=True, array_like=True):
    """`position` is 1 for the next to be admitted; `ahead` names the first few persons before it, each once."""

    id: str
    position: int
    ahead: tuple[str, ...]


class PoolState(msgspec.Struct, gc=False, frozen=True, array_like=True):
    total: int
    used: int
    cached: int
    free: int
    prefix_hit_tokens: int
    prefix_query_tokens: int
    preemptions: int
    host_total: int = 0  # blocks that the host tier can keep, 0 without one
    host_used: int = 0
    host_hit_tokens: int = 0  # whose KV came back from there


class Holding(msgspec.Struct, frozen=True, array_like=True):
    """Blocks that only this person's sequences use; `doubled` of them are in several of their tables."""

    person: str
    blocks: int
    doubled: int


class Holdings(msgspec.Struct, frozen=True, array_like=True):
    """Who uses the used blocks; `shared` of them are in tables of several persons."""

    people: tuple[Holding, ...]
    shared: int


class StepDone(msgspec.Struct, frozen=True, tag="step_done"):
    """After a step, and also after an abort or an admission with no step in between (`step` is then 0)."""

    step: int
    progress: list[Progress]
    pool: PoolState
    running: int
    waiting: int
    started_at: float = 0.0  # time.monotonic() of launch, seconds: one clock for both processes of a machine
    step_ms: float = 0.0
    plan_ms: float = 0.0
    decode_rows: int = 0
    prefill_tokens: int = 0
    places: list[Place] | None = (
        None  # of waiting requests, when any has changed; a long line in several frames
    )
    holdings: Holdings | None = None  # when somebody came or went, and about once a second


class Fault(msgspec.Struct, frozen=True, tag="fault"):
    """The engine is about to exit, and says why."""

    code: str
    message: str


ToEngine = Start | Submit | Abort | Stop
FromEngine = Loading | Ready | Refused | StepStarted | StepDone | Fault

_encoder = msgspec.msgpack.Encoder()
_to_engine = msgspec.msgpack.Decoder(ToEngine)
_from_engine = msgspec.msgpack.Decoder(FromEngine)
_HEADER = struct.Struct("<I")


def encode(frame: ToEngine | FromEngine) -> bytes:
    """One frame as bytes, its length first."""
    body = _encoder.encode(frame)
    return _HEADER.pack(len(body)) + body


class Splitter:
    """Bytes in, whole frames out. Raises ValueError on an impossible length, msgspec.DecodeError on a bad body."""

    def __init__(self, direction: Literal["to_engine", "from_engine"]) -> None:
        self._decoder: msgspec.msgpack.Decoder[ToEngine] | msgspec.msgpack.Decoder[FromEngine]
        self._decoder = _to_engine if direction == "to_engine" else _from_engine
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[ToEngine | FromEngine]:
        self._buffer += data
        start = 0
        try:
            while len(self._buffer) - start >= _HEADER.size:
                (size,) = _HEADER.unpack_from(self._buffer, start)
                if size > MAX_FRAME_BYTES:
                    raise ValueError(f"a frame of {size} bytes; the limit is {MAX_FRAME_BYTES}")
                end = start + _HEADER.size + size
                if len(self._buffer) < end:
                    break
                frame = self._decoder.decode(memoryview(self._buffer)[start + _HEADER.size : end])
                start = end
                yield frame
        finally:
            del self._buffer[:start]
