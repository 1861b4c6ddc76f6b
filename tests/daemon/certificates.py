"""Certificates as a household may have them: our own `tls new`, and those whose dates are wrong."""

from __future__ import annotations

import subprocess
from pathlib import Path

from homebox.cli.tls import make

_CA = """\
[ca]
default_ca = here
[here]
database = index
new_certs_dir = .
rand_serial = yes
default_md = sha256
policy = any
x509_extensions = box
[any]
commonName = supplied
[req]
prompt = no
distinguished_name = name
[name]
CN = box
[box]
basicConstraints = critical, CA:FALSE
extendedKeyUsage = serverAuth
subjectAltName = DNS:localhost, IP:127.0.0.1
"""


def valid(folder: Path, *names: str, days: int = 30) -> tuple[Path, Path]:
    return make(folder, names or ("localhost", "127.0.0.1"), days)


def dated(folder: Path, start: str, end: str) -> tuple[Path, Path]:
    """A self-signed one with these dates, written like 20200101000000Z."""
    folder.mkdir()
    (folder / "config").write_text(_CA)
    (folder / "index").touch()
    request = "req -config config -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout box.key -out csr"
    sign = f"ca -config config -batch -selfsign -keyfile box.key -in csr -out box.crt -notext -startdate {start} -enddate {end}"
    for command in (request, sign):
        subprocess.run(["openssl", *command.split()], cwd=folder, check=True, capture_output=True)
    return folder / "box.crt", folder / "box.key"
