"""How does the service manager know that the daemon is well, and what it is doing?

A task of the event loop: it feeds the watchdog while the loop turns, and says in one line what the house does whenever
that has changed, at most once a second. An engine that stalls or dies is the supervisor's to replace; the watchdog goes
hungry only when that has failed too often in a row, so that the whole service starts anew.
"""

from __future__ import annotations

import asyncio
import logging

from homebox.daemon.house import House
from homebox.daemon.monitor import detail
from homebox.daemon.notify import Notifier
from homebox.daemon.streams import Phase
from homebox.daemon.supervisor import EngineState, Supervisor

log = logging.getLogger("homebox.daemon")

SAY_EVERY_S = 1.0
LEAVE_S = 15.0  # for the engine and the sockets, after the drain


class Pulse:
    """`start` once the socket answers, `stop` at the very end."""

    def __init__(self, house: House, notifier: Notifier) -> None:
        self._house = house
        self._notifier = notifier
        self._every_s = min(SAY_EVERY_S, (notifier.watchdog_s or SAY_EVERY_S * 3) / 3)
        self._said = self.note = ""  # `note`: what became of the last reload
        self._hungry = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._said = self.line()
        self._notifier.ready(self._said)
        self._task = asyncio.create_task(self._beat(), name="pulse")

    async def stop(self) -> None:
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def reloading(self) -> None:
        self._notifier.reloading()

    def reloaded(self, note: str) -> None:
        self.note = note
        self._said = self.line()
        self._notifier.ready(self._said)

    def going_down(self) -> None:
        self._notifier.stopping(self._house.settings.drain_s + LEAVE_S)

    def line(self) -> str:
        """`smollm2-135m ready, 2 running, 1 waiting`, and after a reload what became of it."""
        return "; ".join(part for part in (standing(self._house), self.note) if part)

    async def _beat(self) -> None:
        said_at = 0.0
        loop = asyncio.get_running_loop()
        while True:
            if self._notifier.watchdog_s and self._well(self._house.supervisor):
                self._notifier.alive()
            if loop.time() - said_at >= SAY_EVERY_S and (line := self.line()) != self._said:
                self._said, said_at = line, loop.time()
                self._notifier.status(line)
            await asyncio.sleep(self._every_s)

    def _well(self, supervisor: Supervisor) -> bool:
        """Whether a restart of everything would make nothing better. Loading counts as moving: who loads without a
        word is killed by the supervisor."""
        well = supervisor.state is not EngineState.FAILED or supervisor.loading is not None
        if not well and not self._hungry:
            log.error("no engine starts, so the watchdog is not fed any more: %s", supervisor.detail)
        self._hungry = not well
        return well


def standing(house: House) -> str:
    """The house in half a line: names and counters only."""
    supervisor, model = house.supervisor, house.book.manifest.name
    waiting = sum(stream.phase is Phase.WAITING for stream in supervisor.streams)
    running = len(supervisor.streams) - waiting
    counts = f"{running} running, {waiting} waiting"
    if house.book.draining:
        return f"{model} going down, {counts}"
    if supervisor.state is EngineState.READY:
        return f"{model} ready, {counts}"
    said = detail(supervisor)
    return f"{model} {supervisor.state}" + (f": {said}" if said else "")
