"""A daemon that says the same on every run: for the goldens of the chat screen."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from homebox.wire import events
from homebox.wire.chats import ChatList, ChatRow, ChatView, Draft, MessageView
from tests.client.fake_daemon import Exchange, FakeDaemon

NOON = 1_782_900_000.0  # 2026-07-01 10:00:00 UTC
CHAT = "c0ffee"
SNAPSHOT = events.Snapshot(
    at=NOON,
    version="0.1.0",
    uptime_s=273_600.0,
    engine="ready",
    model="smollm2-135m",
    max_context=8192,
    max_running=16,
    devices=(events.Device(kind="gpu", name="RTX 4090", util_percent=74.0),),
    running=2,
    waiting=1,
    tok_s_out=121.0,
    streams=(
        events.StreamRow(
            id="t-1", person="anna", state="decode", model="smollm2-135m", klass="normal",
            tokens_in=5012, tokens_out=418, tok_s=62.0, ttft_ms=410.0, blocks=340, age_s=9.2, mine=True,
        ),
        events.StreamRow(
            id="t-2", person="dad", state="decode", model="smollm2-135m", klass="normal",
            tokens_in=880, tokens_out=212, tok_s=59.0, ttft_ms=300.0, blocks=69, age_s=3.6,
        ),
    ),
)  # fmt: skip
ROWS = (
    ("Trip to Lisbon", 60.0, "done"),
    ("Fix the printer", 3600.0, "stopped"),
    ("Sourdough", 90_000.0, "done"),
)


def message(name: str, role: str, content: str, **fields: Any) -> MessageView:
    return MessageView(id=name, role=role, content=content, created=NOON - 120, **fields)  # type: ignore[arg-type]


class FakeHouse:
    """`view` is the chat that is there; `turn` are the events of the next turn, after which nothing more comes, or with
    `breaks_off` the connection does not hold."""

    def __init__(self, daemon: FakeDaemon) -> None:
        self._daemon = daemon
        self.health: dict[str, Any] = {"state": "ready", "model": "smollm2-135m"}
        self.view = ChatView(id=CHAT, title="Trip to Lisbon", created=NOON, updated=NOON, messages=[])
        self.turn: Iterable[events.Event] = ()
        self.breaks_off = False
        daemon.when("GET", "/health", lambda exchange: exchange.json(self.health))
        daemon.when("GET", "/homebox/monitor", self._monitor)
        daemon.when(
            "GET", "/homebox/draft", lambda exchange: exchange.json(msgspec.to_builtins(Draft(text="")))
        )
        daemon.when("PUT", "/homebox", lambda exchange: exchange.json({}))
        daemon.when("GET", "/homebox/chats", self._chats)
        daemon.when("POST", "/homebox/chats", self._say)
        daemon.when("GET", "/homebox/turns", self._events)

    def _monitor(self, exchange: Exchange) -> None:
        exchange.begin()
        exchange.line(events.encode(SNAPSHOT) + b"\n")
        exchange.wait_for_hang_up()

    def _chats(self, exchange: Exchange) -> None:
        path = exchange.asked.path
        if path.startswith(f"/homebox/chats/{CHAT}/draft"):
            exchange.json({"text": ""})
        elif path.startswith(f"/homebox/chats/{CHAT}"):
            exchange.json(msgspec.to_builtins(self.view))
        else:
            rows = [
                ChatRow(
                    id=f"{n:06x}" if n else CHAT,
                    title=title,
                    created=NOON,
                    updated=NOON - ago,
                    messages=4,
                    state=state,
                )  # type: ignore[arg-type]
                for n, (title, ago, state) in enumerate(ROWS)
            ]
            exchange.json(msgspec.to_builtins(ChatList(chats=rows)))

    def _say(self, exchange: Exchange) -> None:
        exchange.json({"turn": "t-1", "chat": CHAT, "question": "q9", "answer": "a9"})

    def _events(self, exchange: Exchange) -> None:
        exchange.begin()
        exchange.say(self.turn)
        if self.breaks_off:
            self._daemon.when("GET", "/homebox/turns", lambda exchange: exchange.break_off())
            exchange.break_off()
        else:
            exchange.wait_for_hang_up()
