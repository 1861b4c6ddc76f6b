"""How does an engine that is only a library answer over HTTP? A thin server, so that the same client can ask it.

Used inside a peer's environment by `openvino_server.py` and `transformers_server.py`; needs aiohttp and tokenizers
there. The engine has a process of its own, since a step of it holds Python's lock for as long as it takes: this process
tokenises, and passes on what each step made at once. `in_process` measures the same engine without any of this, so that
what the wrapping costs is known. Only `/v1/completions` is spoken, which takes text and token ids.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import multiprocessing
import random
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from aiohttp import web
from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream


class Asked(NamedTuple):
    """A request; `key` names it until it ends."""

    key: int
    prompt: list[int]
    max_tokens: int
    ignore_eos: bool


class Made(NamedTuple):
    """New tokens of a request. `ended` says why there will be no more: stop, length or error."""

    key: int
    tokens: list[int]
    ended: str | None = None


Emit = Callable[[list[Made]], None]


class Engine(Protocol):
    """What a library is bent to. `step` computes for a while and emits what it made; `gather_s` is how long an idle engine
    waits for company before it steps (static batches cannot let anybody in later)."""

    gather_s: float

    def add(self, asked: Asked) -> None: ...

    def cancel(self, key: int) -> None: ...

    def busy(self) -> bool: ...

    def step(self, emit: Emit) -> None: ...


MakeEngine = Callable[..., Engine]


# ---- the engine's process


def work(connection: Connection, make: MakeEngine, arguments: tuple[Any, ...]) -> None:
    """Says `ready`, then takes `Asked` (or a key: cancel it) and sends lists of `Made`, until the other side is gone."""
    engine = make(*arguments)
    with contextlib.suppress(EOFError, OSError, KeyboardInterrupt):
        connection.send("ready")
        while True:
            wait_s: float | None = 0.0 if engine.busy() else None
            while connection.poll(wait_s):
                message = connection.recv()
                if isinstance(message, Asked):
                    engine.add(message)
                else:
                    engine.cancel(message)
                wait_s = engine.gather_s if wait_s != 0.0 else 0.0
            if engine.busy():
                engine.step(connection.send)


# ---- the server's process


@dataclass
class Running:
    """The engine's process as the server sees it."""

    connection: Connection
    process: Any  # of a `spawn` context

    def __post_init__(self) -> None:
        self._keys = itertools.count()
        self._waiting: dict[int, asyncio.Queue[Made]] = {}

    def listen(self) -> None:
        asyncio.get_running_loop().add_reader(self.connection.fileno(), self._take)

    async def answer(self, prompt: list[int], max_tokens: int, ignore_eos: bool) -> AsyncIterator[Made]:
        """What the engine makes, step by step. Whoever stops reading has it cancelled."""
        key, queue = next(self._keys), asyncio.Queue[Made]()
        self._waiting[key] = queue
        ended = False
        try:
            self.connection.send(Asked(key, prompt, max_tokens, ignore_eos))
            while not ended:
                made = await queue.get()
                ended = made.ended is not None
                yield made
        finally:
            del self._waiting[key]
            if not ended:
                self.connection.send(key)

    def _take(self) -> None:
        try:
            while self.connection.poll():
                for made in self.connection.recv():
                    if queue := self._waiting.get(made.key):
                        queue.put_nowait(made)
        except (EOFError, OSError):
            asyncio.get_running_loop().remove_reader(self.connection.fileno())
            for key, queue in self._waiting.items():
                queue.put_nowait(Made(key, [], "error"))


