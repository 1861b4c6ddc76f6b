"""What does a request in OpenAI's dialect want?

Typed bodies for chat and plain completions, and what they mean in the daemon's own words. Fields that are not known are
ignored, because clients add new ones every month; a value of a known field that cannot be honoured is refused with the
field's name, because an answer that silently ignores it would be wrong.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from homebox.daemon.bodies import convert
from homebox.daemon.sampling import Wanted
from homebox.errors import InvalidRequest
from homebox.wire.requests import Message

_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "default")
_ROLES: dict[str, Literal["system", "user", "assistant"]] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
}


class StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool | None = None


class SamplingFields(msgspec.Struct, frozen=True, kw_only=True):
    """What chat and plain completions have in common."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    n: int | None = None
    stop: str | list[str] | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    ignore_eos: bool | None = None
    user: str | None = None

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    def wanted(self, **more: Any) -> Wanted:
        stop = [self.stop] if isinstance(self.stop, str) else self.stop or []
        common = {
            name: getattr(self, name)
            for name in Wanted.__struct_fields__
            if name in SamplingFields.__struct_fields__ and name not in ("stop", "ignore_eos")
        }
        return Wanted(**(common | {"stop": stop, "ignore_eos": bool(self.ignore_eos)} | more))


class ChatMessage(msgspec.Struct, frozen=True, kw_only=True):
    role: str
    content: Any = None
    tool_calls: Any = None


class ChatBody(SamplingFields, frozen=True, kw_only=True):
    messages: list[ChatMessage]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[Any] | None = None
    functions: list[Any] | None = None
    tool_choice: Any = None
    response_format: Any = None
    modalities: list[str] | None = None
    reasoning_effort: str | None = None

    def checked(self) -> ChatBody:
        """Raises InvalidRequest for what this model or this version cannot do."""
        for name in ("tools", "functions"):
            if getattr(self, name):
                raise InvalidRequest("this model has no tool template: it cannot call tools", param=name)
        if self.tool_choice not in (None, "none", "auto"):
            raise InvalidRequest("this model has no tool template: it cannot call tools", param="tool_choice")
        kind = self.response_format
        if kind is not None and (not isinstance(kind, dict) or kind.get("type") != "text"):
            said = kind.get("type") if isinstance(kind, dict) else kind
            raise InvalidRequest(
                f"response_format {said!r} is not supported; only text is", param="response_format"
            )
        if self.modalities not in (None, [], ["text"]):
            raise InvalidRequest(
                f"modalities {self.modalities}: only text can be answered", param="modalities"
            )
        if self.reasoning_effort is not None and self.reasoning_effort not in _EFFORTS:
            raise InvalidRequest(
                f"reasoning_effort {self.reasoning_effort[:40]!r} is none of {', '.join(_EFFORTS)}",
                param="reasoning_effort",
            )
        if self.top_logprobs is not None and not self.logprobs:
            raise InvalidRequest("top_logprobs needs logprobs to be true", param="top_logprobs")
        return self

    def chat_wanted(self) -> Wanted:
        logprobs = (self.top_logprobs or 0) if self.logprobs else None
        if self.max_completion_tokens is None:
            return self.wanted(logprobs=logprobs, logprobs_param="top_logprobs")
        return self.wanted(
            logprobs=logprobs,
            logprobs_param="top_logprobs",
            max_tokens=self.max_completion_tokens,
            max_tokens_param="max_completion_tokens",
        )

    def chat_messages(self) -> list[Message]:
        """Roles and text. Raises InvalidRequest for roles and parts that the model has no place for."""
        return [_message(message, f"messages[{i}]") for i, message in enumerate(self.messages)]


class CompletionBody(SamplingFields, frozen=True, kw_only=True):
    prompt: Any
    logprobs: int | None = None
    echo: bool | None = None
    suffix: str | None = None
    best_of: int | None = None

    def checked(self) -> CompletionBody:
        """Raises InvalidRequest for what this version cannot do."""
        if self.suffix:
            raise InvalidRequest(
                "suffix is not supported: this model was not trained to fill in", param="suffix"
            )
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise InvalidRequest("best_of other than n is not supported", param="best_of")
        return self

    def completion_wanted(self) -> Wanted:
        return self.wanted(logprobs=self.logprobs, prompt_logprobs=self.logprobs if self.echo else None)

    def prompts(self, vocab_size: int) -> list[str | list[int]]:
        """Each prompt as text or as token ids. Raises InvalidRequest."""
        prompt = self.prompt
        if isinstance(prompt, str):
            return [prompt]
        if isinstance(prompt, list) and prompt and all(isinstance(one, int) for one in prompt):
            prompt = [prompt]
        if not isinstance(prompt, list) or not prompt:
            raise InvalidRequest("prompt must be text, token ids, or a list of these", param="prompt")
        return [one if isinstance(one, str) else _ids(one, vocab_size) for one in prompt]


def _message(message: ChatMessage, place: str) -> Message:
    if message.role in ("tool", "function") or message.tool_calls:
        raise InvalidRequest(
            "this model has no tool template: it cannot read tool calls", param=f"{place}.role"
        )
    role = _ROLES.get(message.role)
    if role is None:
        raise InvalidRequest(
            f"role {message.role[:40]!r} is none of system, developer, user, assistant", param=f"{place}.role"
        )
    return Message(role, _text(message.content, f"{place}.content"))


def _text(content: Any, place: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise InvalidRequest("content must be text or a list of parts", param=place)
    texts = []
    for i, part in enumerate(convert(content, list[dict[str, Any]], place)):
        kind = part.get("type")
        if kind != "text":
            raise InvalidRequest(
                f"a part of type {str(kind)[:40]!r}: this model reads text only", param=f"{place}[{i}].type"
            )
        texts.append(convert(part.get("text"), str, f"{place}[{i}].text"))
    return "\n".join(texts)


def _ids(prompt: Any, vocab_size: int) -> list[int]:
    ids = convert(prompt, list[int], "prompt")
    wrong = next((token for token in ids if not 0 <= token < vocab_size), None)
    if wrong is not None:
        raise InvalidRequest(
            f"prompt holds token {wrong}; the model's are 0 to {vocab_size - 1}", param="prompt"
        )
    return ids
