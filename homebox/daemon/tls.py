"""Which certificate does the daemon show on TCP, and can it be used?

Everything that makes a certificate useless is found before anything listens, by shaking hands with ourselves in
memory: files that cannot be read, a key that belongs to another certificate, a chain that no client would take, a date
that has passed. `context` called again with the context in use makes it show a renewed certificate: the next connection
gets it, open ones go on. It knows no sockets and no routes.
"""

from __future__ import annotations

import logging
import ssl
import stat
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from homebox.config import Settings
from homebox.errors import HomeboxError, NotAllowed, UsageError

log = logging.getLogger("homebox.daemon")

SOON_S = 14 * 86400  # a certificate that ends so soon should have been renewed by now
_NO_CHECK_TIME = 0x200000  # OpenSSL's X509_V_FLAG_NO_CHECK_TIME: dates are compared here, in words
_RENEW = "Renew it (homebox tls new makes a self-signed one), then restart or reload the daemon."


@dataclass(frozen=True)
class Certificate:
    """What the certificate says of itself. Times in unix seconds; `names` are host names and addresses."""

    valid_from: float
    valid_until: float
    names: tuple[str, ...]


def context(settings: Settings, into: ssl.SSLContext | None = None) -> ssl.SSLContext | None:
    """What TLS needs, or None where no certificate is set. With `into`, that context shows the certificate that the
    files hold now. What will soon be wrong is said in the log. Raises as `check`; `into` is unchanged then."""
    checked = check(settings)
    if checked is None:
        return None
    fresh, found = checked
    _warn(Path(settings.tls_key), found)
    if into is None:
        return fresh
    # Loading the new files into the old context would leave a certificate of another key type in use beside them.
    into.sni_callback = partial(_shown_instead, fresh)
    return into


def _shown_instead(
    fresh: ssl.SSLContext, connection: ssl.SSLObject, name: str, first: ssl.SSLContext
) -> None:
    """OpenSSL calls this for every greeting, with or without a name in it."""
    connection.context = fresh


def check(settings: Settings) -> tuple[ssl.SSLContext, Certificate] | None:
    """A certificate that can be used today, None where none is set. Raises UsageError or NotAllowed."""
    if not settings.tls_cert:
        return None
    checked = examine(Path(settings.tls_cert), Path(settings.tls_key))
    _check_dates(Path(settings.tls_cert), checked[1])
    return checked


def examine(cert: Path, key: Path) -> tuple[ssl.SSLContext, Certificate]:
    """A context that shows this certificate, and what stands in it, whatever its dates. Raises UsageError or
    NotAllowed."""
    for setting, path in (("tls_cert", cert), ("tls_key", key)):
        _check_readable(setting, path)
    made = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    made.set_alpn_protocols(["http/1.1"])
    _load(made, cert, key)
    try:
        shown = _shake_hands(made, cert)
    except ssl.SSLError as error:
        raise UsageError(
            f"no client would take the certificate {cert}: {_reason(error)}",
            hint="tls_cert holds the server's certificate first, then the ones that lead to its authority.",
        ) from None
    return made, shown


def _check_readable(setting: str, path: Path) -> None:
    try:
        with path.open("rb"):
            return
    except OSError as error:
        kind: type[HomeboxError] = NotAllowed if isinstance(error, PermissionError) else UsageError
        raise kind(
            f"{setting} is {path}, which cannot be read: {error.strerror or error}",
            hint="It is a PEM file that the daemon's own account can read; systemd's LoadCredential= gives it one.",
        ) from None


def _load(made: ssl.SSLContext, cert: Path, key: Path) -> None:
    def ask() -> str:
        raise UsageError(
            f"the key {key} is encrypted, and nobody is there to type its passphrase",
            hint="openssl pkey -in KEY -out PLAIN writes it without one; let only the daemon's account read it.",
        )

    try:
        made.load_cert_chain(cert, key, password=ask)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise UsageError(
                f"the key {key} does not belong to the certificate {cert}",
                hint="tls_key is the private key that the certificate was made for.",
            ) from None
        raise UsageError(
            f"tls_cert {cert} and tls_key {key} cannot be used: {_reason(error)}",
            hint="Both are PEM files: the certificate (with its chain) in one, its private key in the other.",
        ) from None


def _shake_hands(server_side: ssl.SSLContext, cert: Path) -> Certificate:
    """Speak to ourselves as a client that trusts exactly this certificate. Raises ssl.SSLError."""
    client_side = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client_side.check_hostname = False
    client_side.load_verify_locations(cert)
    client_side.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | _NO_CHECK_TIME
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_side.wrap_bio(to_client, to_server)
    server = server_side.wrap_bio(to_server, to_client, server_side=True)
    missing = [client, server]
    for _ in range(8):  # each side has at most four flights
        for side in list(missing):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            missing.remove(side)
    shown: dict[str, Any] = client.getpeercert() or {}
    return Certificate(
        valid_from=float(ssl.cert_time_to_seconds(shown["notBefore"])),
        valid_until=float(ssl.cert_time_to_seconds(shown["notAfter"])),
        names=tuple(
            value for kind, value in shown.get("subjectAltName", ()) if kind in ("DNS", "IP Address")
        ),
    )


def _check_dates(cert: Path, found: Certificate) -> None:
    now = time.time()
    if now > found.valid_until:
        raise UsageError(f"the certificate {cert} has expired on {_day(found.valid_until)}", hint=_RENEW)
    if now < found.valid_from:
        raise UsageError(
            f"the certificate {cert} is valid from {_day(found.valid_from)}, and today is {_day(now)}",
            hint="Is the clock of this machine right?",
        )


def _warn(key: Path, found: Certificate) -> None:
    left_s = found.valid_until - time.time()
    if left_s < SOON_S:
        log.warning(
            "the certificate expires in %.0f days, on %s: %s",
            left_s // 86400,
            _day(found.valid_until),
            _RENEW,
        )
    if not found.names:
        log.warning("the certificate names no host (subjectAltName): no client will take it")
    mode = stat.S_IMODE(key.stat().st_mode)
    if mode & stat.S_IRWXO:
        log.warning("everybody on this machine can read the key %s (mode %04o): chmod o= %s", key, mode, key)


def _day(at: float) -> str:
    return time.strftime("%Y-%m-%d", time.localtime(at))


def _reason(error: ssl.SSLError) -> str:
    """OpenSSL's words, lower case: `no start line`, `ee key too small`, `unsuitable certificate purpose`."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    return error.reason.replace("_", " ").lower() if error.reason else "not in PEM form"
