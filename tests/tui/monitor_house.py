"""A house on an evening, for the monitor's tests: four people, seven streams, five minutes of history, no clock."""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

from msgspec.structs import replace
from textual.pilot import Pilot

from homebox.client.connection import Daemon
from homebox.client.settings import Screens
from homebox.tui.app import HomeboxApp
from homebox.tui.monitor.screen import MonitorScreen
from homebox.tui.monitor.widgets import Lines
from homebox.wire.events import Blocks, Device, PersonBlocks, Snapshot, StreamRow, encode
from tests.client.fake_daemon import Exchange, FakeDaemon
from tests.tui import golden

GIB = 2**30
NOON = 1_790_000_000.0
ME = {"name": "anna", "role": "adult", "entered": True, "rules": {}, "own": {}, "admin": False}


def stream(person: str, name: str, state: str, tokens_in: int, out: int, **more: Any) -> StreamRow:
    return StreamRow(
        id=f"t-{name}", person=person, state=state, model="qwen3-8b", klass="normal", tokens_in=tokens_in,
        tokens_out=out, mine=person == "anna", **more,
    )  # fmt: skip


STREAMS = (
    stream("anna", "91c4d0aa", "decode", 5012, 418, tok_s=62.0, ttft_ms=410.0, blocks=340, age_s=9.2, cached=3968,
           max_tokens=2048, queue_ms=120.0, client="chat", prefilled=5012),
    stream("dad", "91d11223", "decode", 880, 212, tok_s=59.1, ttft_ms=300.0, blocks=69, age_s=3.6, cached=512,
           max_tokens=1024, queue_ms=0.0, client="ask", prefilled=880),
    stream("dad", "919f00aa", "decode", 2210, 900, tok_s=58.8, ttft_ms=520.0, blocks=195, age_s=15.7, cached=2048,
           max_tokens=4096, queue_ms=0.0, client="chat", prefilled=2210),
    stream("leo", "91fabc01", "prefill", 7400, 0, blocks=463, age_s=0.6, max_tokens=2048, queue_ms=50.0,
           client="chat", prefilled=2048),
    stream("mia", "92055512", "waiting", 310, 0, position=1, age_s=4.1, max_tokens=1024, queue_ms=4100.0, client="api"),
    stream("mia", "92177734", "waiting", 1200, 0, position=2, age_s=1.0, max_tokens=1024, queue_ms=1000.0, client="api"),
)  # fmt: skip
ENDED = (
    stream("anna", "917abcde", "cancelled", 640, 131, tok_s=60.4, ttft_ms=330.0, age_s=22.0, cached=640,
           max_tokens=2048, queue_ms=0.0, client="chat", ended_s=4.0),
)  # fmt: skip
GPU = Device(
    kind="gpu", name="RTX 4090", util_percent=74.0, memory_used_bytes=int(18.2 * GIB), memory_total_bytes=24 * GIB,
    power_w=312.0, temperature_c=67.0, power_limit_w=450.0, clock_mhz=2520.0, fan_percent=48.0, driver="NVIDIA 580.1",
)  # fmt: skip
NOW = Snapshot(
    at=NOON, version="0.1.0", uptime_s=273840.0, engine="ready", model="qwen3-8b", max_context=16384, max_running=16,
    devices=(GPU,),
    blocks=Blocks(
        total=1536, used=1067, cached=337, free=132, block_size=16, shared=24,
        people=(
            PersonBlocks(person="anna", blocks=330), PersonBlocks(person="dad", blocks=250, doubled=40),
            PersonBlocks(person="leo", blocks=450),
        ),
    ),
    prefix_hit_rate=0.61, running=4, waiting=2, tok_s_out=180.0, tok_s_in=1930.0, step_ms=13.8, ttft_p50_ms=380.0,
    ttft_p95_ms=1900.0, gap_p50_ms=14.0, gap_p95_ms=22.0, streams=STREAMS, ended=ENDED, oldest_wait_s=4.1,
    weight_bytes=int(5.7 * GIB), kv_bytes=int(11.1 * GIB),
)  # fmt: skip
CPU = Device(
    kind="cpu", name="AMD EPYC 7B13", util_percent=88.0, memory_used_bytes=GIB, memory_total_bytes=16 * GIB
)
IDLE = replace(
    NOW, devices=(CPU,), streams=(), ended=(), running=0, waiting=0, oldest_wait_s=None, tok_s_out=0.0, tok_s_in=0.0,
    blocks=Blocks(total=1536, used=0, cached=400, free=1136, block_size=16),
    weight_bytes=GIB // 2, kv_bytes=GIB // 4,
)  # fmt: skip


