"""Is the box at the other end of TLS the one that we mean, and what is to be done if we cannot know?

A certificate is checked against HOMEBOX_CA (the household's authority, or the box's own self-signed certificate) or,
without it, against what this system trusts. Every way in which that fails has its words and its next step; there is no
way to go on without the check. It sends no requests.
"""

from __future__ import annotations

import ssl
from pathlib import Path

from homebox.errors import DaemonUnreachable, HomeboxError, UsageError

_NOT_YET, _EXPIRED = 9, 10  # OpenSSL: X509_V_ERR_*
_OTHER_NAME = (62, 64)  # X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH
_GET_IT = "Copy the box's certificate (tls_cert there) to this computer and set HOMEBOX_CA to that file."
# What a server that speaks plain HTTP sounds like to one who speaks TLS.
_NO_TLS = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG")


def context(authority: str | None) -> ssl.SSLContext:
    """Trust the certificates in the file `authority` and no others, or, without one, those that the system trusts.
    Raises UsageError for a file that holds none."""
    if not authority:
        return ssl.create_default_context()
    try:
        made = ssl.create_default_context(cafile=authority)
    except ssl.SSLError:
        raise UsageError(
            f"HOMEBOX_CA is {authority}, which holds no certificate",
            hint="It is a PEM file that begins with -----BEGIN CERTIFICATE-----.",
        ) from None
    except OSError as error:
        raise UsageError(
            f"HOMEBOX_CA is {authority}, which cannot be read: {error.strerror or error}", hint=_GET_IT
        ) from None
    # Any certificate in the file is trusted as it is, also one whose authority is not in it.
    made.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return made


def explain(error: ssl.SSLError, place: str, host: str, authority: str | None) -> HomeboxError:
    """What a failed handshake with `place` means, and what to do about it."""
    if not isinstance(error, ssl.SSLCertVerificationError):
        if error.reason in _NO_TLS:
            return DaemonUnreachable(
                f"what answers at {place} does not speak TLS",
                hint="Write HOMEBOX_URL with http://, or give the daemon there a certificate (tls_cert, tls_key).",
            )
        said = (error.reason or str(error)).replace("_", " ").lower()
        return DaemonUnreachable(f"no TLS connection with {place}: {said}")
    if error.verify_code in _OTHER_NAME:
        return DaemonUnreachable(
            f"the certificate at {place} is not for {host!r}",
            hint="Use a name that is in it, or make one with it: homebox tls new --host NAME",
        )
    if error.verify_code == _EXPIRED:
        return DaemonUnreachable(
            f"the certificate at {place} has expired", hint="The owner of the box renews it; then try again."
        )
    if error.verify_code == _NOT_YET:
        return DaemonUnreachable(
            f"the certificate at {place} is not valid yet", hint="Are the clocks of both computers right?"
        )
    trusted = f"HOMEBOX_CA ({Path(authority).name})" if authority else "this computer"
    return DaemonUnreachable(
        f"the certificate at {place} is not trusted by {trusted}: {error.verify_message}",
        hint="HOMEBOX_CA holds another one, or the box has a new one: copy it again."
        if authority
        else _GET_IT,
    )


def speaks_tls(host: str, port: int, within_s: float) -> bool:
    """Whether the server there answers a TLS greeting: asked when it would not answer plain HTTP."""
    import socket

    try:
        with (
            socket.create_connection((host, port), within_s) as plain,
            context(None).wrap_socket(plain, server_hostname=host),
        ):
            return True
    except ssl.SSLCertVerificationError:
        return True
    except (OSError, ValueError):
        return False
