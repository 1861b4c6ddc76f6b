"""How does a daemon start, listen, and leave?

Opens the Unix socket (and TCP, if it was asked for and a key exists) before the model is loaded, so that clients see
progress instead of a refusal. An engine that can never start with these settings ends the daemon with what it said,
because no restart would help. A first signal drains: what runs may finish, new requests are told to come back; a second
one leaves at once, a hang-up reads the configuration again. The socket file is removed by whoever made it: a socket
that systemd handed over is systemd's, and stays.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from aiohttp import web

from homebox import config
from homebox.config import Settings
from homebox.daemon import lock, memory, tls
from homebox.daemon.app import application, build
from homebox.daemon.engine_process import WORKER, EngineProcess
from homebox.daemon.engine_state import DORMANT
from homebox.daemon.house import House
from homebox.daemon.keys import Keys
from homebox.daemon.listen import bind, handed, parse_address
from homebox.daemon.notify import Notifier
from homebox.daemon.pulse import Pulse
from homebox.daemon.reload import reload_on
from homebox.daemon.supervisor import Patience
from homebox.errors import HomeboxError, UsageError

log = logging.getLogger("homebox.daemon")

SHUTDOWN_S = 3.0
IDLE_S = (
    60.0  # a connection on which no whole request has come for so long is closed: strangers may open many
)


class Server:
    """A running daemon. `start`, then `stop`, once each."""

    def __init__(
        self, house: House, path: Path, listen: str = "", *, given: socket.socket | None = None
    ) -> None:
        """`given`: a listening socket that somebody else made and keeps, instead of one of our own at `path`."""
        self.house = house
        self.path = path
        self._listen = listen
        self._given = given
        self._tcp: web.TCPSite | None = None
        self.tls = tls.context(house.settings)  # `tls.context(settings, into=...)` renews it
        self._inode: int | None = None
        self._runner = web.AppRunner(
            application(house),
            handler_cancellation=True,
            access_log=None,
            shutdown_timeout=SHUTDOWN_S,
            keepalive_timeout=IDLE_S,
        )
        self.addresses: list[tuple[str, int]] = []  # of TCP, as they were bound

    async def start(self) -> None:
        """Raises UsageError where an address cannot be opened."""
        await self._runner.setup()
        try:
            listener = self._given
            if listener is None:
                listener = bind(self.path)
                self._inode = self.path.stat().st_ino
            await web.SockSite(self._runner, listener).start()
            if self._listen:
                await self._open_tcp(*parse_address(self._listen))
        except BaseException:
            await self._close()
            raise
        self.house.power.start()
        self.house.usage.start()
        self.house.warden.start()
        self.house.monitor.watch(self.house.supervisor, self.house.book)
        log.info(
            "listening on %s%s", self.path, "".join(f" and {host}:{port}" for host, port in self.addresses)
        )

    async def listen_at(self, address: str) -> None:
        """Have TCP open there and nowhere else from now on, `""` for nowhere. Answers that are under way at the old
        address go on to their end. Raises UsageError, and then it is open where it was."""
        if address == self._listen:
            return
        before = self._listen
        await self._close_tcp()  # first: the same port on another address could not be opened beside it
        try:
            if address:
                await self._open_tcp(*parse_address(address))
        except UsageError:
            if before:
                await self._open_tcp(*parse_address(before))
            raise
        self._listen = address

    async def drain(self) -> None:
        """Let what runs finish, for as long as the settings say; new requests get 503."""
        held = self.house.supervisor.state in DORMANT  # nothing can finish without an engine
        await self.house.book.drain(0.0 if held else self.house.settings.drain_s)

    async def stop(self, *, kill: bool = False) -> None:
        """End everything: streams end with what they have, the engine leaves (or is killed), the socket goes."""
        house = self.house
        house.book.draining = True
        house.closing.set()
        for step in (
            house.power.stop,
            partial(house.supervisor.stop, kill=kill),
            house.exchange.close,
            house.monitor.stop,
            self._close,
            house.warden.stop,
            house.usage.stop,
            partial(asyncio.to_thread, house.audit.close),
            house.chats.close,
            house.prompts.close,
        ):
            try:
                await step()
            except Exception:  # a defect in one part must not cost the others what they still have to write
                log.exception("one part could not be stopped")

    async def _open_tcp(self, host: str, port: int) -> None:
        site = web.TCPSite(self._runner, host, port, ssl_context=self.tls)
        try:
            await site.start()
        except OSError as error:
            await site.stop()
            raise UsageError(f"cannot listen on {host}:{port}: {error.strerror or error}") from None
        self._tcp = site
        self.addresses = [
            tuple(address[:2]) for address in self._runner.addresses if not isinstance(address, str)
        ]

    async def _close_tcp(self) -> None:
        if self._tcp is None:
            return
        await self._tcp.stop()
        self._tcp, self.addresses = None, []
        for connection in self._runner.server.connections if self._runner.server else ():
            at = connection.transport.get_extra_info("sockname") if connection.transport else None
            if isinstance(at, tuple):  # TCP: a connection that is kept alive would be a door that stayed open
                connection.close()

    async def _close(self) -> None:
        await self._runner.cleanup()
        with contextlib.suppress(OSError):
            if self._inode is not None and self.path.stat().st_ino == self._inode:
                self.path.unlink()


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


def _signals(*, reloads: bool) -> tuple[asyncio.Event, asyncio.Event, asyncio.Event]:
    """Set from now on: by a first signal that ends us, by a second one, by a hang-up where it `reloads`."""
    asked, at_once, hung_up = asyncio.Event(), asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        (at_once if asked.is_set() else asked).set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    loop.add_signal_handler(signal.SIGHUP, hung_up.set if reloads else on_signal)
    return asked, at_once, hung_up


def _say_unreadable(house: House) -> None:
    """The box opens without them, for whoever is to mend it; until then people are refused, and the log says why."""
    for look in (house.people.records, house.keys.all):
        try:
            look()
        except HomeboxError as error:
            log.error("people are refused until this is mended: %s", error)


async def run(
    settings: Settings,
    *,
    command: Sequence[str] = WORKER,
    early: EngineProcess | None = None,
    patience: Patience | None = None,
    ready: Callable[[Server], None] = lambda server: None,
    reread: Callable[[], Settings] | None = None,
) -> None:
    """Serve until a signal ends it. A hang-up applies what `reread` returns; without it, or where it means that our
    terminal is gone, it ends us like the others. `early`: the first engine's process, if it was started before. Raises UsageError, NotAllowed, ModelNotFound or BadFile before anything
    is open, and what the engine said when it will never run with these settings or this model."""
    notifier, given = Notifier.from_environment(), handed()
    memory.give_back()
    state = config.state_dir(settings)
    # First of all: a hang-up that comes while the parts are put together would end the process.
    asked, at_once, hung_up = _signals(reloads=reread is not None and not (sys.stdin and sys.stdin.isatty()))
    check(settings, state)
    holding = lock.hold(state)
    house = build(settings, state, command=command, early=early, patience=patience)
    _say_unreadable(house)
    path = Path(given.getsockname()) if given else config.socket_path(settings)
    if given and settings.socket not in ("", str(path)):
        log.warning("socket = %s is not used: systemd listens at %s for us", settings.socket, path)
    server, pulse = Server(house, path, settings.listen, given=given), Pulse(house, notifier)

    def checked() -> Settings:
        assert reread is not None
        found = reread()
        check(found, state)
        return found

    await server.start()
    ready(server)
    pulse.start()
    try:
        await _first_of(
            asked.wait(), house.supervisor.hopeless.wait(), reload_on(hung_up, server, checked, pulse)
        )
        if house.supervisor.refused and not asked.is_set():
            raise house.supervisor.refused
        log.info("going down: %d live", len(house.book.live))
        pulse.going_down()
        await _first_of(server.drain(), at_once.wait())
    finally:
        await server.stop(kill=at_once.is_set())
        await pulse.stop()
        holding.release()
    log.info("gone")
