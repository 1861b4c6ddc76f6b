"""Which streams are live, what are their owners told, and who of them goes into the next engine?

The supervisor's list, oldest first: a stream is added once and ends once. What listens to one stream cannot harm
another. It knows no process and sends nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from homebox import errors
from homebox.daemon.blame import blame
from homebox.daemon.streams import Stream
from homebox.wire import frames
from homebox.wire.pause import Pause

log = logging.getLogger("homebox.engine")

DEATHS_ALLOWED = 2
NAMES_AHEAD = 8  # a place names at most so many persons before it


class Live:
    """`broken` hears of a stream whose owner failed when it was told something, so that the engine lets go of it;
    `ended` hears of every end."""

    def __init__(self, broken: Callable[[Stream], None], ended: Callable[[], None]) -> None:
        self._broken, self._ended = broken, ended
        self._streams: dict[str, Stream] = {}

    def __len__(self) -> int:
        return len(self._streams)

    def __iter__(self) -> Iterator[Stream]:
        """All at this moment; they may end meanwhile."""
        return iter(tuple(self._streams.values()))

    def __contains__(self, stream: Stream) -> bool:
        return stream.id in self._streams

    def get(self, name: str) -> Stream | None:
        return self._streams.get(name)

    def add(self, stream: Stream) -> None:
        self._streams[stream.id] = stream

    @property
    def submitted(self) -> list[Stream]:
        """Those that the engine has."""
        return [stream for stream in self if stream.submitted]

    def next_in(self) -> list[Stream]:
        """Who may be submitted now: a lone suspect if there is one, else everybody who waits here."""
        suspects = [stream for stream in self if stream.suspect]
        if suspects:
            return [] if any(stream.submitted for stream in suspects) else suspects[:1]
        return [stream for stream in self if not stream.submitted]

    # ---- what their owners hear

    def tell(self, stream: Stream, what: Callable[..., None], *about: Any) -> None:
        """`what(*about)`. A defect in what listens to one stream ends that stream, and nobody else's."""
        try:
            what(*about)
        except Exception:
            log.exception("stream cannot be delivered", extra=_about(stream))
            self.end(stream, "error", "", errors.EngineFailed("the answer could not be turned into text"))
            self._broken(stream)

    def tell_places(self) -> None:
        """The places of those who wait in the daemon: the engine knows only of those whom it has."""
        waiting = [stream for stream in self if not stream.submitted]
        ahead: dict[str, None] = {}  # each once, in order
        for index, stream in enumerate(waiting):
            names = tuple(list(ahead)[:NAMES_AHEAD])
            self.tell(stream, stream.place, index + 1, len(waiting), names)
            ahead.setdefault(stream.submit.person)

    def end(
        self,
        stream: Stream,
        reason: frames.FinishReason,
        detail: str = "",
        error: errors.HomeboxError | None = None,
    ) -> None:
        if self._streams.pop(stream.id, None) is None:
            return
        self._ended()
        try:
            stream.listener.ended(reason, detail, error)
        except Exception:
            log.exception("the end of a stream cannot be delivered", extra=_about(stream))

    # ---- when the engine is gone

    def engine_died(
        self, why: str, steps: Iterable[frames.StepStarted], *, was_ready: bool, pause: Pause | None
    ) -> None:
        """Count the deaths, end what may not go on, keep the rest for the next engine."""
        blamed, suspected = blame(steps, self.submitted) if was_ready else (set(), set())
        for stream in self:
            if stream.id in blamed:
                stream.died_with()
            if stream.id in suspected:
                stream.suspect = True
            if stream.deaths >= DEATHS_ALLOWED and not stream.aborting:
                failed = errors.EngineFailed(
                    f"the engine died {stream.deaths} times while it worked on this request",
                    hint="Other requests go on. A shorter or different prompt may work.",
                )
                self.end(stream, "error", why, failed)
        self.engine_left(pause)

    def engine_left(self, pause: Pause | None) -> None:
        """Nobody is to blame: everybody is kept for the next engine, which comes at once, or after the pause."""
        for stream in self:
            if stream.aborting:
                self.end(stream, "cancelled")
            elif pause:
                self.tell(stream, stream.hold, pause)
            elif stream.submitted:
                self.tell(stream, stream.lose)
        self.tell_places()


def _about(stream: Stream) -> dict[str, Any]:
    return {"fields": {"stream": stream.id, "request": stream.request}}
