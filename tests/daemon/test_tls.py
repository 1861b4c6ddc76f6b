"""Does TLS work with the stock clients, and is a certificate that no client would take found before anything opens?"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import httpx2
import pytest
from openai import APIConnectionError, OpenAI

from homebox import config
from homebox.cli.tls import make, own_names
from homebox.client.connection import Daemon
from homebox.config import Settings
from homebox.daemon import tls
from homebox.daemon.keys import Keys
from homebox.errors import DaemonUnreachable, UsageError
from tests import forks
from tests.forks import COMMAND

from .box import Box, running, state_with
from .certificates import dated, valid

pytestmark = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="the program openssl is not installed"
)


@dataclass
class Remote:
    """A daemon behind TLS, its certificate, and a key that opens it."""

    box: Box
    cert: Path
    private: Path
    key: str

    @property
    def url(self) -> str:
        return f"https://localhost:{self.box.server.addresses[0][1]}"

    @property
    def trust(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self.cert)

    def command(self, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Our own client on a computer that has no daemon."""
        clean = {name: value for name, value in os.environ.items() if not name.startswith("HOMEBOX_")}
        remote = {"HOMEBOX_URL": self.url, "HOMEBOX_KEY": self.key, "HOMEBOX_CA": str(self.cert)}
        return forks.run([*COMMAND, *args], env=clean | remote | env, input="", text=True, timeout=30)


@pytest.fixture(scope="module")
def remote(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Remote]:
    folder = tmp_path_factory.mktemp("tls")
    cert, private = valid(folder / "tls")
    key = Keys(state_with(model, folder)).new("anna")
    with running(model, folder, listen="127.0.0.1:0", tls_cert=str(cert), tls_key=str(private)) as box:
        yield Remote(box, cert, private, key)


# ---- the stock clients


def test_openai_python_unmodified_talks_to_it_once_it_trusts_the_certificate(remote: Remote) -> None:
    def client(trust: ssl.SSLContext) -> OpenAI:
        http = httpx2.Client(verify=trust)
        return OpenAI(api_key=remote.key, base_url=f"{remote.url}/v1", http_client=http, max_retries=0)

    ask = {"model": "tiny", "messages": [{"role": "user", "content": "[[say=hello_there]]"}]}
    whole = client(remote.trust).chat.completions.create(**ask)  # type: ignore[call-overload]
    assert whole.choices[0].message.content == "hello there"
    pieces = client(remote.trust).chat.completions.create(**ask, stream=True)  # type: ignore[call-overload]
    assert "".join(piece.choices[0].delta.content or "" for piece in pieces) == "hello there"
    with pytest.raises(APIConnectionError):
        client(ssl.create_default_context()).models.list()


