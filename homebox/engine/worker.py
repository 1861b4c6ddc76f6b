"""The engine's process: `python -m homebox.engine.worker FD`, started by the daemon's supervisor.

FD is one end of a socketpair that speaks `wire.frames`. One thread reads frames into a queue; the main thread runs the
engine, applies what has arrived between steps, and sleeps on the queue while there is nothing to compute. When the
socket closes the daemon is gone and so is this process, even out of the middle of a step.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import queue
import signal
import socket
import sys
import threading
import time
from pathlib import Path

import msgspec

from homebox.errors import HomeboxError
from homebox.wire import frames
from homebox.wire.frames import Abort, Fault, FromEngine, Loading, Start, Stop, Submit, ToEngine

NICE = 5  # the daemon answers first
LEAVE_S = 5.0  # how long the running step may go on after the socket closed
HELD_BYTES = 1 << 26  # kept for a daemon that does not read; with more than that the engine waits for it
CHECK_AFTER_S = 1.0  # so long idle, then the invariant of the block pool is checked once


class Outbox:
    """Frames on their way into the socket."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._held = bytearray()

    def emit(self, frame: FromEngine) -> None:
        """To be sent with the next `flush`."""
        self._held += frames.encode(frame)

    def flush(self) -> None:
        """Hand over what is held, without waiting for a daemon that does not read just now: compute goes on, and the rest
        goes out with what comes next."""
        while self._held:
            try:
                sent = self._sock.send(self._held, socket.MSG_DONTWAIT)
            except BlockingIOError:
                if len(self._held) < HELD_BYTES:
                    return
                sent = self._sock.send(self._held)
            del self._held[:sent]

    def drain(self) -> None:
        """Hand over all that is held, however long that takes."""
        self._sock.sendall(self._held)
        self._held.clear()

    def send(self, frame: FromEngine) -> None:
        self.emit(frame)
        self.drain()


class Connection(Outbox):
    """The socket as an inbox of frames as well; None in the inbox means that it closed."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock)
        self.inbox: queue.SimpleQueue[ToEngine | FromEngine | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, name="frames", daemon=True).start()

    def _read(self) -> None:
        splitter = frames.Splitter("to_engine")
        try:
            while data := self._sock.recv(1 << 18):
                for frame in splitter.feed(data):
                    self.inbox.put(frame)
        except (OSError, ValueError, msgspec.DecodeError) as error:
            # Closed is closed, however it happened; and a daemon whose frames we cannot read is as good as gone.
            print(f"homebox engine: the connection to the daemon ended: {error}", file=sys.stderr)
        self.inbox.put(None)
        time.sleep(LEAVE_S)
        os._exit(0)


def serve(connection: Connection) -> None:
    """Load what the first frame says, then run until told to stop or the socket closes."""
    connection.send(Loading("torch"))
    # Late, so that the daemon hears from us before torch has been read from disk; and before the first frame, because
    # the daemon that sends it may be starting itself.
    from homebox.engine.build import build

    start = connection.inbox.get()
    if not isinstance(start, Start):
        return
    if start.version != frames.VERSION:
        raise HomeboxError(
            f"the daemon speaks frames of version {start.version}, this engine {frames.VERSION}"
        )
    engine, ready = build(
        start, connection.emit, lambda stage, d, t: connection.send(Loading(stage, d, t)), connection.flush
    )
    connection.send(ready)
    gc.collect()
    gc.freeze()  # what is here now stays: a collection between two steps need not look at all of torch
    checked = False
    while True:
        busy = engine.step()
        if not busy:
            connection.drain()
        try:
            while True:
                # Between steps take what is there; with nothing to compute, sleep until something comes.
                frame = connection.inbox.get(
                    block=not busy, timeout=None if busy or checked else CHECK_AFTER_S
                )
                busy, checked = True, False
                if isinstance(frame, Submit):
                    engine.submit(frame)
                elif isinstance(frame, Abort):
                    engine.abort(frame.id)
                elif frame is None or isinstance(frame, Stop):
                    return
        except queue.Empty:
            if not busy and engine.idle:
                engine.scheduler.check()
                checked = True


def main() -> int:
    faulthandler.enable()
    os.nice(NICE)
    # Read by the thread library when torch is imported: a thread that waits for the others sleeps instead of spinning,
    # because on a machine that does anything else the spinner holds the core that the last one needs
    # (docs/decisions/005).
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # Ctrl-C in a terminal reaches the whole group; the daemon decides when this process ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection = Connection(socket.socket(fileno=int(sys.argv[1])))
    try:
        serve(connection)
    except (BrokenPipeError, ConnectionResetError):
        return 0
    except HomeboxError as error:
        connection.send(Fault(error.code, str(error)))
        return 1
    except Exception as error:
        # The daemon shows one line to people; the traceback goes to stderr, which is its log.
        connection.send(Fault("engine_failed", f"{type(error).__name__}: {error}"[:500]))
        raise
    return 0


if __name__ == "__main__":
    if len(sys.argv) != 2 or not Path(f"/proc/self/fd/{sys.argv[1]}").exists():
        sys.exit("homebox.engine.worker is started by `homebox serve`, not by hand")
    sys.exit(main())
