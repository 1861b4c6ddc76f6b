"""How do large texts become tokens without holding up the daemon?

One child process (`homebox.text.worker`), started with the first large text and kept; requests take turns. One that
takes too long, or whose client leaves, is killed with the child, and the next request gets a new one. It knows no
people and no engine.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from pathlib import Path

import msgspec

from homebox.errors import HomeboxError, InvalidRequest, from_dict
from homebox.text.join import Computed
from homebox.text.worker import HEADER, Encode, Failed, Made, Render, frame

log = logging.getLogger("homebox.daemon")

WITHIN_S = 20.0
_decode = msgspec.msgpack.Decoder(Made | Failed).decode


class TextProcess:
    """`within_s` bounds each request, in seconds."""

    def __init__(self, model_dir: Path, within_s: float = WITHIN_S) -> None:
        self._command = (sys.executable, "-m", "homebox.text.worker", str(model_dir))
        self._within_s = within_s
        self._turn = asyncio.Lock()
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    async def render(
        self, messages: list[dict[str, str]], *, continue_last: bool, computed: Computed | None = None
    ) -> list[int]:
        """As `Tokenizer.render`. Raises InvalidRequest, also for what takes too long."""
        return await self._ask(Render(messages, continue_last, computed))

    async def encode(self, text: str) -> list[int]:
        """As `Tokenizer.encode`. Raises InvalidRequest, also for what takes too long."""
        return await self._ask(Encode(text))

    async def close(self) -> None:
        """End the child, whatever it does."""
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def _ask(self, asked: Render | Encode) -> list[int]:
        try:
            sent = frame(asked)
        except UnicodeEncodeError:
            raise InvalidRequest("the text holds half of a surrogate pair, which is no character") from None
        async with self._turn:
            try:
                answer = await asyncio.wait_for(self._exchange(sent), self._within_s)
            except TimeoutError:
                await self.close()
                log.warning("turning a text into tokens took more than %g s", self._within_s)
                raise InvalidRequest(
                    f"turning this text into tokens took more than {self._within_s:g} s",
                    hint="Send less of it, or use another model: this one's template or tokeniser is slow.",
                ) from None
            except (EOFError, ConnectionError):
                status = await self._process.wait() if self._process else None
                await self.close()
                log.warning("the process that makes tokens of large texts ended: status %s", status)
                raise InvalidRequest(
                    "this text could not be turned into tokens: what does it broke down",
                    hint="Send less of it; the daemon's log says more.",
                ) from None
            except asyncio.CancelledError:  # the client left, and what is under way is for nobody
                await self.close()
                raise
        if isinstance(answer, Failed):
            raise from_dict(answer.error)
        return answer.tokens

    async def _exchange(self, sent: bytes) -> Made | Failed:
        process = self._process or await self._spawn()
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(sent)
        header, _ = await asyncio.gather(process.stdout.readexactly(HEADER.size), process.stdin.drain())
        return _decode(await process.stdout.readexactly(*HEADER.unpack(header)))

    async def _spawn(self) -> asyncio.subprocess.Process:
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                process_group=0,
            )
        except OSError as error:
            raise HomeboxError(f"no process for large texts can be started: {error}") from None
        return self._process
