"""How does OpenAI's dialect write an answer? Dictionaries to the letter: objects, chunks, usage, logprobs.

Pure: made from turns and tokens, sent by `openai.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from homebox.daemon.answer import Spoken
from homebox.daemon.turns import Choice, Turn
from homebox.library.manifest import Manifest
from homebox.text.detokenise import Detokeniser
from homebox.text.tokens import Tokenizer
from homebox.wire.frames import TokenLogprob

_LEAST = -9999.0  # JSON has no infinity; this is what OpenAI's own answers hold in its place
CHAT = "chat.completion"
CHAT_CHUNK = "chat.completion.chunk"
COMPLETION = "text_completion"


def event(body: dict[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + msgspec.json.encode(body) + b"\n\n"


DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": waiting\n\n"


class Chunks:
    """Writes the chunks of one answer. All but the choice is the same in each, and is made once."""

    def __init__(self, turn: Turn, kind: str, more: dict[str, Any]) -> None:
        """`more`: fields after the choices."""
        body = msgspec.json.encode(envelope(turn, kind, []) | more)
        before, _, after = body.rpartition(b"[]")
        self._before, self._after = b"data: " + before + b"[", b"]" + after + b"\n\n"

    def event(self, choice: dict[str, Any]) -> bytes:
        return self._before + msgspec.json.encode(choice) + self._after


def envelope(turn: Turn, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "id": turn.id,
        "object": kind,
        "created": turn.created_unix,
        "model": turn.model,
        "choices": choices,
    }


def usage(turn: Turn) -> dict[str, Any]:
    used = turn.usage
    return {
        "prompt_tokens": used.prompt_tokens,
        "completion_tokens": used.completion_tokens,
        "total_tokens": used.prompt_tokens + used.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": used.cached_tokens},
    }


def model(manifest: Manifest, context: int) -> dict[str, Any]:
    return {
        "id": manifest.name,
        "object": "model",
        "created": int(manifest.installed_at),
        "owned_by": "homebox",
        "max_model_len": context,
        "capabilities": {"tools": False, "vision": False},
    }


def chat_choice(
    tokenizer: Tokenizer, choice: Choice, spoken: Sequence[Spoken], logprobs: bool
) -> dict[str, Any]:
    """A finished choice of a chat completion."""
    message: dict[str, Any] = {"role": "assistant", "content": choice.answer.text, "refusal": None}
    if choice.answer.think:
        message["reasoning_content"] = choice.answer.think
    return {
        "index": choice.index,
        "message": message,
        "logprobs": chat_logprobs(tokenizer, spoken) if logprobs else None,
        "finish_reason": choice.finish,
    }


def chat_chunk_choice(
    index: int, delta: dict[str, Any], finish: str | None = None, logprobs: dict[str, Any] | None = None
) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}


def chat_logprobs(tokenizer: Tokenizer, spoken: Iterable[Spoken]) -> dict[str, Any]:
    content = []
    for one in spoken:
        if one.logprob is not None:
            top = [_chat_token(tokenizer, other.token, other.logprob) for other in one.logprob.top]
            content.append(_chat_token(tokenizer, one.token, one.logprob.logprob) | {"top_logprobs": top})
    return {"content": content, "refusal": None}


def _chat_token(tokenizer: Tokenizer, token: int, logprob: float) -> dict[str, Any]:
    raw = tokenizer.token_bytes(token)
    return {"token": tokenizer.token_text(token), "logprob": max(logprob, _LEAST), "bytes": list(raw)}


def completion_choice(
    index: int, text: str, finish: str | None = None, logprobs: dict[str, Any] | None = None
) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish}


def completion_logprobs(
    tokenizer: Tokenizer, tokens: Iterable[tuple[int, int, TokenLogprob | None]]
) -> dict[str, Any]:
    """From (token, character offset, logprob); the first token of an echoed prompt has no logprob."""
    rows = list(tokens)
    return {
        "tokens": [tokenizer.token_text(token) for token, _, _ in rows],
        "token_logprobs": [None if lp is None else max(lp.logprob, _LEAST) for _, _, lp in rows],
        "top_logprobs": [
            None if lp is None else {tokenizer.token_text(o.token): max(o.logprob, _LEAST) for o in lp.top}
            for _, _, lp in rows
        ],
        "text_offset": [offset for _, offset, _ in rows],
    }


class Echo:
    """The prompt as the beginning of a completion: its text, and its tokens in their places."""

    def __init__(self, tokenizer: Tokenizer, prompt: str | Sequence[int], ids: Sequence[int]) -> None:
        typed = isinstance(prompt, str)
        detokeniser = Detokeniser(tokenizer, skip_special=typed)
        self._ids = ids
        self._starts: list[int] = []
        text = ""
        for token in ids:
            self._starts.append(detokeniser.length)
            text += detokeniser.push(token)
        self.text = prompt if isinstance(prompt, str) else text + detokeniser.flush()

    def tokens(self, logprobs: Sequence[TokenLogprob]) -> list[tuple[int, int, TokenLogprob | None]]:
        """With the engine's logprobs of all prompt tokens but the first."""
        padded = [None, *logprobs, *[None] * len(self._ids)]
        return [
            (token, start, padded[i])
            for i, (token, start) in enumerate(zip(self._ids, self._starts, strict=True))
        ]


def spoken_tokens(spoken: Iterable[Spoken], offset: int) -> list[tuple[int, int, TokenLogprob | None]]:
    return [(one.token, offset + one.start, one.logprob) for one in spoken]
