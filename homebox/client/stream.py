"""What happens to one answer, in order, whatever becomes of the connection?

Yields each event with the state it leads to. A turn of a chat lives in the daemon: when the connection breaks, reading
goes on after the last event that was applied, with pauses of 1, 2 and 5 seconds, and gives up with words after a
minute. A one-shot `ask` lives as long as its connection, so there a break is the end. It draws nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING
from urllib.parse import quote

import msgspec

from homebox.client.connection import SILENCE_S, Daemon, Reply
from homebox.client.state import ChatState, ConnectionLost, apply
from homebox.errors import DaemonUnreachable, HomeboxError, Unavailable, UsageError
from homebox.wire import events
from homebox.wire.requests import AskRequest, TurnCreated, TurnRequest

if TYPE_CHECKING:  # `homebox ask` does without
    from homebox.wire.chats import ContinueRequest, RegenerateRequest

RETRY_S = (1.0, 2.0, *(5.0,) * 12)

Step = tuple[ChatState, events.Event | ConnectionLost]


def parse(line: bytes) -> events.Event:
    """One NDJSON line. Raises HomeboxError for what is not an event of our version."""
    try:
        return events.decode_event(line)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise HomeboxError(
            f"the daemon said something that this version does not understand: {error}",
            hint="homebox version compares the two.",
        ) from None


def read(reply: Reply) -> Iterator[tuple[ChatState, events.Event, bytes]]:
    """The events of one connection, with the line each came in, up to the last one of the answer.

    Raises DaemonUnreachable if the connection ends before the answer does or leaves out a piece of it."""
    state = ChatState()
    for line in reply.lines():
        event = parse(line)
        state = apply(state, event)
        if state.lost:
            raise DaemonUnreachable("a piece of the answer is missing", hint="Ask again.")
        yield state, event, line
        if state.done:
            return
    raise DaemonUnreachable(
        "the daemon ended the connection before the answer was finished",
        hint="homebox status shows whether it is back.",
    )


def ask(daemon: Daemon, request: AskRequest, *, timeout_s: float = SILENCE_S) -> Reply:
    """Send a one-shot question; closing the reply cancels it. Each wait for bytes is bounded by `timeout_s`. Raises
    the daemon's error if it is refused."""
    return daemon.open("POST", "/homebox/ask", request, timeout_s=timeout_s)


def attach(daemon: Daemon, turn: str, *, timeout_s: float = SILENCE_S) -> Reply:
    """The events of an own turn from its first on; closing the reply leaves it alone. `turn` is its id, or the
    beginning of one that is not over. Raises NotFound when the daemon does not have it, UsageError when it may be one
    of several."""
    rows = msgspec.convert(daemon.json("GET", "/homebox/streams"), dict[str, list[events.StreamRow]])[
        "streams"
    ]
    mine = [row.id for row in rows if row.mine]
    meant = [
        each for each in mine if turn and turn in (each[: len(turn)], each.rpartition("-")[2][: len(turn)])
    ]
    if len(meant) > 1 and turn not in meant:
        raise UsageError(f"{turn!r} begins {len(meant)} ids", hint="Write more of it.")
    whole = meant[0] if len(meant) == 1 else turn
    return daemon.open("GET", f"/homebox/turns/{quote(whole, safe='')}/events", timeout_s=timeout_s)


def begin(
    daemon: Daemon,
    path: str,
    request: TurnRequest | RegenerateRequest | ContinueRequest,
    *,
    on_retry: Callable[[ConnectionLost], None],
    delays: Sequence[float] = RETRY_S,
    pause: Callable[[float], object] = time.sleep,
) -> TurnCreated:
    """Begin a turn: `path` is the route, and the request has a key. Safe to repeat, since the key makes it one turn; so
    it is repeated while the daemon is away. Raises the daemon's error if it is refused, DaemonUnreachable after the
    last try."""
    for delay in (*delays, None):
        try:
            return msgspec.convert(daemon.json("POST", path, request), TurnCreated)
        except DaemonUnreachable:
            if delay is None:
                raise
            on_retry(ConnectionLost(delay))
            pause(delay)
    raise AssertionError("the last try returns or raises")


def follow(
    daemon: Daemon,
    turn: str,
    *,
    begun: ChatState | None = None,
    delays: Sequence[float] = RETRY_S,
    pause: Callable[[float], object] = time.sleep,
    opened: Callable[[Reply], object] = lambda reply: None,
) -> Iterator[Step]:
    """The events of a turn of a chat to its end, each once, across any number of broken connections and restarts of the
    daemon, which keeps what it has written. `begun` is what the reader has of an answer that goes on. `opened` is told
    every connection, for who wants to hang up.

    A break is yielded as `ConnectionLost`. Raises DaemonUnreachable when the daemon stays away for all of `delays`."""
    state = begun or ChatState()
    tries = 0
    while True:
        try:
            with daemon.open("GET", f"/homebox/turns/{turn}/events?after={state.seq}") as reply:
                opened(reply)
                for line in reply.lines():
                    before, event = state.seq, parse(line)
                    state = apply(state, event)
                    if state.seq > before:
                        tries = 0
                    yield state, event
                    if state.done:
                        return
                    if state.lost:
                        break
        except (DaemonUnreachable, Unavailable):  # away, going down, or not yet up again
            pass
        if tries == len(delays):
            raise DaemonUnreachable(
                f"the daemon did not come back within {sum(delays):g} s; what had arrived is above",
                hint="homebox status shows whether it is back.",
            )
        lost = ConnectionLost(delays[tries])
        tries += 1
        state = apply(state, lost)
        yield state, lost
        pause(lost.retry_s)


def cancel(daemon: Daemon, turn: str) -> None:
    """Stop a turn; returns once its memory is free. Raises NotFound or NotAllowed."""
    daemon.json("DELETE", f"/homebox/turns/{turn}")
