"""A server of OpenAI's dialect that is not ours, with whatever oddities a test wants of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web


@dataclass
class Odd:
    """`knows`: the fields it takes; another is refused with 422. `before`: bytes that go before the events. `once`: a
    connection that is kept is closed when something else is asked on it."""

    knows: frozenset[str] = frozenset(
        ("model", "prompt", "messages", "max_tokens", "temperature", "stream", "ignore_eos", "stream_options")
    )
    chat_only: bool = False
    usage: bool = True
    most: int = 1000  # longer answers end here
    before: bytes = b""
    newline: bytes = b"\n"
    prefix: bytes = b"data: "
    refuses: tuple[int, Any] | None = None
    breaks: bytes = b""  # instead of the third piece
    once: bool = False
    used: list[asyncio.Transport | None] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)
    bodies: list[dict[str, Any]] = field(default_factory=list)

    async def models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "odd-1"}, {"id": "odd-2"}]}, headers={"Server": "odd/0.7"})

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if self.once and request.transport and request.transport in self.used:
            request.transport.abort()
        self.used.append(request.transport)
        body = await request.json()
        self.bodies.append(body)
        self.headers = dict(request.headers)
        if self.refuses:
            return web.json_response(self.refuses[1], status=self.refuses[0])
        if unknown := set(body) - self.knows:
            return web.json_response({"detail": f"Unexpected keys: {sorted(unknown)}"}, status=422)
        chat = "messages" in body
        if self.chat_only and not chat:
            return web.Response(status=404)
        words = str(body["messages"][0]["content"] if chat else body["prompt"]).split()
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(self.before)
        count = min(self.most, body["max_tokens"])
        for number in range(count):
            if number == 2 and self.breaks:
                await response.write(self.breaks)
            piece = {"delta": {"content": "word "}} if chat else {"text": "word "}
            await self._send(response, {"choices": [piece | {"index": 0}], "usage": None})
            await asyncio.sleep(0)
        await self._send(response, {"choices": [{"delta": {}, "text": "", "finish_reason": "length"}]})
        if self.usage and body.get("stream_options"):
            usage = {"prompt_tokens": len(words), "completion_tokens": count}
            await self._send(response, {"choices": [], "usage": usage})
        await response.write(self.prefix + b"[DONE]" + 2 * self.newline)
        return response

    async def _send(self, response: web.StreamResponse, event: dict[str, Any]) -> None:
        await response.write(self.prefix + json.dumps(event).encode() + 2 * self.newline)


@asynccontextmanager
async def serving(odd: Odd) -> AsyncIterator[str]:
    """Its address."""
    app = web.Application()
    app.router.add_get("/v1/models", odd.models)
    app.router.add_post("/v1/completions", odd.answer)
    app.router.add_post("/v1/chat/completions", odd.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
