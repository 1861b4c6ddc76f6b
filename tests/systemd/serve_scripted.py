"""`homebox serve` as it is, but for the engine, which is the scripted one, and for a signal that makes the event loop
stand still."""

from __future__ import annotations

import signal
import sys
import time
from functools import partial
from pathlib import Path

from homebox.cli.main import main
from homebox.daemon import engine_process, serve
from homebox.daemon.supervisor import Patience

SCRIPT = Path(__file__).parents[1] / "daemon" / "scripted_engine.py"


def stand_still(signum: int, frame: object) -> None:
    time.sleep(3600)


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, stand_still)
    # The first engine is started before the daemon, the next ones by it.
    engine_process.WORKER = (sys.executable, str(SCRIPT))
    patience = Patience(stall_s=1.0, backoff_s=(0.0,))
    serve.run = partial(serve.run, command=engine_process.WORKER, patience=patience)  # type: ignore[assignment]
    sys.argv = ["homebox", "serve"]
    main()
