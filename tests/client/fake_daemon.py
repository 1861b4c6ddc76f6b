"""What if the daemon said exactly this? A small real HTTP server on a real Unix socket, scripted by the test.

For answers that a real daemon gives only at bad moments: it goes away in mid-answer, refuses, says nonsense. `when`
sets what a route does; a handler gets an `Exchange` and speaks through it. Everything asked is kept in `asked`.
"""

from __future__ import annotations

import json
import socket
import socketserver
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import msgspec

from homebox.errors import HomeboxError
from homebox.wire import events

DEADLINE_S = 10.0
USAGE = events.Usage(prompt_tokens=7, completion_tokens=3)
TIMING = events.Timing(queue_ms=12.0, ttft_ms=340.0, total_ms=1500.0, tok_s=20.0)


def answer(*pieces: str, reason: str = "stop", **finished: Any) -> list[events.Event]:
    """The events of a whole answer, numbered from 1."""
    said: list[events.Event] = [events.Queued(position=1, waiting=1), events.Started(queue_ms=12.0)]
    offset = 0
    for piece in pieces:
        said.append(events.Text(text=piece, offset=offset))
        offset += len(piece)
    said.append(events.Finished(reason=reason, usage=USAGE, timing=TIMING, **finished))
    return numbered(said)


def numbered(said: Iterable[events.Event]) -> list[events.Event]:
    return [msgspec.structs.replace(event, seq=seq) for seq, event in enumerate(said, 1)]


@dataclass
class Asked:
    method: str
    path: str
    headers: dict[str, str]
    body: Any
    hung_up: threading.Event = field(default_factory=threading.Event)


class Exchange:
    """One request being answered."""

    def __init__(self, handler: BaseHTTPRequestHandler, asked: Asked) -> None:
        self._handler = handler
        self.asked = asked

    def json(self, value: Any, status: int = 200) -> None:
        self.raw(msgspec.json.encode(value), status)

    def raw(self, body: bytes, status: int = 200) -> None:
        self._handler.send_response(status)
        self._handler.send_header("Content-Type", "application/json")
        self._handler.send_header("Content-Length", str(len(body)))
        self._handler.end_headers()
        self._handler.wfile.write(body)

    def error(self, error: HomeboxError) -> None:
        self.json({"error": error.as_dict()}, error.http_status)

    def begin(self) -> None:
        self._handler.send_response(200)
        self._handler.send_header("Content-Type", "application/x-ndjson")
        self._handler.send_header("Transfer-Encoding", "chunked")
        self._handler.end_headers()

    def line(self, line: bytes) -> None:
        self._handler.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
        self._handler.wfile.flush()

    def say(self, said: Iterable[events.Event]) -> None:
        for event in said:
            self.line(events.encode(event) + b"\n")

    def end(self) -> None:
        self._handler.wfile.write(b"0\r\n\r\n")

    def stream(self, said: Iterable[events.Event]) -> None:
        self.begin()
        self.say(said)
        self.end()

    def wait_for_hang_up(self) -> None:
        """Returns when the client has closed its side."""
        self._handler.connection.settimeout(DEADLINE_S)
        if self._handler.connection.recv(1) == b"":
            self.asked.hung_up.set()

    def break_off(self) -> None:
        self._handler.connection.shutdown(socket.SHUT_RDWR)


Handler = Callable[[Exchange], None]


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        return  # a client that goes away is what many tests are about


class FakeDaemon:
    """Use as a context. Handlers are looked up by method and the beginning of the path, the longest first."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.asked: list[Asked] = []
        self._handlers: dict[tuple[str, str], Handler] = {}
        self._server: _Server | None = None

    def when(self, method: str, path: str, handler: Handler) -> None:
        self._handlers[method, path] = handler

    def answers(self, *pieces: str, **finished: Any) -> None:
        """Let every `ask` have this answer."""
        self.when("POST", "/homebox/ask", lambda exchange: exchange.stream(answer(*pieces, **finished)))

    def requests(self, path: str) -> list[Asked]:
        return [asked for asked in self.asked if asked.path.startswith(path)]

    def start(self) -> None:
        fake = self

        class Requests(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def address_string(self) -> str:
                return "unix"

            def log_message(self, format: str, *args: Any) -> None:
                return

            def _answer(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                raw = self.rfile.read(length)
                asked = Asked(self.command, self.path, dict(self.headers), json.loads(raw) if raw else None)
                fake.asked.append(asked)
                fake._find(self.command, self.path)(Exchange(self, asked))

            do_GET = do_POST = do_PATCH = do_DELETE = _answer

        self._server = _Server(str(self.path), Requests)
        threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        ).start()

    def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None
            self.path.unlink(missing_ok=True)

    def _find(self, method: str, path: str) -> Handler:
        fits = [at for (how, at) in self._handlers if how == method and path.startswith(at)]
        if not fits:
            return lambda exchange: exchange.json(
                {"error": {"code": "not_found", "message": f"no {path}"}}, 404
            )
        return self._handlers[method, max(fits, key=len)]

    def __enter__(self) -> FakeDaemon:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
