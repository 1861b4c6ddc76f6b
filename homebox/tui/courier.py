"""How does a call of the client, which waits for the daemon, become something that the screen's loop can await?

Each call has a thread of its own that dies with the process: leaving never waits for a daemon that does not answer. A
reader of a stream hands over only the newest state, so that a screen which is slower than the engine skips states and
never falls behind. It knows no widgets.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Generic, ParamSpec, TypeVar

from homebox.client import stream
from homebox.client.connection import Daemon, Reply
from homebox.client.state import ChatState
from homebox.errors import HomeboxError
from homebox.wire.events import Snapshot, decode_snapshot

RETRY_S = 2.0

P = ParamSpec("P")
T = TypeVar("T")


class _Left(Exception):
    """Nobody reads any more."""


async def in_thread(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """The result of a blocking call; what it raises is raised here."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def hand_over(result: T | None, error: BaseException | None) -> None:
        if done.done():
            return  # who waited has left
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)  # type: ignore[arg-type]

    def work() -> None:
        result, error = None, None
        try:
            result = call(*args, **kwargs)
        except Exception as raised:
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop is closed: the screen is gone
            loop.call_soon_threadsafe(hand_over, result, error)

    threading.Thread(target=work, name="call", daemon=True).start()
    return await done


class Newest(Generic[T]):
    """The values of an iterator that blocks, read in a thread: whoever iterates gets the newest and skips the rest.
    `leave` ends it at once."""

    def __init__(self, begin: Callable[[Newest[T]], Iterator[T]]) -> None:
        self._begin = begin
        self._loop = asyncio.get_running_loop()
        self._there = asyncio.Event()
        self._value: list[T] = []
        self._lock = threading.Lock()
        self._error: Exception | None = None
        self._ended = False
        self._gone = threading.Event()
        self._reply: Reply | None = None

    def opened(self, reply: Reply) -> None:
        """Told by the iterator: the connection that `leave` has to hang up."""
        self._reply = reply
        if self._gone.is_set():
            reply.hang_up()

    def pause(self, seconds: float) -> None:
        """For the iterator, between two tries."""
        if self._gone.wait(seconds):
            raise _Left

    def leave(self) -> None:
        self._gone.set()
        if self._reply:
            self._reply.hang_up()
        self._there.set()

    async def __aiter__(self) -> AsyncIterator[T]:
        threading.Thread(target=self._read, name="reader", daemon=True).start()
        while True:
            await self._there.wait()
            self._there.clear()
            if self._gone.is_set():
                return
            with self._lock:
                value, ended = self._value, self._ended
                self._value = []
            if value:
                yield value[-1]
            elif ended:
                if self._error:
                    raise self._error
                return
            if ended:
                self._there.set()  # once more, to end

    def _read(self) -> None:
        try:
            for value in self._begin(self):
                if self._gone.is_set():
                    return
                self._say(value)
        except _Left:
            return
        except Exception as error:
            self._error = error
        finally:
            self._ended = True
            self._wake()

    def _say(self, value: T) -> None:
        with self._lock:
            self._value = [value]
        self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._there.set)


def answer(daemon: Daemon, turn: str, begun: ChatState | None) -> Newest[ChatState]:
    """The states of an own turn to its end, across restarts of the daemon. Raises what `stream.follow` raises."""

    def states(reader: Newest[ChatState]) -> Iterator[ChatState]:
        followed = stream.follow(daemon, turn, begun=begun, pause=reader.pause, opened=reader.opened)
        return (state for state, _ in followed)

    return Newest(states)


def box(daemon: Daemon, interval_s: float) -> Newest[Snapshot | HomeboxError]:
    """Pictures of the box, one every `interval_s` seconds, for ever; while it does not answer, why."""

    def pictures(reader: Newest[Snapshot | HomeboxError]) -> Iterator[Snapshot | HomeboxError]:
        while True:
            try:
                with daemon.open("GET", f"/homebox/monitor?interval={interval_s:g}") as reply:
                    reader.opened(reply)
                    for line in reply.lines():
                        yield decode_snapshot(line)
            except HomeboxError as error:
                yield error
            reader.pause(RETRY_S)

    return Newest(pictures)
