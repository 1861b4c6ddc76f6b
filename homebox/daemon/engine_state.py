"""In which state is the engine, and where does each event lead? One table, which the supervisor walks.

What is not in the table does not move. It knows neither processes nor streams.
"""

from __future__ import annotations

from enum import StrEnum


class EngineState(StrEnum):
    STARTING = "starting"
    LOADING = "loading"
    READY = "ready"
    RESTARTING = "restarting"
    NO_DEVICE = "waiting for the GPU"  # tried again for as long as it takes
    FAILED = "failed"
    PAUSING = "pausing"  # what runs may finish, nothing new is taken
    PAUSED = "paused"  # no process; what was not finished is held
    UNLOADED = "unloaded"  # no process; the next request starts one
    STOPPED = "stopped"


class Happened(StrEnum):
    PROGRESS = "progress"  # a Loading frame
    READY = "ready"
    DIED = "died"
    NO_DEVICE = "its device is not there"
    GAVE_UP = "gave up"  # it died too often before it was ready
    PAUSED = "a pause was asked for"
    DRAINED = "what ran has finished, or its time is over"
    IDLE = "nobody has asked for long"
    WANTED = "it is wanted again"
    STOPPED = "stopped"


DORMANT = frozenset({EngineState.PAUSED, EngineState.UNLOADED})  # no process is meant to be there
CLOSED = frozenset({EngineState.FAILED, EngineState.PAUSING, EngineState.PAUSED, EngineState.STOPPED})

# A new engine after a death stays `restarting` until it is ready: what loads then is a loss, not a start.
_MOVES: dict[Happened, dict[EngineState, EngineState]] = {
    Happened.PROGRESS: {EngineState.STARTING: EngineState.LOADING},
    Happened.READY: {
        EngineState.STARTING: EngineState.READY,
        EngineState.LOADING: EngineState.READY,
        EngineState.RESTARTING: EngineState.READY,
        EngineState.NO_DEVICE: EngineState.READY,
        EngineState.FAILED: EngineState.READY,
    },
    Happened.DIED: {
        EngineState.STARTING: EngineState.RESTARTING,
        EngineState.LOADING: EngineState.RESTARTING,
        EngineState.READY: EngineState.RESTARTING,
        EngineState.NO_DEVICE: EngineState.RESTARTING,
        EngineState.PAUSING: EngineState.PAUSED,
    },
    Happened.NO_DEVICE: {
        EngineState.STARTING: EngineState.NO_DEVICE,
        EngineState.LOADING: EngineState.NO_DEVICE,
        EngineState.READY: EngineState.NO_DEVICE,
        EngineState.RESTARTING: EngineState.NO_DEVICE,
        EngineState.FAILED: EngineState.NO_DEVICE,
        EngineState.PAUSING: EngineState.PAUSED,
    },
    Happened.GAVE_UP: {EngineState.RESTARTING: EngineState.FAILED},
    Happened.PAUSED: {
        EngineState.STARTING: EngineState.PAUSED,
        EngineState.LOADING: EngineState.PAUSED,
        EngineState.READY: EngineState.PAUSING,
        EngineState.RESTARTING: EngineState.PAUSED,
        EngineState.NO_DEVICE: EngineState.PAUSED,
        EngineState.FAILED: EngineState.PAUSED,
        EngineState.UNLOADED: EngineState.PAUSED,
    },
    Happened.DRAINED: {EngineState.PAUSING: EngineState.PAUSED},
    Happened.IDLE: {EngineState.READY: EngineState.UNLOADED},
    Happened.WANTED: {
        EngineState.PAUSING: EngineState.READY,
        EngineState.PAUSED: EngineState.STARTING,
        EngineState.UNLOADED: EngineState.STARTING,
    },
    Happened.STOPPED: dict.fromkeys(EngineState, EngineState.STOPPED),
}


def after(state: EngineState, what: Happened) -> EngineState:
    """The state to which `what` leads from `state`."""
    return _MOVES[what].get(state, state)
