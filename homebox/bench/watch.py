"""How busy is the server while it is measured?

Of our own daemon from the snapshots of its monitor, two a second; of any server on this machine the share of all cores
that is used. A server elsewhere that is not ours keeps it to itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from statistics import fmean

import aiohttp
import msgspec
import psutil

from homebox.bench.client import Client
from homebox.bench.results import Used
from homebox.wire.events import Snapshot, decode_snapshot

EVERY_S = 0.5


class Watch:
    """Samples with their time, for as long as it is open."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._seen: list[tuple[float, Snapshot]] = []
        self._machine: list[tuple[float, float]] = []

    def used(self, since_s: float, until_s: float) -> Used:
        """Over this span of CLOCK_MONOTONIC. The daemon looks at its devices once a second, so a phase that is shorter may
        have no figure."""
        seen = [snapshot for at, snapshot in self._seen if since_s <= at < until_s]
        devices = [snapshot.devices[0] for snapshot in seen if snapshot.devices]
        blocks = [snapshot.blocks for snapshot in seen if snapshot.blocks]
        return Used(
            device=devices[0].kind if devices else "",
            device_percent=_mean([device.util_percent for device in devices]),
            machine_cpu_percent=_mean([share for at, share in self._machine if since_s <= at < until_s]),
            running=_mean([snapshot.running for snapshot in seen]),
            waiting=_mean([snapshot.waiting for snapshot in seen]),
            step_ms=_mean([snapshot.step_ms for snapshot in seen]),
            blocks=_mean([each.used for each in blocks]),
            blocks_most=max((each.used for each in blocks), default=None),
            blocks_total=blocks[0].total if blocks else None,
        )

    async def follow_daemon(self) -> None:
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):  # gone: the answers say so
            async for line in self._client.lines(f"/homebox/monitor?interval={EVERY_S}"):
                with contextlib.suppress(msgspec.DecodeError):
                    self._seen.append((time.monotonic(), decode_snapshot(line)))

    async def follow_machine(self) -> None:
        psutil.cpu_percent()  # the first reading has nothing to compare with
        while True:
            await asyncio.sleep(EVERY_S)
            self._machine.append((time.monotonic(), psutil.cpu_percent()))


@contextlib.asynccontextmanager
async def watching(client: Client, *, ours: bool) -> AsyncIterator[Watch]:
    watch = Watch(client)
    tasks = [asyncio.create_task(watch.follow_daemon())] if ours else []
    tasks += [asyncio.create_task(watch.follow_machine())] if client.target.local else []
    try:
        yield watch
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
