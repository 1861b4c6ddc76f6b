"""How does a daemon start, listen, and leave?

Opens the Unix socket (and TCP, if it was asked for and a key exists) before the model is loaded, so that clients see
progress instead of a refusal. An engine that can never start with these settings ends the daemon with what it said,
because no restart would help. A first signal drains: what runs may finish, new requests are told to come back; a second
one leaves at once. The socket file is removed by whoever made it.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import signal
import socket
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any

from aiohttp import web

from homebox import config
from homebox.config import Settings
from homebox.daemon import lock, memory, tls
from homebox.daemon.app import application, build
from homebox.daemon.house import House
from homebox.daemon.keys import Keys
from homebox.daemon.supervisor import WORKER, Patience
from homebox.errors import UsageError

log = logging.getLogger("homebox.daemon")

SHUTDOWN_S = 3.0
BACKLOG = 128


class Server:
    """A running daemon. `start`, then `stop`, once each."""

    def __init__(self, house: House, path: Path, listen: str = "") -> None:
        self.house = house
        self.path = path
        self._listen = listen
        self.tls = tls.context(house.settings)  # `tls.context(settings, into=...)` renews it
        self._inode: int | None = None
        self._runner = web.AppRunner(
            application(house), handler_cancellation=True, access_log=None, shutdown_timeout=SHUTDOWN_S
        )
        self.addresses: list[tuple[str, int]] = []  # of TCP, as they were bound

    async def start(self) -> None:
        """Raises UsageError where an address cannot be opened."""
        await self._runner.setup()
        try:
            listener = bind(self.path)
            self._inode = self.path.stat().st_ino
            await web.SockSite(self._runner, listener).start()
            if self._listen:
                await self._open_tcp(*parse_address(self._listen))
        except BaseException:
            await self._close()
            raise
        self.house.supervisor.start()
        self.house.monitor.watch(self.house.supervisor)
        log.info(
            "listening on %s%s", self.path, "".join(f" and {host}:{port}" for host, port in self.addresses)
        )

    async def drain(self) -> None:
        """Let what runs finish, for as long as the settings say; new requests get 503."""
        await self.house.book.drain(self.house.settings.drain_s)

    async def stop(self, *, kill: bool = False) -> None:
        """End everything: streams end with what they have, the engine leaves (or is killed), the socket goes."""
        self.house.book.draining = True
        self.house.closing.set()
        await self.house.supervisor.stop(kill=kill)
        await self.house.monitor.stop()
        await self._close()

    async def _open_tcp(self, host: str, port: int) -> None:
        try:
            site = web.TCPSite(self._runner, host, port, ssl_context=self.tls)
            await site.start()
        except OSError as error:
            raise UsageError(f"cannot listen on {host}:{port}: {error.strerror or error}") from None
        self.addresses = [
            tuple(address[:2]) for address in self._runner.addresses if not isinstance(address, str)
        ]

    async def _close(self) -> None:
        await self._runner.cleanup()
        with contextlib.suppress(OSError):
            if self._inode is not None and self.path.stat().st_ino == self._inode:
                self.path.unlink()


def bind(path: Path) -> socket.socket:
    """Listen there, for owner and group alone. Raises UsageError if somebody is there, or the place is impossible."""
    try:
        path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        with _alone_in(path.parent):
            _clear(path)
            return _listen(path)
    except OSError as error:
        raise UsageError(
            f"cannot open the socket {path}: {error.strerror or error}",
            hint="Name another one with --socket.",
        ) from None


@contextlib.contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Two daemons that start at once look at the place one after the other: the second finds the first listening."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _listen(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o117)
    try:
        listener.bind(str(path))
        listener.listen(BACKLOG)
    except BaseException:
        listener.close()
        raise
    finally:
        os.umask(before)
    return listener


def _clear(path: Path) -> None:
    """Remove a socket file that a dead daemon left behind; never one that somebody listens on."""
    if not path.exists() and not path.is_symlink():
        return
    if not path.is_socket():
        raise UsageError(f"{path} exists and is not a socket", hint="Name another one with --socket.")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(2.0)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
        except FileNotFoundError:
            return
        except TimeoutError:
            pass  # a listener so busy that it does not accept is a listener
    raise UsageError(
        f"another daemon is listening on {path}",
        hint="homebox status asks it; --socket starts one elsewhere.",
    )


def parse_address(text: str) -> tuple[str, int]:
    """`HOST:PORT`, `[::1]:PORT`. Raises UsageError."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdigit() or int(port) > 65535:
        raise UsageError(
            f"{text!r} is not an address", hint='Write it like "127.0.0.1:11480" or "0.0.0.0:11480".'
        )
    return host, int(port)


def check(settings: Settings, state: Path) -> None:
    """What can be known before anything is open. Raises UsageError or NotAllowed for a state directory that cannot be
    written, an address that cannot be, or TCP without a key."""
    config.check_state_dir(state)
    config.check_socket_path(config.socket_path(settings))
    tls.check(settings)
    if not settings.listen:
        return
    parse_address(settings.listen)
    if not Keys(state).all():
        raise UsageError(
            f"nobody has a key, so {settings.listen} stays closed",
            hint="Make one first: homebox people keys new NAME",
        )


async def _first_of(*ways: Coroutine[Any, Any, object]) -> None:
    """Until one of them has ended; the others are given up."""
    tasks = [asyncio.create_task(way) for way in ways]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()


async def run(
    settings: Settings,
    *,
    command: Sequence[str] = WORKER,
    patience: Patience | None = None,
    ready: Callable[[Server], None] = lambda server: None,
) -> None:
    """Serve until a signal ends it. Raises UsageError, NotAllowed, ModelNotFound or BadFile before anything is open,
    and what the engine said when it will never run with these settings or this model."""
    memory.give_back()
    state = config.state_dir(settings)
    check(settings, state)
    holding = lock.hold(state)
    house = build(settings, state, command=command, patience=patience)
    server = Server(house, config.socket_path(settings), settings.listen)
    asked, at_once = asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        (at_once if asked.is_set() else asked).set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    await server.start()
    ready(server)
    try:
        await _first_of(asked.wait(), house.supervisor.hopeless.wait())
        if house.supervisor.refused and not asked.is_set():
            raise house.supervisor.refused
        log.info("going down: %d live", len(house.book.live))
        await _first_of(server.drain(), at_once.wait())
    finally:
        await server.stop(kill=at_once.is_set())
        holding.release()
    log.info("gone")