def test_httpx_talks_to_it_by_context_and_any_client_of_it_by_the_environment(
    remote: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    headers = {"Authorization": f"Bearer {remote.key}"}
    with httpx.Client(verify=remote.trust, headers=headers) as http:
        assert http.get(f"{remote.url}/v1/models").json()["data"][0]["id"] == "tiny"
    monkeypatch.setenv("SSL_CERT_FILE", str(remote.cert))
    with OpenAI(api_key=remote.key, base_url=f"{remote.url}/v1", max_retries=0) as client:
        assert [model.id for model in client.models.list()] == ["tiny"]


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl_talks_to_it_and_nobody_below_tls_1_2(remote: Remote) -> None:
    def curl(*args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["curl", "-sS", "--max-time", "10", "-H", f"x-api-key: {remote.key}", *args, f"{remote.url}/v1/models"],
            capture_output=True, text=True, timeout=20,
        )  # fmt: skip

    assert '"tiny"' in curl("--cacert", str(remote.cert)).stdout
    assert "certificate" in curl().stderr
    assert curl("--cacert", str(remote.cert), "--tls-max", "1.1").returncode != 0


# ---- our own client


def test_the_same_commands_work_from_another_computer(remote: Remote) -> None:
    asked = remote.command("ask", "[[say=hello_there]]")
    assert (asked.returncode, asked.stdout) == (0, "hello there\n"), asked.stderr
    assert remote.command("status").stdout.startswith("ready  tiny")
    assert " BATCH 0/" in remote.command("top", "--once").stdout
    assert "nothing is running" in remote.command("streams", "list").stderr
    listed = remote.command("models", "list")
    assert listed.stdout.startswith("tiny "), listed.stderr
    chat = forks.run(
        [*COMMAND, "chat"],
        env=os.environ | {"HOMEBOX_URL": remote.url, "HOMEBOX_KEY": remote.key, "HOMEBOX_CA": str(remote.cert)},
        input="[[say=good_morning]]\n", text=True, timeout=30,
    )  # fmt: skip
    assert "good morning" in chat.stdout, chat.stderr


@pytest.mark.parametrize(
    ("env", "says", "next_step"),
    [
        ({"HOMEBOX_CA": ""}, "is not trusted by this computer", "HOMEBOX_CA"),
        ({"HOMEBOX_CA": "OTHER"}, "is not trusted by HOMEBOX_CA (box.crt)", "copy it again"),
        ({"HOMEBOX_CA": "KEY"}, "which holds no certificate", "BEGIN CERTIFICATE"),
        ({"HOMEBOX_CA": "/nowhere/box.crt"}, "cannot be read: No such file", "Copy the box's certificate"),
        ({"HOMEBOX_URL": "http://localhost:PORT"}, "speaks TLS", "Set HOMEBOX_URL to https://localhost:PORT"),
        ({"HOMEBOX_KEY": ""}, "a key is needed", "HOMEBOX_KEY"),
    ],
    ids=["unknown", "another", "no certificate", "no file", "plain http", "no key"],
)
def test_what_is_wrong_with_a_connection_is_said_with_the_next_step(
    remote: Remote, tmp_path: Path, env: dict[str, str], says: str, next_step: str
) -> None:
    port = str(remote.box.server.addresses[0][1])
    named = {"OTHER": str(valid(tmp_path / "other")[0]), "KEY": str(remote.private)}
    real = {name: named.get(value, value).replace("PORT", port) for name, value in env.items()}
    ran = remote.command("ask", "hello", **real)
    assert ran.returncode in (2, 3, 7) and ran.stdout == ""
    assert says in ran.stderr and next_step.replace("PORT", port) in ran.stderr, ran.stderr
    assert "Traceback" not in ran.stderr


@contextmanager
def tls_server(cert: Path, key: Path) -> Iterator[int]:
    """Shakes hands with one client after the other, and says nothing."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(cert, key)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    with contextlib.suppress(OSError), context.wrap_socket(connection, server_side=True):
                        pass

        thread = threading.Thread(target=serve)
        thread.start()
        yield int(listener.getsockname()[1])
        listener.shutdown(socket.SHUT_RDWR)
    thread.join()


@pytest.mark.parametrize(
    ("kind", "says", "next_step"),
    [
        ("expired", "has expired", "renews it"),
        ("future", "is not valid yet", "clocks"),
        ("other", "is not for '127.0.0.1'", "homebox tls new --host"),
    ],
)
def test_a_certificate_that_is_trusted_is_still_checked_for_its_name_and_its_dates(
    tmp_path: Path, kind: str, says: str, next_step: str
) -> None:
    cert, key = {
        "expired": lambda: dated(tmp_path / "c", "20200101000000Z", "20210101000000Z"),
        "future": lambda: dated(tmp_path / "c", "20480101000000Z", "20490101000000Z"),
        "other": lambda: valid(tmp_path / "c", "box.home"),
    }[kind]()
    with tls_server(cert, key) as port, pytest.raises(DaemonUnreachable, match=says) as caught:
        Daemon(url=f"https://127.0.0.1:{port}", authority=str(cert)).json("GET", "/health")
    assert next_step in str(caught.value.hint)


def test_https_to_a_daemon_without_tls_says_so(model: Path, tmp_path: Path) -> None:
    Keys(state_with(model, tmp_path)).new("anna")
    with running(model, tmp_path, listen="127.0.0.1:0") as box:
        url = box.address.replace("http:", "https:")
        with pytest.raises(DaemonUnreachable, match="does not speak TLS") as caught:
            Daemon(url=url).json("GET", "/health")
        assert "http://" in str(caught.value.hint)


# ---- the certificate, before anything opens


def settings_with(cert: Path, key: Path) -> Settings:
    return Settings(tls_cert=str(cert), tls_key=str(key))


def test_a_certificate_that_cannot_work_is_refused_before_anything_opens(tmp_path: Path) -> None:
    cert, key = valid(tmp_path / "one")
    other = valid(tmp_path / "two")[1]
    encrypted = tmp_path / "encrypted.key"
    subprocess.run(
        ["openssl", "pkey", "-in", key, "-aes256", "-passout", "pass:x", "-out", encrypted], check=True
    )
    past = dated(tmp_path / "past", "20200101000000Z", "20210101000000Z")
    future = dated(tmp_path / "future", "20480101000000Z", "20490101000000Z")
    for pair, says in [
        ((cert, other), "does not belong to the certificate"),
        ((tmp_path / "none.crt", key), "tls_cert is .*none.crt, which cannot be read"),
        ((cert, tmp_path), "tls_key is .*cannot be read: Is a directory"),
        ((key, key), "cannot be used"),
        ((cert, encrypted), "is encrypted"),
        (past, "has expired on 2021-01-01"),
        (future, "is valid from 2048-01-01"),
    ]:
        with pytest.raises(UsageError, match=says):
            tls.context(settings_with(*pair))
    assert tls.context(settings_with(cert, key)) is not None and tls.context(Settings()) is None


def test_one_of_the_two_settings_alone_is_refused(tmp_path: Path) -> None:
    for flag in ("tls_cert", "tls_key"):
        file = tmp_path / "config.toml"
        file.write_text(f'{flag} = "/etc/homebox/box.pem"\n')
        with pytest.raises(UsageError, match=f"{flag} is set and tls_") as caught:
            config.load(config=file, environ={})
        assert caught.value.hint == "TLS needs both."


def test_the_log_warns_of_an_early_end_and_of_a_key_that_others_can_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cert, key = valid(tmp_path / "good", days=15)
    tls.context(settings_with(cert, key))
    assert not caplog.records
    cert, key = valid(tmp_path / "soon", days=3)
    key.chmod(0o644)
    with caplog.at_level(logging.WARNING):
        tls.context(settings_with(cert, key))
    assert [r.getMessage().partition(",")[0] for r in caplog.records] == [
        "the certificate expires in 2 days",
        f"everybody on this machine can read the key {key} (mode 0644): chmod o= {key}",
    ]


def test_a_renewed_certificate_is_shown_to_the_next_connection_and_a_broken_one_never(
    model: Path, tmp_path: Path
) -> None:
    Keys(state_with(model, tmp_path)).new("anna")
    cert, key = valid(tmp_path / "tls")
    with running(model, tmp_path, listen="127.0.0.1:0", tls_cert=str(cert), tls_key=str(key)) as box:
        settings, context = box.house.settings, box.server.tls

        def shown() -> str:
            return ssl.get_server_certificate(("127.0.0.1", box.server.addresses[0][1]))

        first = shown()
        assert first == cert.read_text()
        cert.unlink()
        with pytest.raises(UsageError):
            tls.context(settings, into=context)
        assert shown() == first
        names = "subjectAltName=DNS:localhost,IP:127.0.0.1"
        command = [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-subj",
            "/CN=box",
            "-days",
            "30",
        ]
        files = ["-addext", names, "-keyout", str(key), "-out", str(cert)]
        subprocess.run([*command, *files], check=True, capture_output=True)  # another kind of key
        tls.context(settings, into=context)
        assert shown() == cert.read_text() != first


def test_a_made_certificate_holds_this_machines_names_and_its_key_is_its_owners_alone(tmp_path: Path) -> None:
    cert, key = make(tmp_path / "tls", ["box.home", *own_names()], days=30)
    found = tls.examine(cert, key)[1]
    assert {"box.home", socket.gethostname(), "localhost", "127.0.0.1"} <= set(found.names)
    assert key.stat().st_mode & 0o777 == 0o600
    strict = ssl.create_default_context(cafile=cert)
    strict.verify_flags |= ssl.VERIFY_X509_STRICT
    with tls_server(cert, key) as port, socket.create_connection(("127.0.0.1", port)) as plain:
        strict.wrap_socket(plain, server_hostname="box.home").close()


def test_the_command_says_what_to_do_with_the_certificate_and_overwrites_none(tmp_path: Path) -> None:
    def new(*args: str) -> subprocess.CompletedProcess[str]:
        return forks.run([*COMMAND, "tls", "new", *args], text=True, timeout=30)

    made = new("--out", str(tmp_path), "--host", "box.home", "--host", "192.168.7.7")
    assert made.returncode == 0, made.stderr
    assert f'tls_cert = "{tmp_path}/box.crt"' in made.stdout and "HOMEBOX_CA" in made.stdout
    assert {"box.home", "192.168.7.7"} <= set(
        tls.examine(tmp_path / "box.crt", tmp_path / "box.key")[1].names
    )
    before = (tmp_path / "box.key").read_bytes()
    again = new("--out", str(tmp_path))
    assert again.returncode == 2 and "is there already" in again.stderr
    assert (tmp_path / "box.key").read_bytes() == before
    assert (
        "neither a host name nor an address" in new("--out", str(tmp_path / "x"), "--host", "a,DNS:b").stderr
    )
