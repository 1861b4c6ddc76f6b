"""What may a person say to the model, and through which doors?

A person's preamble stands before everything that they say. Who has the role `kid` talks with the model in turns of a
conversation and in no other way: what would go round the preamble is refused. Every dialect brings its messages here
(`messages_for`) and says so in its `Ask`; an ask that did not come this way is refused for a kid, so that a door nobody
thought of is shut. This is guidance, not a filter: a model may still say what it should not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from homebox.daemon.identity import Person
from homebox.daemon.sampling import Wanted
from homebox.errors import InvalidRequest, NotAllowed
from homebox.wire.requests import Message


class RawFields(msgspec.Struct, frozen=True, rename=None):
    """What other servers of OpenAI's dialect know besides, to write the prompt oneself. Ignored here; a kid who sends
    one is told so."""

    chat_template: Any = msgspec.UNSET
    chat_template_kwargs: Any = msgspec.UNSET
    add_generation_prompt: Any = msgspec.UNSET
    continue_final_message: Any = msgspec.UNSET
    documents: Any = msgspec.UNSET
    echo: Any = msgspec.UNSET
    prompt: Any = msgspec.UNSET
    prompt_token_ids: Any = msgspec.UNSET
    prompt_logprobs: Any = msgspec.UNSET
    raw: Any = msgspec.UNSET
    template: Any = msgspec.UNSET


def messages_for(person: Person, messages: Sequence[Message], *, kept: bool = False) -> list[Message]:
    """The conversation with the person's preamble before it. `kept`: it is the daemon's own record of a chat, whose
    last answer may be continued. Raises NotAllowed for a kid's own instruction or a begun answer."""
    preamble = person.rules.preamble
    if person.role == "kid":
        _check_kid(messages, kept)
    if not preamble:
        return list(messages)
    first = messages[0] if messages else None
    if first is not None and first.role == "system":  # strict templates have room for one
        return [Message("system", f"{preamble}\n\n{first.content}"), *messages[1:]]
    return [Message("system", preamble), *messages]


def check_instruction(person: Person, system: str | None) -> None:
    """Before a chat is made that begins with an instruction. Raises NotAllowed."""
    if system is not None and person.role == "kid":
        raise _shut("instructions to the model", "system")


def check_import(person: Person) -> None:
    """Before a chat is taken in that somebody wrote in a file. Raises NotAllowed."""
    if person.role == "kid":
        raise _shut("conversations from a file", "messages")


def check_asked(person: Person, wanted: Wanted, *, as_messages: bool) -> None:
    """The last door before the queue, of every dialect. `as_messages`: the prompt came through `messages_for`. Raises
    NotAllowed."""
    if person.role != "kid":
        return
    if not as_messages:
        raise _shut("raw prompts", "prompt")
    for name, asked in (
        ("logit_bias", wanted.logit_bias),
        ("prompt_logprobs", wanted.prompt_logprobs is not None),
        ("min_tokens", wanted.min_tokens),
        ("ignore_eos", wanted.ignore_eos),
    ):
        if asked:
            raise _shut(name, name)


def check_fields(person: Person, body: bytes) -> None:
    """Raises NotAllowed where a kid's body holds a field that writes the prompt."""
    if person.role != "kid":
        return
    try:
        fields = msgspec.json.decode(body, type=RawFields)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise InvalidRequest("the body is not a JSON object") from None
    for name in RawFields.__struct_fields__:
        if getattr(fields, name) is not msgspec.UNSET:
            raise _shut(name, name)


def _check_kid(messages: Sequence[Message], kept: bool) -> None:
    for place, message in enumerate(messages):
        if message.role == "system":
            raise _shut("instructions to the model", f"messages[{place}].role")
    if messages and messages[-1].role == "assistant" and not kept:
        raise _shut("beginning the answer oneself", f"messages[{len(messages) - 1}].role")


def _shut(what: str, param: str) -> NotAllowed:
    return NotAllowed(
        f"{what}: not for this person's role",
        hint="Ask in plain messages, or ask the owner of the box.",
        param=param,
    )
