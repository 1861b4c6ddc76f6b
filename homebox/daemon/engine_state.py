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
    FAILED = "failed"
    STOPPED = "stopped"


class Happened(StrEnum):
    PROGRESS = "progress"  # a Loading frame
    READY = "ready"
    DIED = "died"
    GAVE_UP = "gave up"  # it died too often before it was ready
    STOPPED = "stopped"


# A new engine after a death stays `restarting` until it is ready: what loads then is a loss, not a start.
_MOVES: dict[Happened, dict[EngineState, EngineState]] = {
    Happened.PROGRESS: {EngineState.STARTING: EngineState.LOADING},
    Happened.READY: {state: EngineState.READY for state in EngineState if state is not EngineState.STOPPED},
    Happened.DIED: {
        EngineState.STARTING: EngineState.RESTARTING,
        EngineState.LOADING: EngineState.RESTARTING,
        EngineState.READY: EngineState.RESTARTING,
    },
    Happened.GAVE_UP: {EngineState.RESTARTING: EngineState.FAILED},
    Happened.STOPPED: dict.fromkeys(EngineState, EngineState.STOPPED),
}


def after(state: EngineState, what: Happened) -> EngineState:
    """The state to which `what` leads from `state`."""
    return _MOVES[what].get(state, state)
