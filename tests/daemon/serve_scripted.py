"""`homebox serve` with the scripted engine, as a process of its own: STATE SOCKET DRAIN_S [quick].

`quick` gives up on engines soon. Says `ready` once it listens, and at its end which heavy modules it has imported,
which should be none.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from homebox.config import Settings
from homebox.daemon import logs
from homebox.daemon.serve import Server, run
from homebox.daemon.supervisor import Patience

SCRIPT = (sys.executable, str(Path(__file__).with_name("scripted_engine.py")))


def ready(server: Server) -> None:
    print("ready", flush=True)


if __name__ == "__main__":
    state, socket, drain_s, *quick = sys.argv[1:]
    patience = Patience(backoff_s=(0.0,), tries=3, retry_failed_s=60.0) if quick else None
    logs.configure("json")
    settings = Settings(state_dir=state, socket=socket, model="tiny", drain_s=float(drain_s))
    asyncio.run(run(settings, command=SCRIPT, patience=patience, ready=ready))
    print(
        "heavy:",
        sorted({"torch", "transformers", "numpy", "textual", "rich", "pip"} & set(sys.modules)),
        flush=True,
    )
