"""Why does nothing come?

While an answer waits for longer than a moment, the daemon is asked how its engine is, once a second, beside the thread
that reads the answer; who draws is told. It knows no words and no screens.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

from homebox.client.connection import Daemon
from homebox.client.state import ChatState, Phase
from homebox.errors import HomeboxError

ASK_EVERY_S = 1.0


class Patience:
    """Use as a context around one answer. `tell` gets what `/health` says, never while a `hear` block runs."""

    def __init__(self, daemon: Daemon, tell: Callable[[dict[str, Any]], None]) -> None:
        self._daemon = daemon
        self._tell = tell
        self._lock = threading.Lock()
        self._waits = True
        self._ended = threading.Event()

    def __enter__(self) -> Patience:
        threading.Thread(target=self._watch, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        with self._lock:  # a telling that has begun is over
            self._waits = False

    @contextlib.contextmanager
    def hear(self, state: ChatState) -> Iterator[None]:
        """Around the drawing of an event that led to `state`."""
        with self._lock:
            # Of a lost engine the reader knows already.
            self._waits = state.phase in (Phase.SENT, Phase.WAITING) and state.engine_lost is None
            yield

    def _watch(self) -> None:
        while not self._ended.wait(ASK_EVERY_S):
            if self._waits:
                with contextlib.suppress(
                    HomeboxError, OSError
                ):  # the reader of the answer sees what is wrong
                    self._ask()

    def _ask(self) -> None:
        found = self._daemon.json("GET", "/health", timeout_s=5.0, accept=(503,))
        with self._lock:
            if self._waits and isinstance(found, dict):
                self._tell(found)
