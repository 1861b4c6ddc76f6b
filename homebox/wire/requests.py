"""What does one of our own clients ask of the daemon?

The bodies of the native routes. Field names are the OpenAI dialect's, so that there is one vocabulary; the daemon
checks ranges (`daemon/sampling.py`) and fills in what is left out. Unknown fields are refused here: our own clients
are of the daemon's version, and a typo must not be dropped in silence.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from homebox.wire.pause import Pause

MAX_BODY_BYTES = 8 * 1024 * 1024  # far above any prompt that fits a context


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    role: Literal["system", "user", "assistant"]
    content: str


class Options(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """All optional. None means: the owner's or the model's own default."""

    model: str | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: list[str] = []
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    ignore_eos: bool = False
    priority: Literal["normal", "low"] = "normal"


class AskRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """`POST /homebox/ask`: answered with the turn's NDJSON events; closing the connection cancels, unless `detach`,
    which answers `TurnCreated` at once."""

    messages: list[Message]
    options: Options = Options()
    detach: bool = False


class TurnRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """`POST /homebox/chats/{id}/turns`: stores `text` as the person's message and queues an answer. The same `key`
    again gives the same turn. A chat that does not exist yet is made, with `system` as its instruction. `parent` is the
    message that it follows: the current one if left out, `"root"` for a new beginning."""

    key: str
    text: str
    system: str | None = None
    parent: str | None = None
    options: Options = Options()


class TurnCreated(msgspec.Struct, frozen=True, kw_only=True):
    """`question` and `answer` are message ids, for a turn of a chat."""

    turn: str
    chat: str | None = None
    question: str | None = None
    answer: str | None = None


class PauseRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """`POST /homebox/pause`. `now` holds running answers instead of letting them finish; `for_s` None: until somebody
    resumes."""

    now: bool = False
    for_s: float | None = None
    reason: str = ""


class PowerState(msgspec.Struct, frozen=True, kw_only=True):
    """What `POST /homebox/pause` and `/homebox/resume` answer, at once: `state` moves on after it. `live` requests may
    finish for `drain_s`, or are held."""

    state: str
    changed: bool
    live: int
    drain_s: float
    pause: Pause | None = None
