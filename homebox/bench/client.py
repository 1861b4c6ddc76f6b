"""How does a benchmark ask a server, and what does it note? One client for ours and for any other of OpenAI's dialect.

A request is streamed and the time of every delivery noted. What a server takes is found out once (`learn`): completions
or chat, whether it can be told to ignore end tokens, whether it says how many tokens it made. Servers differ a little in
how they write their events; all that is read here is `data:` lines with JSON, and of those only what is needed. It knows
no phases and no reports.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import msgspec

from homebox.errors import (
    Busy,
    DaemonUnreachable,
    EngineFailed,
    HomeboxError,
    InvalidRequest,
    ModelNotFound,
    NotAllowed,
    NotFound,
    TimedOut,
    Unauthenticated,
    UsageError,
    from_dict,
)

CONNECT_S = 5.0
SILENCE_S = 600.0  # longer than any queue that a benchmark makes
FLOWING = 5  # deliveries until a stream counts as flowing


@dataclass(frozen=True)
class Target:
    """Where a server is: `url` with everything before `/v1`, or our daemon's socket. `authority` is a file with the
    certificates that an https:// one is checked against."""

    url: str = "http://homebox"
    socket: Path | None = None
    key: str | None = None
    authority: str | None = None

    @property
    def place(self) -> str:
        return str(self.socket) if self.socket else self.url

    @property
    def local(self) -> bool:
        """Whether the server computes on this machine."""
        return self.socket is not None or urlsplit(self.url).hostname in ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class Dialect:
    """What a server takes. `usage`: it says at the end of a stream how many tokens it made; else the deliveries with text
    are counted, which are as many only where it sends each token by itself."""

    model: str
    chat: bool = False
    ignore_eos: bool = True
    usage: bool = True

    @property
    def counted_by(self) -> str:
        return "usage" if self.usage else "deliveries"


@dataclass
class Delivered:
    """One request as its client saw it: CLOCK_MONOTONIC seconds."""

    sent_s: float = 0.0
    at_s: list[float] = field(default_factory=list)
    done_s: float = 0.0
    tokens: int = 0  # of the answer
    prompt_tokens: int | None = None
    flowing: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def ttft_s(self) -> float:
        """Until the first text; an answer without any was over at its end."""
        return (self.at_s[0] if self.at_s else self.done_s) - self.sent_s

    def gaps_ms(self, since_s: float = 0.0, until_s: float = float("inf")) -> list[float]:
        """Gaps between deliveries that end in this span."""
        pairs = zip(self.at_s, self.at_s[1:], strict=False)
        return [(b - a) * 1e3 for a, b in pairs if since_s <= b < until_s]


