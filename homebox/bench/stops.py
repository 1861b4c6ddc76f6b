"""How long does an answer go on after its reader wants it to stop? A part of `attached.py`.

Measured as a chat screen sees it: from the request that stops to the last event of the answer, and to the first
snapshot of the monitor in which the engine has its blocks no more.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

from homebox.bench import scripted
from homebox.client import chats, stream
from homebox.client.connection import Daemon
from homebox.wire import events

OTHERS = 3
TOKENS_BEFORE = 8
STORY = "Tell me a long story about a small boat."


@dataclass
class Stop:
    """`step_ms`: how long a step of the engine took then; one that is under way is waited for."""

    told_ms: float
    freed_ms: float
    step_ms: float


def one(daemon: Daemon, text: str) -> Stop:
    """Stop one answer in its middle, while others go on; all are ended at the end."""
    names = [f"stop-{time.time_ns()}" for _ in range(OTHERS + 1)]
    turns = [scripted.say(daemon, name, text).turn for name in names]
    told_at: list[float] = []
    flowing = threading.Event()

    def read() -> None:
        for state, _ in stream.follow(daemon, turns[0]):
            if state.stats and state.stats.tokens >= TOKENS_BEFORE:
                flowing.set()
            if state.done:
                told_at.append(time.monotonic())

    reader = threading.Thread(target=read)
    reader.start()
    if not flowing.wait(scripted.WITHIN_S):
        raise SystemExit("no answer came")
    time.sleep(0.001 * (time.time_ns() % 97))  # at any point of a step, and between any two events
    step_ms = _snapshot(daemon).step_ms or 0.0
    began = time.monotonic()
    stopping = threading.Thread(target=stream.cancel, args=(daemon, turns[0]))
    stopping.start()
    # Its row goes when the engine has confirmed that its blocks are free.
    scripted.until(lambda: all(row.id != turns[0] for row in _snapshot(daemon).streams))
    freed_at = time.monotonic()
    stopping.join()
    reader.join()
    for turn in turns[1:]:
        stream.cancel(daemon, turn)
    for name in names:
        chats.delete(daemon, name)
    return Stop((told_at[0] - began) * 1e3, (freed_at - began) * 1e3, step_ms)


def _snapshot(daemon: Daemon) -> events.Snapshot:
    with daemon.open("GET", "/homebox/monitor") as reply:
        return events.decode_snapshot(reply.read())
