"""`homebox tls`: a certificate for the box, where there is no authority to ask for one.

`new` has the `openssl` program make a self-signed certificate for this machine's names and addresses. It is no
authority: whoever trusts it trusts this box and nothing else, so a copied key opens no other door.
"""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
from collections.abc import Sequence
from ipaddress import ip_address
from pathlib import Path
from shutil import which
from typing import Annotated

import typer

from homebox.client.sanitise import clean
from homebox.errors import HomeboxError, NotAllowed, UsageError

app = typer.Typer(
    help="A certificate for the box, to be reached over TLS.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
)

DAYS = 825  # what Apple's systems accept of a certificate that a person trusts by hand
_MAX_NAME = 64  # X.509: a common name
_CONFIG = """\
[req]
prompt = no
distinguished_name = name
x509_extensions = box
[name]
CN = {name}
[box]
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = serverAuth
subjectKeyIdentifier = hash
subjectAltName = {names}
"""


@app.callback()
def about() -> None:
    """A certificate for the box, to be reached over TLS."""


@app.command("new")
def new(
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where the two files go.")],
    host: Annotated[
        list[str] | None,
        typer.Option(
            "--host", metavar="NAME", help="One more name or address of this box.", show_default=False
        ),
    ] = None,
    days: Annotated[int, typer.Option("--days", min=1, max=3650, help="How long it is valid.")] = DAYS,
) -> int:
    """Make a self-signed certificate for this machine. It is for its names and addresses: DIR/box.crt and DIR/box.key.

    Examples:

    \b
      homebox tls new --out /etc/homebox
      homebox tls new --out ~/homebox-tls --host box.home --host 192.168.1.20
    """
    names = list(dict.fromkeys([*(_checked(name) for name in host or []), *own_names()]))
    cert, key = make(out, names, days)
    print(clean(f"certificate  {cert}"))
    print(clean(f"key          {key}"))
    print(clean(f"names        {', '.join(names)}"))
    print(clean(f"valid        {days} days"))
    absolute = f'  tls_cert = "{cert.absolute()}"\n  tls_key = "{key.absolute()}"'
    print(clean(f"\nIn the daemon's configuration:\n{absolute}"))
    if os.geteuid() == 0:
        print(clean(f"The daemon's account must be able to read the key: chown homebox {key.absolute()}"))
    print(clean(f"On other computers: copy {cert.name} (never the key) and set HOMEBOX_CA to it."))
    return 0


def make(folder: Path, names: Sequence[str], days: int) -> tuple[Path, Path]:
    """The certificate and its key, which only its owner may read. Raises UsageError where one of them is there
    already, HomeboxError where `openssl` is missing or fails."""
    program = which("openssl")
    if program is None:
        raise HomeboxError(
            "the program openssl is not installed here",
            hint="sudo apt install openssl, or take a certificate from your own authority: tls_cert, tls_key.",
        )
    cert, key = folder / "box.crt", folder / "box.key"
    for path in (cert, key):
        if path.exists():
            raise UsageError(f"{path} is there already", hint="Name another --out, or move it away first.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".tls-") as inside:  # 0700
            _openssl(program, Path(inside), names, days)
            (Path(inside) / "key").chmod(0o600)
            (Path(inside) / "cert").chmod(0o644)
            (Path(inside) / "key").rename(key)
            (Path(inside) / "cert").rename(cert)
    except OSError as error:
        kind: type[HomeboxError] = NotAllowed if isinstance(error, PermissionError) else UsageError
        raise kind(f"cannot write to {folder}: {error.strerror or error}") from None
    return cert, key


def _openssl(program: str, folder: Path, names: Sequence[str], days: int) -> None:
    (folder / "config").write_text(
        _CONFIG.format(name=names[0][:_MAX_NAME], names=", ".join(f"{_kind(name)}:{name}" for name in names))
    )
    command = [program, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    files = ["-config", str(folder / "config"), "-keyout", str(folder / "key"), "-out", str(folder / "cert")]
    done = subprocess.run(
        [*command, *files, "-sha256", "-days", str(days)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    if done.returncode:
        raise HomeboxError(f"openssl could not make the certificate: {done.stderr.strip().splitlines()[-1:]}")


def own_names() -> list[str]:
    """What this machine may be called from another one: host name, with `.local`, and its addresses."""
    import psutil

    name = socket.gethostname()
    found = [name, socket.getfqdn(), f"{name.partition('.')[0]}.local", "localhost"]
    for addresses in psutil.net_if_addrs().values():
        for each in addresses:
            if (
                each.family in (socket.AF_INET, socket.AF_INET6)
                and not ip_address(each.address).is_link_local
            ):
                found.append(each.address)
    return [each for each in dict.fromkeys(found) if each and _is_name(each)]


def _kind(name: str) -> str:
    try:
        ip_address(name)
    except ValueError:
        return "DNS"
    return "IP"


def _checked(name: str) -> str:
    if not _is_name(name):
        raise UsageError(
            f"{name!r} is neither a host name nor an address", hint="Like box.home or 192.168.1.20."
        )
    return name


def _is_name(text: str) -> bool:
    if _kind(text) == "IP":
        return True
    parts = text.removeprefix("*.").split(".")
    return len(text) <= 253 and all(
        0 < len(part) <= 63 and part.isascii() and part.replace("-", "").replace("_", "").isalnum()
        for part in parts
    )
