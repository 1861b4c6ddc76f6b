"""What does a person see of one answer, after these events?

One pure function, `apply(state, event) -> state`, folds the daemon's events (`wire/events.py`) into a frozen
`ChatState`; `ask`, the line-mode chat and every later front end draw from that state and from nothing else. Events may
arrive twice, overlap or be replayed after a cut: each is counted once, by its sequence number, and text by its
absolute offset. It knows no sockets, no clocks and no screens.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

from homebox.wire import events


class Phase(StrEnum):
    """Where an answer is in its life; one moves down this list, except that a lost or paused engine leads back to WAITING."""

    SENT = "sent"
    WAITING = "waiting"
    READING = "reading"  # prefill
    THINKING = "thinking"
    WRITING = "writing"
    DONE = "done"


class ConnectionLost(msgspec.Struct, frozen=True):
    """Made on this side of the wire: the daemon does not answer, the next try is in `retry_s` seconds."""

    retry_s: float


class ChatState(msgspec.Struct, frozen=True, kw_only=True):
    """One answer. `lost` is True when a piece of text is missing: read the turn again after `seq`."""

    phase: Phase = Phase.SENT
    seq: int = 0
    text: str = ""
    think: str = ""
    lost: bool = False
    queue: events.Queued | None = None
    prefill: events.Prefill | None = None
    stats: events.Stats | None = None
    finished: events.Finished | None = None
    engine_lost: events.EngineLost | None = None  # until the answer goes on
    paused: events.Paused | None = None  # until the answer goes on
    connection_lost: ConnectionLost | None = None  # until something arrives again
    going_down: events.GoingDown | None = None
    notice: events.Notice | None = None  # the last one

    @property
    def done(self) -> bool:
        return self.finished is not None


def apply(state: ChatState, event: events.Event | ConnectionLost) -> ChatState:
    """The state after `event`. An event that was already applied changes nothing."""
    if isinstance(event, ConnectionLost):
        return _with(state, connection_lost=event, lost=False)  # the next connection goes on after `seq`
    if state.connection_lost:
        state = _with(state, connection_lost=None)
    if state.done or 0 < event.seq <= state.seq or (state.lost and not isinstance(event, events.Resync)):
        return state
    after: ChatState = _APPLY[type(event)](state, event)
    # The number of an event that left a gap is not counted: the reader asks for it again.
    return after if after.lost else _with(after, seq=max(state.seq, event.seq))


def fresh_text(before: ChatState, after: ChatState) -> str:
    """What an append-only front end has still to write. Text that was replaced, not grown, starts on a new line."""
    if after.text.startswith(before.text):
        return after.text[len(before.text) :]
    return "\n" + after.text


def _with(state: ChatState, **changes: Any) -> ChatState:
    return msgspec.structs.replace(state, **changes)


def _text(state: ChatState, event: events.Text) -> ChatState:
    have = len(state.text)
    if event.offset > have:
        return _with(state, lost=True)
    grown = state.text + event.text[have - event.offset :]
    return _with(state, text=grown, phase=Phase.WRITING, queue=None, engine_lost=None, paused=None)


def _think(state: ChatState, event: events.Think) -> ChatState:
    return _with(
        state, think=state.think + event.text, phase=Phase.THINKING, queue=None, engine_lost=None, paused=None
    )


def _prefill(state: ChatState, event: events.Prefill) -> ChatState:
    # A replay reads the prompt again; the text that is already here keeps its phase.
    phase = state.phase if state.text or state.think else Phase.READING
    return _with(state, prefill=event, phase=phase, queue=None, paused=None)


def _started(state: ChatState, event: events.Started) -> ChatState:
    return _with(state, phase=Phase.READING if not state.text else Phase.WRITING, queue=None, paused=None)


def _finished(state: ChatState, event: events.Finished) -> ChatState:
    return _with(
        state, finished=event, phase=Phase.DONE, queue=None, engine_lost=None, paused=None, going_down=None
    )


def _resync(state: ChatState, event: events.Resync) -> ChatState:
    # A daemon that was killed may have kept a little less than the reader has seen: that is not taken away again.
    text = state.text if state.text.startswith(event.text) else event.text
    think = state.think if state.think.startswith(event.think) else event.think
    return _with(state, text=text, think=think, lost=False, phase=Phase.WRITING if text else state.phase)


_APPLY: dict[type, Any] = {
    events.Queued: lambda state, event: _with(state, queue=event, phase=Phase.WAITING),
    events.Started: _started,
    events.Prefill: _prefill,
    events.Think: _think,
    events.Text: _text,
    events.Stats: lambda state, event: _with(state, stats=event),
    events.Finished: _finished,
    events.EngineLost: lambda state, event: _with(state, engine_lost=event, phase=Phase.WAITING),
    events.Paused: lambda state, event: _with(
        state, paused=event, engine_lost=None, queue=None, phase=Phase.WAITING
    ),
    events.GoingDown: lambda state, event: _with(state, going_down=event),
    events.Resync: _resync,
    events.Notice: lambda state, event: _with(state, notice=event),
    events.Heartbeat: lambda state, event: state,
}
