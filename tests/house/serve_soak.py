"""A whole daemon as a process of its own, with little KV memory and a short memory for stories: STATE SOCKET MODEL.
Says its TCP port once it listens.

Stories are kept for ten minutes in earnest, so in a run of ten minutes memory would rightly grow to its end.
"""

from __future__ import annotations

import asyncio
import sys
from functools import partial

from homebox.config import Settings
from homebox.daemon import app, logs
from homebox.daemon.serve import run
from homebox.daemon.turnbook import TurnBook

KEPT_S = 20.0

if __name__ == "__main__":
    state, socket, model = sys.argv[1:]
    logs.configure("json")
    app.TurnBook = partial(TurnBook, kept_s=KEPT_S)  # type: ignore[misc,assignment]
    settings = Settings(
        state_dir=state,
        socket=socket,
        listen="127.0.0.1:0",
        model=model,
        kv_memory="32MiB",
        max_running=8,
        queue_per_person=4,
    )
    asyncio.run(run(settings, ready=lambda server: print(server.addresses[0][1], flush=True)))
