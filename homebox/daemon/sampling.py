"""Is what a client asks of the sampler possible, and what exactly does the engine get?

Every dialect fills a `Wanted`; `resolve` checks all ranges before anything is queued and returns one frame-ready
`Sampling` a choice. It knows no HTTP: an impossible value is an InvalidRequest whose `param` is the client's own
field name. Order of authority: the client, then the model's own generation defaults, then the field's usual values.
"""

from __future__ import annotations

import hashlib
import math
import secrets
from collections.abc import Mapping, Sequence

import msgspec

from homebox.errors import ContextLengthExceeded, InvalidRequest
from homebox.wire.frames import Sampling

MAX_CHOICES = 16
MAX_STOPS = 16
MAX_LOGPROBS = 20
INT32_LIMIT = 2**31
SEED_RANGE = 2**63  # seeds are folded into this, so that an engine may hold them in a signed 64-bit integer
# Above 2 a distribution is close to noise, and clients that send more have mixed up a scale.
RANGES: Mapping[str, tuple[float, float]] = {
    "temperature": (0.0, 2.0),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (0.0, 10.0),
    "presence_penalty": (-2.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
}
_ABOVE_ZERO = {"top_p", "repetition_penalty"}  # 0 would leave no token at all
_USUAL = {"temperature": 1.0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0}


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """A client's wishes, None where it had none. `max_tokens_param` is what its dialect calls that field."""

    max_tokens: int | None = None
    max_tokens_param: str = "max_tokens"
    min_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: Sequence[str] = ()
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: Mapping[str, float] | None = None
    ignore_eos: bool = False
    n: int | None = None
    logprobs: int | None = None
    logprobs_param: str = "logprobs"
    prompt_logprobs: int | None = None


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What the loaded model and its owner allow. `context` in tokens, `max_answer_tokens` 0 for no cap."""

    context: int
    vocab_size: int
    end_tokens: tuple[int, ...]
    generation: Mapping[str, float] = {}
    max_answer_tokens: int = 0


def check(wanted: Wanted, limits: Limits) -> None:
    """Everything that can be refused without knowing the prompt. Raises InvalidRequest."""
    for name, (low, high) in RANGES.items():
        value = getattr(wanted, name)
        if value is None:
            continue
        if math.isnan(value) or not low <= value <= high or (value == 0 and name in _ABOVE_ZERO):
            least = f"above {low:g}" if name in _ABOVE_ZERO else f"at least {low:g}"
            raise InvalidRequest(f"{name} is {value:g}; it must be {least} and at most {high:g}", param=name)
    _check_integers(wanted, limits)
    if len(wanted.stop) > MAX_STOPS:
        raise InvalidRequest(
            f"{len(wanted.stop)} stop strings; at most {MAX_STOPS} are possible", param="stop"
        )
    if "" in wanted.stop:
        raise InvalidRequest("an empty stop string would stop before the first word", param="stop")
    _logit_bias(wanted, limits)


def _check_integers(wanted: Wanted, limits: Limits) -> None:
    _integer(wanted.max_tokens_param, wanted.max_tokens, 1, INT32_LIMIT - 1)
    _integer("min_tokens", wanted.min_tokens, 0, limits.context)
    if wanted.top_k is not None and wanted.top_k < 0:
        raise InvalidRequest(
            f"top_k is {wanted.top_k}; it must be at least 0, and 0 turns it off", param="top_k"
        )
    _integer("top_k", wanted.top_k, 0, INT32_LIMIT - 1)
    _integer("n", wanted.n, 1, MAX_CHOICES)
    _integer(wanted.logprobs_param, wanted.logprobs, 0, MAX_LOGPROBS)
    _integer("seed", wanted.seed, -(2**63), 2**64 - 1)
    if wanted.max_tokens is not None and (wanted.min_tokens or 0) > wanted.max_tokens:
        raise InvalidRequest(
            f"min_tokens is {wanted.min_tokens}, more than {wanted.max_tokens_param} ({wanted.max_tokens})",
            param="min_tokens",
        )


def _integer(name: str, value: int | None, low: int, high: int) -> None:
    if value is not None and not low <= value <= high:
        raise InvalidRequest(f"{name} is {value}; it must be from {low} to {high}", param=name)


def _logit_bias(wanted: Wanted, limits: Limits) -> dict[int, float]:
    bias: dict[int, float] = {}
    for key, value in (wanted.logit_bias or {}).items():
        if not (key.isascii() and key.isdigit() and len(key) < 10 and int(key) < limits.vocab_size):
            raise InvalidRequest(
                f"logit_bias names token {key[:40]!r}; the model's tokens are 0 to {limits.vocab_size - 1}",
                param="logit_bias",
            )
        if math.isnan(value) or not -100 <= value <= 100:
            raise InvalidRequest(
                f"logit_bias[{key}] is {value:g}; it must be from -100 to 100", param="logit_bias"
            )
        bias[int(key)] = value
    return bias


def room(prompt_tokens: int, context: int) -> int:
    """Tokens left for the answer. Raises ContextLengthExceeded when there is none."""
    if prompt_tokens < context:
        return context - prompt_tokens
    raise ContextLengthExceeded(
        f"This model's maximum context length is {context} tokens. However, your prompt holds {prompt_tokens} tokens"
        + (", which leaves no room for an answer." if prompt_tokens == context else "."),
        hint="Shorten the prompt, or start a new chat.",
        param="messages",
        numbers={"ctx_used": prompt_tokens, "ctx_max": context},
    )


def resolve(wanted: Wanted, limits: Limits, prompt_tokens: int) -> list[Sampling]:
    """One `Sampling` a choice. Raises InvalidRequest for an impossible value, ContextLengthExceeded."""
    check(wanted, limits)
    left = room(prompt_tokens, limits.context)
    caps = [left, limits.max_answer_tokens or left, wanted.max_tokens or left]
    seed = secrets.randbelow(SEED_RANGE) if wanted.seed is None else wanted.seed % SEED_RANGE

    def default(name: str) -> float:
        given = getattr(wanted, name)
        return float(limits.generation.get(name, _USUAL[name]) if given is None else given)

    top_k = int(limits.generation.get("top_k", 0)) if wanted.top_k is None else wanted.top_k
    first = Sampling(
        max_tokens=min(caps),
        temperature=default("temperature"),
        top_k=max(top_k, 0),
        top_p=default("top_p"),
        min_p=default("min_p"),
        repetition_penalty=default("repetition_penalty"),
        presence_penalty=wanted.presence_penalty or 0.0,
        frequency_penalty=wanted.frequency_penalty or 0.0,
        logit_bias=_logit_bias(wanted, limits),
        min_tokens=wanted.min_tokens or 0,
        end_tokens=limits.end_tokens,
        ignore_eos=wanted.ignore_eos,
        logprobs=wanted.logprobs,
        prompt_logprobs=wanted.prompt_logprobs,
    )
    return [msgspec.structs.replace(first, seed=choice_seed(seed, i)) for i in range(wanted.n or 1)]


def choice_seed(seed: int, choice: int) -> int:
    """The first choice has the seed itself, so that n=1 and the first of many say the same."""
    if choice == 0:
        return seed
    digest = hashlib.blake2b(f"{seed}:{choice}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") % SEED_RANGE
