"""A whole daemon for one test: real sockets, the scripted engine in its own process, the event loop in a thread."""

from __future__ import annotations

import asyncio
import shutil
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import httpx
import msgspec

from homebox.config import Settings
from homebox.daemon.app import build
from homebox.daemon.serve import Server
from homebox.daemon.supervisor import Patience
from homebox.wire import events
from tests import forks

T = TypeVar("T")

# Some hundred scripted engines are started. Daemons that are processes of their own start theirs as they always do.
forks.use_in_asyncio("tokenizers")

SCRIPT = (sys.executable, str(Path(__file__).with_name("scripted_engine.py")))
QUICK = Patience(stall_s=2.0, backoff_s=(0.0, 0.05, 0.1), tries=3, retry_failed_s=0.3)


def until(condition: Callable[[], T], within_s: float = 10.0) -> T:
    """The first true value of `condition`."""
    deadline = time.monotonic() + within_s
    while not (value := condition()):
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.005)
    return value


class Box:
    """`http` speaks over the Unix socket; `address` is the TCP one, where there is one."""

    def __init__(self, server: Server, loop: asyncio.AbstractEventLoop) -> None:
        self.server, self.loop = server, loop
        self.house = server.house
        self.socket = str(server.path)
        self.http = self.client()

    def client(self, **headers: str) -> httpx.Client:
        # Without `verify=False` each reads the certificates of a hundred authorities first, for a socket without TLS.
        return httpx.Client(
            transport=httpx.HTTPTransport(uds=self.socket, verify=False),
            base_url="http://box",
            timeout=20,
            headers=headers,
        )

    def far(self, **headers: str) -> httpx.Client:
        """A client over TCP."""
        return httpx.Client(verify=False, base_url=self.address, timeout=20, headers=headers)

    @property
    def address(self) -> str:
        host, port = self.server.addresses[0]
        return f"http://{host}:{port}"

    def on_loop(self, what: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """What a coroutine of the daemon's own parts gives."""
        return asyncio.run_coroutine_threadsafe(what(), self.loop).result(20)

    # ---- shorthand

    def chat(self, content: str, client: httpx.Client | None = None, **fields: Any) -> httpx.Response:
        body = {"model": "tiny", "messages": [{"role": "user", "content": content}], **fields}
        return (client or self.http).post("/v1/chat/completions", json=body)

    def ask(self, content: str, **options: Any) -> list[events.Event]:
        body = {"messages": [{"role": "user", "content": content}], "options": options}
        response = self.http.post("/homebox/ask", json=body)
        assert response.status_code == 200, response.text
        return read_events(response.content)

    def detach(self, content: str, client: httpx.Client | None = None, **options: Any) -> str:
        body = {"messages": [{"role": "user", "content": content}], "options": options, "detach": True}
        response = (client or self.http).post("/homebox/ask", json=body)
        assert response.status_code == 200, response.text
        return str(response.json()["turn"])

    def say(self, chat: str, text: str, key: str, **fields: Any) -> httpx.Response:
        return self.http.post(f"/homebox/chats/{chat}/turns", json={"key": key, "text": text, **fields})

    def events(self, turn: str, after: int = 0) -> list[events.Event]:
        response = self.http.get(f"/homebox/turns/{turn}/events?after={after}")
        assert response.status_code == 200, response.text
        return read_events(response.content)

    def streams(self) -> list[dict[str, Any]]:
        return self.http.get("/homebox/streams").json()["streams"]  # type: ignore[no-any-return]

    def tokens(self, turn: str) -> int:
        return next((row["tokens_out"] for row in self.streams() if row["id"] == turn), 0)

    def snapshot(self) -> events.Snapshot:
        return events.decode_snapshot(self.http.get("/homebox/monitor").content)

    def idle(self) -> bool:
        """Nothing runs, no block is used."""
        now = self.snapshot()
        return not now.streams and not now.running and now.blocks is not None and now.blocks.used == 0

    def ready(self) -> bool:
        return bool(self.http.get("/health").json()["state"] == "ready")


def read_events(body: bytes) -> list[events.Event]:
    return [events.decode_event(line) for line in body.splitlines()]


def text_of(told: list[events.Event]) -> str:
    """The answer, with every offset checked."""
    text = ""
    for event in told:
        if isinstance(event, events.Text):
            assert event.offset == len(text)
            text += event.text
    return text


def state_with(model: Path, folder: Path) -> Path:
    """A state directory with this model in its library."""
    shutil.copytree(model, folder / "models" / model.name)
    return folder


@contextmanager
def running(
    model: Path,
    folder: Path,
    *,
    patience: Patience = QUICK,
    ready: bool = True,
    command: Sequence[str] = SCRIPT,
    clock: Callable[[], float] = time.time,
    **settings: Any,
) -> Iterator[Box]:
    """A daemon in this process, its state and socket under `folder`."""
    state = folder if (folder / "models").exists() else state_with(model, folder)
    full = msgspec.convert({"model": model.name, "drain_s": 1.0, **settings}, Settings)
    started: list[Server] = []
    failed: list[BaseException] = []
    go, leave = threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()

    async def main() -> None:
        try:
            server = Server(
                build(full, state, command=command, patience=patience, clock=clock),
                folder / "run" / "api.sock",
                full.listen,
            )
            await server.start()
        except BaseException as error:
            failed.append(error)
            go.set()
            return
        started.append(server)
        go.set()
        await leave.wait()
        await server.stop()

    thread = threading.Thread(target=loop.run_until_complete, args=(main(),))
    thread.start()
    assert go.wait(20)
    if failed:
        thread.join()
        raise failed[0]
    box = Box(started[0], loop)
    try:
        if ready:
            until(box.ready, within_s=120)
        yield box
    finally:
        box.http.close()
        loop.call_soon_threadsafe(leave.set)
        thread.join(20)
        loop.close()
        assert not thread.is_alive()
    assert not Path(box.socket).exists()