def without_engine(state: str, detail: str) -> Snapshot:
    return replace(
        NOW, engine=state, engine_detail=detail, blocks=None, weight_bytes=None, kv_bytes=None, running=0, step_ms=None,
        streams=tuple(replace(row, state="held", blocks=0) for row in STREAMS[:2]), ended=(), waiting=2,
        oldest_wait_s=None,
    )  # fmt: skip


def past(now: Snapshot) -> Iterator[Snapshot]:
    """Five minutes that end just before `now`."""
    for i in range(149, 0, -1):
        wave = 0.5 + 0.5 * math.sin(i / 9)
        yield replace(
            now, at=now.at - 2 * i, streams=(), ended=(), past=True, tok_s_out=200 * wave, running=round(12 * wave),
            devices=tuple(replace(each, util_percent=90 * wave) for each in now.devices),
        )  # fmt: skip


class House:
    """What a fake daemon tells of `now`; `tell` is the next snapshot, `break_off` ends the connections."""

    def __init__(self, fake: FakeDaemon, now: Snapshot = NOW, **me: Any) -> None:
        self.fake, self.now = fake, now
        self._changed = threading.Condition()
        self._broken = 0
        self.cancelled: list[str] = []
        fake.when("GET", "/homebox/me", lambda exchange: exchange.json(ME | me))
        fake.when("GET", "/homebox/monitor", self._watch)
        fake.when("DELETE", "/homebox/turns/", self._cancel)

    def tell(self, now: Snapshot) -> None:
        with self._changed:
            self.now = now
            self._changed.notify_all()

    def break_off(self) -> None:
        with self._changed:
            self._broken += 1
            self._changed.notify_all()

    def _cancel(self, exchange: Exchange) -> None:
        self.cancelled.append(exchange.asked.path.rpartition("/")[2])
        exchange.json({"turn": "t", "reason": "cancelled"})

    def _watch(self, exchange: Exchange) -> None:
        if "interval" not in exchange.asked.path:
            exchange.json(self.now)
            return
        exchange.begin()
        if "history=1" in exchange.asked.path:
            for each in past(self.now):
                exchange.line(encode(each) + b"\n")
        threading.Thread(target=self._until_hang_up, args=(exchange,), daemon=True).start()
        with self._changed:
            told, broken = None, self._broken
            while broken == self._broken and not exchange.asked.hung_up.is_set():
                if told is not self.now:
                    told = self.now
                    exchange.line(encode(told) + b"\n")
                self._changed.wait(0.05)
        if not exchange.asked.hung_up.is_set():
            exchange.break_off()

    @staticmethod
    def _until_hang_up(exchange: Exchange) -> None:
        with contextlib.suppress(OSError):
            exchange.wait_for_hang_up()


async def until(pilot: Pilot[Any], condition: Callable[[], object], within_s: float = 15.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, (
            f"the condition did not come true: {pilot.app.screen_stack}\n{golden.shown(pilot.app)}"
        )
        await asyncio.sleep(0.01)


async def settled(pilot: Pilot[Any]) -> None:
    """Until what was drawn last also has its room."""

    def fits() -> bool:
        shown = [each for each in pilot.app.screen.query(Lines) if each.display and each.id != "pane"]
        return all(each.size.height == len(each._lines) for each in shown)

    await until(pilot, fits)


async def sees(pilot: Pilot[Any], text: str) -> None:
    await until(pilot, lambda: text in golden.shown(pilot.app))


@asynccontextmanager
async def watching(
    fake: FakeDaemon, size: tuple[int, int] = (80, 24), *, until_shown: str = "up 3d04h", **options: Any
) -> AsyncIterator[Pilot[Any]]:
    """The monitor's screen, once it has drawn what the house tells."""
    daemon = Daemon(socket_path=fake.path)
    screens = Screens(theme=options.pop("theme", None))
    app = HomeboxApp(daemon, MonitorScreen(daemon, **options), screens)
    async with app.run_test(size=size) as pilot:
        await sees(pilot, until_shown)
        await settled(pilot)
        yield pilot
