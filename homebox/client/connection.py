"""How does one request reach the daemon, and what does each way of not reaching it mean?

HTTP/1.1 through the standard library's http.client, over the Unix socket or, with HOMEBOX_URL and HOMEBOX_KEY, over
TCP (and HOMEBOX_CA, over TLS): an `ask` starts in milliseconds because nothing bigger is imported. A `Daemon` opens one connection a request, so
that it may be used from several threads and a stream can be cut off without touching its neighbours. Everything that
can go wrong becomes an error of `homebox.errors` whose hint is the next step. It knows no commands and no screens.
"""

from __future__ import annotations

import contextlib
import getpass
import grp
import http.client
import os
import pwd
import re
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

import msgspec

from homebox import errors
from homebox.client import settings, trust
from homebox.config import SYSTEM_SOCKET, find_socket
from homebox.errors import DaemonUnreachable, HomeboxError, NotAllowed, UsageError

CONNECT_S = 5.0
ANSWER_S = 30.0  # for a plain request; the daemon answers these from memory
SILENCE_S = 30.0  # a stream says at least `heartbeat` every 5 s
_MAX_PATH_BYTES = 107  # sockaddr_un
_PERSON = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]{0,63}")

_BY_STATUS: dict[int, type[HomeboxError]] = {
    400: errors.InvalidRequest,
    401: errors.Unauthenticated,
    403: errors.NotAllowed,
    404: errors.NotFound,
    429: errors.Busy,
    503: errors.Unavailable,
    504: errors.TimedOut,
}


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


