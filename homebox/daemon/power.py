"""When is there an engine in memory, and when is the machine somebody else's?

Pauses and resumes for persons, ends a pause whose time is over, unloads an engine that nobody has used for long, and
deals with a machine that has slept. It decides; the supervisor does. A pause is kept in a file, so that a restart of
the daemon does not take the GPU away from a game.
"""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path

from homebox.config import Current
from homebox.daemon.engine_state import EngineState
from homebox.daemon.identity import Person
from homebox.daemon.pause_file import PauseFile
from homebox.daemon.sleep import SleepWatch
from homebox.daemon.supervisor import GPU, Supervisor
from homebox.errors import NotAllowed
from homebox.wire.pause import Pause

log = logging.getLogger("homebox.power")

LOOK_EVERY_S = 1.0


def may_pause(person: Person) -> bool:
    """Whoever has an account on the box may take it for a game, but for kids and guests; a key from elsewhere may
    not."""
    return person.admin or (person.local and person.role in ("admin", "adult"))


class Power:
    """`start`, then `stop`, once each; between them one look a second."""

    def __init__(
        self,
        supervisor: Supervisor,
        state_dir: Path,
        current: Current,
        *,
        sleep: SleepWatch | None = None,
    ) -> None:
        self._current = current
        self._supervisor = supervisor
        self._file = PauseFile(state_dir)
        self._sleep = sleep or SleepWatch()
        self._watching: asyncio.Task[None] | None = None
        self._pausing: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the engine, unless the box was paused when the daemon last ran."""
        pause = self._file.read()
        if pause:
            log.info("still paused, since %.0f by %s", pause.since, pause.by)
        self._supervisor.start(pause)
        self._watching = asyncio.create_task(self._watch(), name="power")

    async def stop(self) -> None:
        tasks = [task for task in (self._watching, self._pausing) if task]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def drain_s(self) -> float:
        return self._current.settings.drain_s

    # ---- what persons may do

    def pause(
        self, person: Person, *, now: bool = False, for_s: float | None = None, reason: str = ""
    ) -> Pause:
        """Free the machine: running answers may finish for `drain_s` seconds, or are held at once with `now`. Returns
        at once; the supervisor's state says how far it is. Raises NotAllowed, or NoSpace where it cannot be kept."""
        _check(person)
        before = self._supervisor.paused
        at = time.time()
        pause = Pause(
            by=person.name,
            since=before.since if before else at,
            until=None if for_s is None else at + for_s,
            reason=reason,
        )
        self._file.write(pause)
        log.info("paused", extra={"fields": {"person": person.name, "for_s": for_s, "now": now}})
        within_s = 0.0 if now else self.drain_s
        self._pausing = asyncio.create_task(self._supervisor.pause(pause, within_s), name="pause")
        return pause

    def resume(self, person: Person) -> bool:
        """Raises NotAllowed. False if there was nothing to resume: no pause, and no engine that sleeps."""
        _check(person)
        was = self._supervisor.paused is not None or self._supervisor.state is EngineState.UNLOADED
        self._resume(f"by {person.name}")
        return was

    def _resume(self, why: str) -> None:
        self._file.remove()
        log.info("resumed", extra={"fields": {"why": why}})
        self._supervisor.resume()

    # ---- once a second

    async def _watch(self) -> None:
        while True:
            idle_s = self._current.settings.idle_unload_s
            await asyncio.sleep(min(LOOK_EVERY_S, idle_s / 4) if idle_s else LOOK_EVERY_S)
            try:
                await self._look()
            except Exception:
                log.exception("the power watch failed")

    async def _look(self) -> None:
        if slept_s := self._sleep.slept_s():
            await self._woke(slept_s)
        pause = self._supervisor.paused
        if pause and pause.left_s() == 0:
            self._resume("its time is over")
        idle_s = self._current.settings.idle_unload_s
        if idle_s and self._supervisor.idle_s >= idle_s:
            log.info("unloading after %.0f s without a request", self._supervisor.idle_s)
            await self._supervisor.unload()

    async def _woke(self, slept_s: float) -> None:
        ready = self._supervisor.ready
        log.info("the machine slept for %.0f s", slept_s)
        self._supervisor.wake()
        if ready and ready.device.startswith(GPU):
            await self._supervisor.replace("the machine slept, and what was in the GPU's memory is lost")


def _check(person: Person) -> None:
    if not may_pause(person):
        raise NotAllowed(
            f"{person.name} may not pause or resume the box",
            hint="Ask somebody who has an account on it: homebox pause, homebox resume.",
        )
