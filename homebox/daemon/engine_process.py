"""How does one engine process live and die? Spawned with one end of a socketpair, it speaks frames until it is gone.

The only file that knows an engine to be a local child; the supervisor decides when one is started and what its end
means. It knows no requests. The child leaves by itself when its socket closes, so a daemon that is killed leaves
nothing behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence

import msgspec

from homebox.wire import frames

log = logging.getLogger("homebox.engine")

WORKER = (sys.executable, "-m", "homebox.engine.worker")
_KEPT_LINES = 40
_KEPT_CHARACTERS = 500
_READ_BYTES = 256 * 1024


class EngineProcess:
    """One life. `last_words` are the newest lines that the child wrote to stdout or stderr, oldest first; `ready_at`
    is when it said that it is ready, `dismissed` that its end was asked for. Times by `time.monotonic`."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer
        self.last_words: deque[str] = deque(maxlen=_KEPT_LINES)
        self.started_at = time.monotonic()
        self.ready_at: float | None = None
        self.dismissed = False
        self._listening = asyncio.create_task(self._listen(), name="engine-output")

    @classmethod
    async def spawn(cls, command: Sequence[str]) -> EngineProcess:
        """Start `command FD`. Raises OSError where the program cannot be run."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                # A process group of its own: Ctrl-C in the daemon's terminal drains, it does not kill the engine.
                process = await asyncio.create_subprocess_exec(
                    *command,
                    str(theirs.fileno()),
                    pass_fds=(theirs.fileno(),),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.STDOUT,
                    process_group=0,
                )
            except BaseException:
                ours.close()
                raise
        reader, writer = await asyncio.open_connection(sock=ours, limit=_READ_BYTES)
        return cls(process, reader, writer)

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, frame: frames.ToEngine) -> None:
        """Never blocks: what a stalled engine does not read waits in memory, bounded by the queue limits."""
        if not self._writer.is_closing():
            self._writer.write(frames.encode(frame))

    async def frames(self) -> AsyncIterator[frames.FromEngine]:
        """Everything it says, until it closes its end. A frame that cannot be read is an end, too."""
        splitter = frames.Splitter("from_engine")
        try:
            while data := await self._reader.read(_READ_BYTES):
                for frame in splitter.feed(data):
                    yield frame  # type: ignore[misc]  # the splitter was told the direction
        except OSError as error:
            self.last_words.append(f"its socket broke: {error}")
        except (ValueError, msgspec.DecodeError) as error:
            self.last_words.append(f"it sent a frame that cannot be read: {error}")

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGKILL)

    async def dismiss(self, within_s: float) -> None:
        """Ask it to leave, and end it after so long. One that still loads has nothing to finish, and would hear us only
        when it has loaded: it is ended at once."""
        self.dismissed = True
        self.send(frames.Stop())
        if self.ready_at is None or not within_s or not await self.left(within_s):
            self.kill()

    async def gone(self) -> int:
        """Close our end, end the process if it is still there, and return its exit status (negative: a signal)."""
        self.kill()  # first: what it has not read would be waited for otherwise
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()
        status = await self._process.wait()
        # A grandchild may still hold the pipe: its words are not waited for.
        await asyncio.wait([self._listening], timeout=1.0)
        self._listening.cancel()
        return status

    async def left(self, within_s: float) -> bool:
        """True once the child has ended by itself, False if it had not after `within_s` seconds."""
        try:
            await asyncio.wait_for(self._process.wait(), within_s)
        except TimeoutError:
            return False
        return True

    async def _listen(self) -> None:
        assert self._process.stdout is not None
        rest = b""
        while data := await self._process.stdout.read(4096):
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                self._heard(line)
            rest = rest[-_KEPT_CHARACTERS:]
        self._heard(rest)

    def _heard(self, line: bytes) -> None:
        if text := line.decode("utf-8", "replace").strip()[:_KEPT_CHARACTERS]:
            self.last_words.append(text)
            log.info("engine %d: %s", self.pid, text)