class Reply:
    """One answer of the daemon as it arrives. Close it (or leave its `with`) to hang up."""

    def __init__(self, connection: http.client.HTTPConnection) -> None:
        self._connection = connection
        self._socket: socket.socket = (
            connection.sock
        )  # http.client forgets it where the answer ends the connection
        self._response = connection.getresponse()
        self.status = self._response.status

    def read(self) -> bytes:
        """The whole body. Raises DaemonUnreachable if it breaks off."""
        try:
            return self._response.read()
        except (OSError, http.client.HTTPException) as error:
            raise _broke_off(error) from None

    def lines(self) -> Iterator[bytes]:
        """NDJSON lines without their newline; ends where the daemon ended. Raises DaemonUnreachable if it breaks off."""
        pending = bytearray()
        try:
            while piece := self._response.read1(65536):
                pending += piece
                *whole, rest = pending.split(b"\n")
                pending = bytearray(rest)
                for line in whole:
                    if line.strip():
                        yield bytes(line)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise _broke_off(error) from None
        if pending.strip():
            yield bytes(pending)

    def hang_up(self) -> None:
        """End a `read` or `lines` that another thread or a signal handler finds waiting; what has arrived is kept."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._response.close()
        self._connection.close()

    def __enter__(self) -> Reply:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Daemon:
    """Where the daemon is and as whom to speak. Holds no connection."""

    def __init__(
        self,
        *,
        socket_path: Path | None = None,
        url: str | None = None,
        key: str | None = None,
        authority: str | None = None,
        speak_as: str | None = None,
        url_from: str = "HOMEBOX_URL",
    ) -> None:
        """`url` wins over `socket_path`; with neither, the socket is looked for as `config.find_socket` says.
        `authority` is a file with the certificates that an https:// one is checked against.

        `url_from` is where the URL was said, in words.

        Raises UsageError for a URL, a name or a file that cannot be meant."""
        self._url_from = url_from
        self._url = _checked_url(url, url_from) if url else None
        self._authority = authority
        self._tls = trust.context(authority) if self._url and self._url.scheme == "https" else None
        self.socket_path = socket_path or find_socket()
        self._headers = {"Accept": "application/json, application/x-ndjson", "User-Agent": "homebox"}
        if key:
            if not key.isascii() or not key.isprintable():
                raise UsageError(
                    "the key holds characters that no key has", hint="Copy the key again, whole."
                )
            self._headers["Authorization"] = f"Bearer {key}"
        if speak_as is not None:
            if not _PERSON.fullmatch(speak_as):
                raise UsageError(f"{speak_as!r} is not a person's name")
            self._headers["X-Homebox-As"] = speak_as

    @property
    def remote(self) -> bool:
        """Whether it is spoken to over TCP, and so is perhaps of another machine."""
        return self._url is not None

    @property
    def place(self) -> str:
        """Where this daemon is, in words."""
        return settings.shown(self._url.geturl()) if self._url else str(self.socket_path)

    def open(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        timeout_s: float = SILENCE_S,
        connect_s: float = CONNECT_S,
    ) -> Reply:
        """Send one request and return its answer with the body still to be read. `timeout_s` bounds each wait for
        bytes. Raises the daemon's own error for any status from 400 on."""
        reply = self._send(method, path, body, timeout_s, connect_s)
        if reply.status >= 400:
            with reply:
                raise _error_of(reply, self.place)
        return reply

    def json(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        timeout_s: float = ANSWER_S,
        accept: tuple[int, ...] = (),
    ) -> Any:
        """One request whose answer is one JSON value. Statuses in `accept` are answers too, not errors."""
        with self._send(method, path, body, timeout_s, min(CONNECT_S, timeout_s)) as reply:
            if reply.status >= 400 and reply.status not in accept:
                raise _error_of(reply, self.place)
            raw = reply.read()
        try:
            return msgspec.json.decode(raw) if raw else None
        except msgspec.DecodeError:
            raise _not_homebox(self.place) from None

    def _send(self, method: str, path: str, body: Any, timeout_s: float, connect_s: float) -> Reply:
        connection = self._connection(connect_s)
        headers = dict(self._headers)
        encoded = None
        if body is not None:
            try:
                encoded = msgspec.json.encode(body)
            except UnicodeEncodeError:  # bytes of a command line or a file name that are no text
                raise UsageError("what is to be sent is not UTF-8 text") from None
            headers["Content-Type"] = "application/json"
        try:
            try:
                connection.connect()
            except OSError as error:
                raise self._unreachable(error) from None
            connection.sock.settimeout(timeout_s)
            prefix = self._url.path.rstrip("/") if self._url else ""
            # A daemon that refuses early may close before the whole body is sent; its answer says why.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                connection.request(method, prefix + path, encoded, headers)
            return Reply(connection)
        except TimeoutError:
            connection.close()
            raise DaemonUnreachable(
                f"the daemon at {self.place} did not answer within {timeout_s:g} s",
                hint="homebox doctor shows what it is doing.",
            ) from None
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise self._unanswered(error, connect_s) from None
        except BaseException:
            connection.close()
            raise

    def _connection(self, timeout: float) -> http.client.HTTPConnection:
        if self._url is None:
            return _UnixConnection(self.socket_path, timeout)
        host, port = self._url.hostname or "", self._url.port
        if self._tls:
            return http.client.HTTPSConnection(host, port, timeout=timeout, context=self._tls)
        return http.client.HTTPConnection(host, port, timeout=timeout)

    def _unanswered(self, error: Exception, within_s: float) -> HomeboxError:
        """Connected, and then no answer: it may be that the other side waited for TLS."""
        url = self._url
        if url and url.scheme == "http" and trust.speaks_tls(url.hostname or "", url.port or 80, within_s):
            return DaemonUnreachable(
                f"the daemon at {self.place} speaks TLS",
                hint=f"Set HOMEBOX_URL to {settings.shown(url._replace(scheme='https').geturl())}",
            )
        return _broke_off(error)

    def _unreachable(self, error: OSError) -> HomeboxError:
        if self._url is not None and isinstance(error, ssl.SSLError):
            return trust.explain(error, self.place, self._url.hostname or "", self._authority)
        if self._url is not None:
            return DaemonUnreachable(
                f"nobody answers at {self.place}: {error.strerror or error}",
                hint=f"Check {self._url_from}, and that the daemon there was started with --listen.",
            )
        if isinstance(error, PermissionError):
            return NotAllowed(
                f"this account may not open {self.socket_path}", hint=_how_to_join(self.socket_path)
            )
        if len(os.fsencode(self.socket_path)) > _MAX_PATH_BYTES:
            return UsageError(
                f"the socket path is {len(os.fsencode(self.socket_path))} bytes long; the limit is {_MAX_PATH_BYTES}",
                hint="Set HOMEBOX_SOCKET to a shorter path.",
            )
        of_machine = self.socket_path == SYSTEM_SOCKET
        start = "sudo homebox service start" if of_machine else "homebox serve"
        if isinstance(error, FileNotFoundError):
            found = f"no daemon is running: there is no socket at {self.socket_path}"
        else:
            found = f"no daemon answers on {self.socket_path}: {error.strerror or error}"
        why = "   (why it is down: homebox service status)" if of_machine else ""
        return DaemonUnreachable(found, hint=f"Start it with: {start}{why}")


