"""Which models does this box serve, and what is known of them?

It draws nothing.
"""

from __future__ import annotations

import msgspec

from homebox.client.connection import Daemon

_AWAKE = ("ready", "draining")


class ModelRow(msgspec.Struct, frozen=True):
    """`context` in tokens; `loaded`: it answers without being loaded first. None: not known."""

    name: str
    context: int | None = None
    loaded: bool | None = None


def served(daemon: Daemon) -> list[ModelRow]:
    """Those that this person may use. Raises DaemonUnreachable."""
    listed = daemon.json("GET", "/v1/models")["data"]
    health = daemon.json("GET", "/health", accept=(503,))
    state, model = health.get("state"), health.get("model")
    return [
        ModelRow(
            each["id"],
            each.get("max_model_len"),
            state in _AWAKE if each["id"] == model else None,
        )
        for each in listed
    ]
