"""OpenAI's dialect: `/v1/models`, `/v1/chat/completions`, `/v1/completions`, streamed or whole.

Reads the request, opens a turn, and writes what the turn says, a chunk a step as long as the reader keeps up (a slow
reader gets fewer, larger chunks). A client that leaves ends its turn.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from aiohttp import web

from homebox.daemon import asked
from homebox.daemon.answer import Delta
from homebox.daemon.bodies import decode
from homebox.daemon.door import openai_body
from homebox.daemon.house import PERSON, House, house_of, person_of
from homebox.daemon.identity import Person
from homebox.daemon.limits import check_model, may_use
from homebox.daemon.policy import check_fields, messages_for
from homebox.daemon.routes import openai_shapes as shapes
from homebox.daemon.routes.openai_requests import ChatBody, CompletionBody, SamplingFields
from homebox.daemon.routes.plain import json_answer
from homebox.daemon.routes.waiting import Waiter, until_placed, while_connected
from homebox.daemon.turnbook import Ask
from homebox.daemon.turns import Choice, Turn, TurnState
from homebox.errors import HomeboxError, Unavailable

KEEP_ALIVE_S = 15.0


async def models(request: web.Request) -> web.Response:
    """What this daemon serves."""
    book = house_of(request).book
    allowed = may_use(person_of(request).rules, book.manifest.name)
    found = [shapes.model(book.manifest, book.limits.context)] if allowed else []
    return json_answer({"object": "list", "data": found})


async def model(request: web.Request) -> web.Response:
    book = house_of(request).book
    book.check_model(request.match_info["model"])
    check_model(person_of(request), book.manifest.name)
    return json_answer(shapes.model(book.manifest, book.limits.context))


async def chat_completions(request: web.Request) -> web.StreamResponse:
    house = house_of(request)
    raw = await request.read()
    body = decode(raw, ChatBody).checked()
    person = _speaking_for(request, body.user)
    check_fields(person, raw)
    prompt = await house.prompts.of_chat(messages_for(person, body.chat_messages()))
    ask = Ask(
        kind="chatcmpl",
        person=person,
        model=body.model,
        prompts=[prompt],
        wanted=body.chat_wanted(),
        reasoning=True,
        as_messages=True,
    )
    return await _answer(request, ask, body, _ChatWriter(house, bool(body.logprobs)))


async def completions(request: web.Request) -> web.StreamResponse:
    house = house_of(request)
    body = decode(await request.read(), CompletionBody).checked()
    tokenizer = house.book.tokenizer
    prompts = body.prompts(house.book.limits.vocab_size)
    ids = [await house.prompts.of_text(one) if isinstance(one, str) else one for one in prompts]
    ask = Ask(
        kind="cmpl",
        person=_speaking_for(request, body.user),
        model=body.model,
        prompts=ids,
        wanted=body.completion_wanted(),
    )
    each = body.n or 1
    echoes = (
        [shapes.Echo(tokenizer, text, tokens) for text, tokens in zip(prompts, ids, strict=True)]
        if body.echo
        else []
    )
    return await _answer(
        request,
        ask,
        body,
        _CompletionWriter(house, body.logprobs is not None, [e for e in echoes for _ in range(each)]),
    )


def _speaking_for(request: web.Request, user: str | None) -> Person:
    """Whoever asks, or the person behind an application that is trusted to name one; from here on that is who it was."""
    person = request[PERSON] = house_of(request).identity.behind(person_of(request), user)
    if this := asked.current():
        this.person = person
    return person


async def _answer(
    request: web.Request, ask: Ask, body: SamplingFields, writer: _Writer
) -> web.StreamResponse:
    waiter = Waiter()
    turn = house_of(request).book.open(ask, waiter)
    with while_connected(turn):
        await until_placed(turn)
        if body.stream:
            return await _stream(request, turn, waiter, writer, body.include_usage)
        await waiter.until_done(turn)
        if failed := _failure(turn):
            raise failed
        choices = [writer.whole(choice, choice.answer.take()) for choice in turn.choices]
        return json_answer(shapes.envelope(turn, writer.whole_kind, choices) | {"usage": shapes.usage(turn)})


async def _stream(
    request: web.Request, turn: Turn, waiter: Waiter, writer: _Writer, include_usage: bool
) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
    await response.prepare(request)
    chunks = shapes.Chunks(turn, writer.chunk_kind, {"usage": None} if include_usage else {})
    await response.write(b"".join(map(chunks.event, writer.first(turn))) or shapes.KEEP_ALIVE)
    choices = turn.choices
    while choices:
        moved = await waiter.moved(KEEP_ALIVE_S) or turn.state is TurnState.DONE
        new = [chunk for choice in choices for chunk in _new(choice, writer)]
        choices = [choice for choice in choices if not choice.closed]  # before others run: a write may wait
        if new or not moved:
            await response.write(b"".join(map(chunks.event, new)) or shapes.KEEP_ALIVE)
    if failed := _failure(turn):
        await response.write(shapes.event(openai_body(failed)))
    elif include_usage:
        last = shapes.envelope(turn, writer.chunk_kind, []) | {"usage": shapes.usage(turn)}
        await response.write(shapes.event(last))
    if not failed:
        await response.write(shapes.DONE)
    await response.write_eof()
    return response


def _new(choice: Choice, writer: _Writer) -> list[dict[str, Any]]:
    """What is new of a choice that had not ended when it was last looked at."""
    delta = choice.answer.take()
    chunks = writer.chunks(choice, delta) if delta else []
    if choice.finish in ("stop", "length"):
        chunks.append(writer.last(choice))
    return chunks


def _failure(turn: Turn) -> HomeboxError | None:
    """Why there is no whole answer. OpenAI's dialect has no word for cancelled, so that is a failure, too."""
    if turn.error:
        return turn.error
    stopped = next((choice for choice in turn.choices if choice.finish == "cancelled"), None)
    return Unavailable(f"this request was cancelled: {stopped.detail}") if stopped else None