def from_environment(*, speak_as: str | None = None) -> Daemon:
    """The daemon that HOMEBOX_URL (with HOMEBOX_KEY and HOMEBOX_CA) or HOMEBOX_SOCKET names, or the person's own
    configuration file, else the one of this machine."""
    found = settings.load()
    return Daemon(
        url=found.url,
        key=found.key,
        authority=found.ca,
        socket_path=found.socket,
        speak_as=speak_as,
        url_from=found.origin.get("url", "HOMEBOX_URL"),
    )


def own_name() -> str:
    """The name by which the daemon of this machine knows this account; nothing if another is spoken with, where the
    key says who we are."""
    if settings.load().url:
        return ""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"uid-{os.getuid()}"


def _checked_url(url: str, said_in: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and parts.hostname and (parts.port is None or parts.port > 0)
    except ValueError:
        good = False
    if not good:
        raise UsageError(
            f"{said_in} is {settings.shown(url)!r}", hint="Write it like http://homebox.local:11480"
        )
    return parts


def _how_to_join(path: Path) -> str:
    """Which group opens the socket, and how one gets into it. The group of one account, root above all, is no door:
    whoever joins it may read what belongs to that account."""
    try:
        person = getpass.getuser()
    except (OSError, KeyError):
        person = str(os.getuid())
    group = "homebox"  # where the socket's directory is closed to us, its group cannot be read
    try:
        found = path.stat()
        group = grp.getgrgid(found.st_gid).gr_name
        owner = pwd.getpwuid(found.st_uid)
        if found.st_gid == owner.pw_gid and group != "homebox":
            return (
                f"It is {owner.pw_name}'s own daemon. For everybody here: sudo homebox service install"
                f"   (or {owner.pw_name} opens TCP, and makes a key: homebox people keys new {person})"
            )
    except (OSError, KeyError):
        pass
    return f"An administrator adds you with: sudo gpasswd -a {person} {group}   (then log in again)"


def _broke_off(error: Exception) -> DaemonUnreachable:
    said = "it said nothing for too long" if isinstance(error, TimeoutError) else "the connection broke off"
    return DaemonUnreachable(f"the daemon went away: {said}", hint="homebox status shows whether it is back.")


def _not_homebox(place: str) -> HomeboxError:
    return DaemonUnreachable(
        f"what answers at {place} is not a homebox daemon", hint="Check HOMEBOX_URL and HOMEBOX_SOCKET."
    )


def _error_of(reply: Reply, place: str) -> HomeboxError:
    try:
        data = msgspec.json.decode(reply.read())
        found = data["error"]
        error = errors.from_dict(found if isinstance(found, dict) else {"message": str(found)})
        if isinstance(error, errors.Unauthenticated):  # the daemon's hint is for who writes headers
            error.hint = (
                "Set HOMEBOX_KEY; the owner of the box makes a key with: homebox people keys new NAME"
            )
        return error
    except (msgspec.DecodeError, KeyError, TypeError, DaemonUnreachable):
        kind = _BY_STATUS.get(reply.status, HomeboxError)
        return kind(f"{place} answered with HTTP status {reply.status}")
