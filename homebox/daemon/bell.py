"""How does one task wait for news that may come a thousand times a second?

`asyncio.wait_for` makes a task, a timer and an event for every wait, which is more work than the news itself. A `Bell`
has one future while somebody waits, and one timer that is left to run and looks, when it goes off, whether it is late
yet. However often it was rung meanwhile, whoever waits is woken once.
"""

from __future__ import annotations

import asyncio
import time


def to_beat(every_s: float) -> float:
    """Seconds to the next multiple of `every_s`: those who wait for the same beat wake the event loop together."""
    return every_s - time.monotonic() % every_s


class Bell:
    """One task waits at a time; anybody on the same event loop rings."""

    def __init__(self) -> None:
        self._rung = False
        self._waiting: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._until_s = 0.0  # by the loop's clock: when whoever waits gives up

    def ring(self) -> None:
        self._rung = True
        self._wake()

    async def rung(self, within_s: float | None = None) -> bool:
        """True once it was rung since the last call, False if it was not within so many seconds."""
        if not self._rung:
            loop = asyncio.get_running_loop()
            self._waiting = loop.create_future()
            if within_s is not None:
                self._until_s = loop.time() + within_s
                self._look_at(self._until_s)
            try:
                await self._waiting
            finally:
                self._waiting = None
        rung, self._rung = self._rung, False
        return rung

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def _look_at(self, when_s: float) -> None:
        if self._timer is not None:
            if self._timer.when() <= when_s:
                return  # it goes off before, and is set again then
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(when_s, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._waiting is None:
            return
        if asyncio.get_running_loop().time() < self._until_s:
            self._look_at(self._until_s)
        else:
            self._wake()