class Completions:
    """`/v1/completions`, streamed or whole."""

    def __init__(self, engine: Running, tokenizer: Tokenizer, model: str) -> None:
        self._engine, self._tokenizer, self._model = engine, tokenizer, model

    async def models(self, _: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": self._model, "object": "model"}]})

    async def complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        prompt = body.get("prompt", "")
        ids = prompt if isinstance(prompt, list) else self._tokenizer.encode(prompt).ids
        if not ids:
            return web.json_response({"error": {"message": "the prompt is empty"}}, status=400)
        answer = self._engine.answer(ids, int(body.get("max_tokens", 16)), bool(body.get("ignore_eos")))
        if body.get("stream"):
            return await self._stream(request, answer, len(ids))
        made = [each async for each in answer]
        tokens = [token for each in made for token in each.tokens]
        text = self._tokenizer.decode(tokens, skip_special_tokens=False)
        return web.json_response(self._chunk(text, made[-1].ended) | {"usage": _usage(len(ids), len(tokens))})

    async def _stream(
        self, request: web.Request, answer: AsyncIterator[Made], prompt_tokens: int
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        decoding, count = DecodeStream(skip_special_tokens=False), 0
        async with contextlib.aclosing(answer):  # type: ignore[type-var]
            async for made in answer:
                count += len(made.tokens)
                text = "".join(decoding.step(self._tokenizer, token) or "" for token in made.tokens)
                await response.write(_event(self._chunk(text, made.ended)))
        await response.write(_event({"choices": [], "usage": _usage(prompt_tokens, count)}))
        await response.write(b"data: [DONE]\n\n")
        return response

    def _chunk(self, text: str, ended: str | None) -> dict[str, Any]:
        choice = {"index": 0, "text": text, "finish_reason": ended}
        return {"object": "text_completion", "model": self._model, "choices": [choice]}


def application(engine: Running, tokenizer: Tokenizer, model: str) -> web.Application:
    completions = Completions(engine, tokenizer, model)
    app = web.Application()
    app.add_routes([
        web.get("/v1/models", completions.models),
        web.post("/v1/completions", completions.complete),
    ])  # fmt: skip

    async def listen(_: web.Application) -> None:
        engine.listen()

    app.on_startup.append(listen)
    return app


@contextlib.contextmanager
def started(make: MakeEngine, arguments: tuple[Any, ...]) -> Any:
    """The engine in a process of its own, once it is loaded; ended with us."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=work, args=(theirs, make, arguments), daemon=True)
    process.start()
    theirs.close()
    try:
        ours.recv()  # `ready`; raises EOFError where the engine could not be made: it has said why
        yield Running(ours, process)
    finally:
        ours.close()
        process.join(5)
        process.kill()


def serve(make: MakeEngine, arguments: tuple[Any, ...], tokenizer_json: Path, port: int) -> None:
    """Until a signal says stop. The port opens once the engine is loaded."""
    tokenizer = Tokenizer.from_file(str(tokenizer_json))
    with started(make, arguments) as engine:
        app = application(engine, tokenizer, tokenizer_json.parent.name)
        web.run_app(app, host="127.0.0.1", port=port, print=None, access_log=None, handler_cancellation=True)


# ---- without a server


def in_process(engine: Engine, streams: int, max_tokens: int, prompt_tokens: int) -> float:
    """Output tokens a second with so many requests running at all times, each followed by the next: what the client
    measures over HTTP, without HTTP."""
    rng = random.Random(time.time_ns())
    total = streams * max(2, -(-4 // streams))
    prompts = deque(
        Asked(key, [rng.randrange(100, 20_000) for _ in range(prompt_tokens)], max_tokens, True)
        for key in range(total)
    )
    count = 0

    def take(made: Iterable[Made]) -> None:
        nonlocal count
        for each in made:
            count += len(each.tokens)
            if each.ended and prompts:
                engine.add(prompts.popleft())

    began = time.perf_counter()
    for _ in range(streams):
        engine.add(prompts.popleft())
    while engine.busy():
        engine.step(take)
    return count / (time.perf_counter() - began)


def _event(value: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"


def _usage(prompt_tokens: int, completion_tokens: int) -> dict[str, int]:
    total = prompt_tokens + completion_tokens
    return {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens, "total_tokens": total}
