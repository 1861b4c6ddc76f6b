"""Who may have killed the engine? A pure judgement over the streams that it had."""

from __future__ import annotations

from collections.abc import Iterable

from homebox.daemon.streams import Stream
from homebox.wire.frames import StepStarted


def blame(steps: Iterable[StepStarted], held: Iterable[Stream]) -> tuple[set[str], set[str]]:
    """For the death of an engine that was ready: against whom it counts, and who is tried alone from now on.

    Everybody in a running step counts. Between steps (while planning, or killed from outside) it counts against the
    suspect that was in, or the only one there was; else anybody may be the cause, and all are tried alone."""
    in_step = {name for step in steps for name in step.requests}
    if in_step:
        return in_step, in_step
    held = list(held)
    certain = [stream for stream in held if stream.suspect] or (held if len(held) == 1 else [])
    names = {stream.id for stream in certain}
    return names, names or {stream.id for stream in held}