class _Writer(ABC):
    """What differs between the two kinds of completion."""

    whole_kind: str
    chunk_kind: str

    def __init__(self, house: House, logprobs: bool) -> None:
        self.tokenizer = house.book.tokenizer
        self.logprobs = logprobs

    @abstractmethod
    def first(self, turn: Turn) -> list[dict[str, Any]]: ...

    @abstractmethod
    def chunks(self, choice: Choice, delta: Delta) -> list[dict[str, Any]]: ...

    @abstractmethod
    def last(self, choice: Choice) -> dict[str, Any]: ...

    @abstractmethod
    def whole(self, choice: Choice, delta: Delta) -> dict[str, Any]: ...


class _ChatWriter(_Writer):
    whole_kind = shapes.CHAT
    chunk_kind = shapes.CHAT_CHUNK

    def first(self, turn: Turn) -> list[dict[str, Any]]:
        return [
            shapes.chat_chunk_choice(choice.index, {"role": "assistant", "content": ""})
            for choice in turn.choices
        ]

    def chunks(self, choice: Choice, delta: Delta) -> list[dict[str, Any]]:
        parts = [{"reasoning_content": delta.think}] if delta.think else []
        if delta.text or not parts:
            parts.append({"content": delta.text})
        out = [shapes.chat_chunk_choice(choice.index, part) for part in parts]
        if self.logprobs:  # the tokens go with the last part
            out[-1]["logprobs"] = shapes.chat_logprobs(self.tokenizer, delta.spoken)
        elif not (delta.text or delta.think):
            return []
        return out

    def last(self, choice: Choice) -> dict[str, Any]:
        return shapes.chat_chunk_choice(choice.index, {}, choice.finish)

    def whole(self, choice: Choice, delta: Delta) -> dict[str, Any]:
        return shapes.chat_choice(self.tokenizer, choice, delta.spoken, self.logprobs)


class _CompletionWriter(_Writer):
    whole_kind = shapes.COMPLETION
    chunk_kind = shapes.COMPLETION

    def __init__(self, house: House, logprobs: bool, echoes: list[shapes.Echo]) -> None:
        super().__init__(house, logprobs)
        self._echoes = echoes
        self._echoed: set[int] = set()

    def first(self, turn: Turn) -> list[dict[str, Any]]:
        return []

    def chunks(self, choice: Choice, delta: Delta) -> list[dict[str, Any]]:
        if not (delta.text or self.logprobs or self._echo_due(choice)):
            return []
        return [self._choice(choice, delta)]

    def last(self, choice: Choice) -> dict[str, Any]:
        if self._echo_due(choice):  # an answer without a single word
            return self._choice(choice, Delta()) | {"finish_reason": choice.finish}
        return shapes.completion_choice(choice.index, "", choice.finish)

    def whole(self, choice: Choice, delta: Delta) -> dict[str, Any]:
        return self._choice(choice, delta) | {"finish_reason": choice.finish}

    def _echo_due(self, choice: Choice) -> bool:
        return bool(self._echoes) and choice.index not in self._echoed

    def _choice(self, choice: Choice, delta: Delta) -> dict[str, Any]:
        """The new text and tokens; an echoed prompt goes before the first of them."""
        text, spoken = delta.text, delta.spoken
        echo = self._echoes[choice.index] if self._echoes else None
        tokens = shapes.spoken_tokens(spoken, len(echo.text) if echo else 0)
        if echo and self._echo_due(choice):
            self._echoed.add(choice.index)
            text, tokens = echo.text + text, echo.tokens(choice.prompt_logprobs) + tokens
        logprobs = shapes.completion_logprobs(self.tokenizer, tokens) if self.logprobs else None
        return shapes.completion_choice(choice.index, text, None, logprobs)
