"""Does everything that is under way still have its right to be?

A key that is revoked or expires takes its answers along: once a second, and at once when the daemon itself changed the
keys, every live turn and every open request is held against the keys there are. Turns end first, so that their readers
get the reason and the text so far; what is then still open, such as an endless monitor, is cut off. Also the moment at
which uses of keys are written down.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterator

from homebox.daemon.keys import Keys
from homebox.daemon.turnbook import TurnBook
from homebox.daemon.turns import TurnState
from homebox.errors import HomeboxError, Unauthenticated

log = logging.getLogger("homebox.daemon")

LOOK_EVERY_S = 1.0
REVOKED, EXPIRED = "the key was revoked", "the key has expired"


class Warden:
    def __init__(self, keys: Keys, book: TurnBook, *, clock: Callable[[], float] = time.time) -> None:
        self._keys, self._book, self._clock = keys, book, clock
        self._open: dict[asyncio.Task[object], str] = {}  # requests under way, and the key of each
        self._watching: asyncio.Task[None] | None = None

    @contextlib.contextmanager
    def watched(self, key: str | None) -> Iterator[None]:
        """Around a request that came with this key."""
        task = asyncio.current_task()
        if key is None or task is None:
            yield
            return
        self._open[task] = key
        try:
            yield
        finally:
            del self._open[task]

    def start(self) -> None:
        self._watching = asyncio.create_task(self._watch(), name="warden")

    async def stop(self) -> None:
        if self._watching:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        await self._write_uses()

    def look(self) -> None:
        """End what has lost its right. Raises BadFile where the keys cannot be read; nothing is ended then."""
        if not self._open and not any(turn.key for turn in self._book.live):
            return
        known, now = self._keys.by_id(), self._clock()

        def lost(key: str | None) -> str | None:
            if key is None or ((found := known.get(key)) and not found.expired(now)):
                return None
            return EXPIRED if found else REVOKED

        ended: set[str] = set()
        for turn in self._book.live:
            if turn.state is not TurnState.DONE and (why := lost(turn.key)):
                ended.add(turn.key or "")
                turn.cancel(why, Unauthenticated(why))
        for task, key in self._open.items():
            if lost(key) and key not in ended:  # its readers have had a moment for the last words
                task.cancel()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            try:
                self.look()
            except HomeboxError:
                pass  # unreadable keys: every new request says so already
            except Exception:  # a defect must not leave what was revoked its rights for ever
                log.exception("the keys in use could not be looked at")
            if self._keys.uses_to_write(self._clock()):
                await self._write_uses()

    async def _write_uses(self) -> None:
        try:
            await asyncio.to_thread(self._keys.write_uses, self._clock())
        except (HomeboxError, OSError) as error:
            log.warning("when keys were used cannot be written: %s", error)