class Client:
    """An open session with one server. `dialect` is what `learn` found; `server` what the server says of itself."""

    def __init__(self, http: aiohttp.ClientSession, target: Target) -> None:
        self._http, self.target = http, target
        self.dialect = Dialect("")
        self.server = ""

    async def learn(self, model: str | None = None) -> None:
        """Which model it has, and what it takes, by asking for one token in ever plainer ways. Raises HomeboxError."""
        self.dialect = Dialect(model or await self._first_model())
        refused: HomeboxError | None = None
        for chat in (False, True):
            for ignore_eos, usage in ((True, True), (False, True), (False, False)):
                self.dialect = replace(self.dialect, chat=chat, ignore_eos=ignore_eos, usage=usage)
                try:
                    done = await self.complete("Hello", 2)
                except (NotFound, UsageError, InvalidRequest) as error:
                    if isinstance(error, ModelNotFound):
                        raise
                    refused = error
                    if isinstance(error, NotFound):
                        break  # not this route
                    continue
                self.dialect = replace(self.dialect, usage=usage and done.prompt_tokens is not None)
                return
        assert refused is not None
        raise refused

    async def json(self, path: str) -> Any:
        """What GET says, or None where the server knows no such path or answers anything but JSON."""
        with contextlib.suppress(aiohttp.ClientError, OSError, msgspec.DecodeError):
            async with self._http.get(self._at(path), timeout=_limit(30.0)) as answer:
                if answer.status == 200:
                    return msgspec.json.decode(await answer.read())
        return None

    async def lines(self, path: str) -> AsyncIterator[bytes]:
        """NDJSON lines of a stream, until the reader leaves."""
        async with self._http.get(self._at(path), timeout=_limit(SILENCE_S)) as answer:
            if answer.status == 200:
                async for line in answer.content:
                    yield line

    async def complete(
        self,
        prompt: str | Sequence[int],
        max_tokens: int,
        out: Delivered | None = None,
        *,
        person: str | None = None,
    ) -> Delivered:
        """Greedy, to the length asked for where the server can ignore end tokens; `out` fills while it runs. Token ids go
        only to servers that take them (`person` only to our own). Raises HomeboxError."""
        out = out or Delivered()
        headers = {"X-Homebox-As": person} if person else {}
        path = "/v1/chat/completions" if self.dialect.chat else "/v1/completions"
        out.sent_s = time.monotonic()
        try:
            async with self._http.post(
                self._at(path),
                json=self._body(prompt, max_tokens),
                headers=headers,
                timeout=_limit(SILENCE_S),
            ) as answer:
                if answer.status != 200:
                    raise _refusal(answer.status, await answer.read(), self.target.place)
                await self._read(answer, out)
        except TimeoutError:
            raise TimedOut(f"{self.target.place} said nothing for {SILENCE_S:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise _unreachable(self.target, error) from None
        out.done_s = time.monotonic()
        out.tokens = out.tokens or len(out.at_s)
        return out

    def _body(self, prompt: str | Sequence[int], max_tokens: int) -> dict[str, Any]:
        dialect = self.dialect
        body: dict[str, Any] = {
            "model": dialect.model, "max_tokens": max_tokens, "temperature": 0, "stream": True,
        }  # fmt: skip
        if dialect.chat:
            body["messages"] = [{"role": "user", "content": prompt}]
        else:
            body["prompt"] = prompt
        if dialect.ignore_eos:
            body["ignore_eos"] = True
        if dialect.usage:
            body["stream_options"] = {"include_usage": True}
        return body

    async def _read(self, answer: aiohttp.ClientResponse, out: Delivered) -> None:
        async for line in answer.content:
            if not line.startswith(b"data:"):
                continue
            data = line[5:].strip()
            if data == b"[DONE]":
                continue  # to the very end: who hangs up here may be taken for somebody who gave up
            try:
                chunk = msgspec.json.decode(data)
            except msgspec.DecodeError:
                raise EngineFailed(
                    f"{self.target.place} sent an event that is no JSON: {data[:80]!r}"
                ) from None
            if not isinstance(chunk, dict):
                continue
            if chunk.get("error"):
                raise EngineFailed(f"an answer failed: {_words(chunk['error'])}")
            if isinstance(used := chunk.get("usage"), dict):
                out.tokens = int(used.get("completion_tokens") or 0)
                out.prompt_tokens = int(used.get("prompt_tokens") or 0)
            if _has_text(chunk):
                out.at_s.append(time.monotonic())
                if len(out.at_s) == FLOWING:
                    out.flowing.set()

    async def _first_model(self) -> str:
        try:
            async with self._http.get(self._at("/v1/models"), timeout=_limit(30.0)) as answer:
                self.server = answer.headers.get("Server", "")
                raw = await answer.read()
                if answer.status in (401, 403):
                    raise _refusal(answer.status, raw, self.target.place)
                found = msgspec.json.decode(raw) if answer.status == 200 else {}
        except TimeoutError:
            raise TimedOut(f"{self.target.place} did not say within 30 s which models it has") from None
        except msgspec.DecodeError:
            found = {}
        except (aiohttp.ClientError, OSError) as error:
            raise _unreachable(self.target, error) from None
        rows = found.get("data") if isinstance(found, dict) else None
        if not rows:
            raise NotFound(
                f"{self.target.place} lists no model at /v1/models",
                hint="Name one: homebox bench --model NAME",
            )
        return str(rows[0]["id"])

    def _at(self, path: str) -> str:
        return self.target.url + path


@contextlib.asynccontextmanager
async def connect(target: Target) -> AsyncIterator[Client]:
    """A session that opens a connection for each request: one that is kept may be closed by the server at the moment in
    which the next request goes out (llama.cpp's does), and nobody could tell that from a server that went away."""
    connector: aiohttp.BaseConnector
    if target.socket:
        connector = aiohttp.UnixConnector(str(target.socket), limit=0, force_close=True)
    else:
        tls = ssl.create_default_context(cafile=target.authority) if target.authority else True
        connector = aiohttp.TCPConnector(limit=0, ssl=tls, force_close=True)
    headers = {"Authorization": f"Bearer {target.key}"} if target.key else {}
    async with aiohttp.ClientSession(connector=connector, headers=headers) as http:
        yield Client(http, target)


def base(url: str) -> str:
    """The address as one writes it, with or without `/v1`, as a `Target` has it. Raises UsageError."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"--url is {url!r}", hint="Write it like http://localhost:8000")
    return url.rstrip("/").removesuffix("/v1").rstrip("/")


def _limit(silence_s: float) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=silence_s)


def _has_text(chunk: dict[str, Any]) -> bool:
    for choice in chunk.get("choices") or ():
        delta = choice.get("delta") or {}
        if choice.get("text") or any(delta.get(n) for n in ("content", "reasoning_content", "reasoning")):
            return True
    return False


def _refusal(status: int, raw: bytes, place: str) -> HomeboxError:
    """A refusal in words: ours has a code, others' at least a status."""
    try:
        said = msgspec.json.decode(raw)
    except msgspec.DecodeError:
        said = raw.decode(errors="replace")
    error = said.get("error", said) if isinstance(said, dict) else said
    if isinstance(error, dict) and isinstance(error.get("code"), str):
        found = from_dict(error)
        if type(found) is not HomeboxError:
            return found
    words = f"{place} refused with status {status}: {_words(error)}"
    if status in (404, 405, 501):
        return NotFound(words)
    if status == 401:
        return Unauthenticated(words, hint="Give its key with --key.")
    if status == 403:
        return NotAllowed(words)
    if status == 429:
        return Busy(words)
    return UsageError(words) if 400 <= status < 500 else EngineFailed(words)


def _words(error: Any) -> str:
    found = error.get("message") or error.get("detail") if isinstance(error, dict) else error
    return " ".join(str(found or error).split())[:300]


def _unreachable(target: Target, error: Exception) -> HomeboxError:
    if isinstance(error, aiohttp.ClientConnectorError) or (
        isinstance(error, OSError) and not isinstance(error, aiohttp.ClientError)
    ):
        return DaemonUnreachable(
            f"nobody answers at {target.place}: {getattr(error, 'strerror', None) or error}",
            hint="Start it with: homebox serve" if target.socket else "Is that server running?",
        )
    return DaemonUnreachable(f"{target.place} went away: the connection broke off")
