"""Does the client go where it was told to, and is a key in a file kept from others and from other places?"""

from __future__ import annotations

from pathlib import Path

import pytest

from homebox.client import connection, settings
from homebox.errors import DaemonUnreachable, UsageError

HERE, THERE = "http://box.home:11480", "http://elsewhere:1"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("HOMEBOX_URL", "HOMEBOX_KEY", "HOMEBOX_SOCKET"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    path = tmp_path / "homebox" / "config.toml"
    path.parent.mkdir()
    return path


def write(file: Path, text: str, mode: int = 0o600) -> None:
    file.write_text(text)
    file.chmod(mode)


def test_without_a_file_nothing_is_set(file: Path) -> None:
    assert settings.path() == file
    assert settings.load({}) == settings.Reach(None, None, None, None, {})


def test_a_file_names_the_box_and_the_key(file: Path) -> None:
    write(file, f'url = "{HERE}"\nkey = "hb_1"\n')
    found = settings.load({})
    assert (found.url, found.key) == (HERE, "hb_1")
    assert found.origin == {"url": f"{file}: url", "key": f"{file}: key"}
    daemon = connection.from_environment()
    assert daemon.place == HERE and daemon._headers["Authorization"] == "Bearer hb_1"
    assert connection.own_name() == ""


def test_a_file_names_a_socket(file: Path, tmp_path: Path) -> None:
    write(file, f'socket = "{tmp_path}/mine.sock"\n', 0o644)
    assert connection.from_environment().socket_path == tmp_path / "mine.sock"
    assert connection.own_name() != ""


@pytest.mark.parametrize(
    ("environ", "url", "key", "socket"),
    [
        ({"HOMEBOX_URL": THERE}, THERE, None, None),
        ({"HOMEBOX_URL": THERE, "HOMEBOX_KEY": "hb_2"}, THERE, "hb_2", None),
        ({"HOMEBOX_URL": HERE}, HERE, "hb_1", None),
        ({"HOMEBOX_KEY": "hb_2"}, HERE, "hb_2", None),
        ({"HOMEBOX_SOCKET": "/run/x.sock"}, None, None, Path("/run/x.sock")),
        ({"HOMEBOX_URL": ""}, HERE, "hb_1", None),
    ],
)
def test_the_environment_wins_and_a_key_goes_nowhere_else(
    file: Path, environ: dict[str, str], url: str | None, key: str | None, socket: Path | None
) -> None:
    write(file, f'url = "{HERE}"\nkey = "hb_1"\n')
    found = settings.load(environ)
    assert (found.url, found.key, found.socket) == (url, key, socket)


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660])
def test_a_key_that_others_may_read_is_refused_with_the_fix(file: Path, mode: int) -> None:
    write(file, 'key = "hb_1"\n', mode)
    with pytest.raises(UsageError, match="may be read by others") as caught:
        settings.load({})
    assert caught.value.hint == f"chmod 600 {file}"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('ulr = "x"', "unknown key 'ulr'\n  Did you mean 'url'?"),
        ("url = 5", "url must be text in quotes"),
        ('url = ""', "url must be text in quotes"),
        ("url = ", "Invalid value"),
        ("ui = 3", "write [ui] on a line of its own"),
        ("[ui]\nthem = 'dark'", "unknown key 'them' in [ui]"),
        ("[ui]\nmouse = 'no'", "mouse in [ui] must be true or false"),
        ("[keys]\nstop = 3", "stop in [keys] must be text in quotes"),
        ("\udcff", "codec"),
    ],
)
def test_a_file_that_cannot_be_meant_is_named(file: Path, text: str, says: str) -> None:
    file.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(UsageError) as caught:
        settings.load({})
    assert says in str(caught.value) and str(caught.value).startswith(str(file))


def test_an_address_that_cannot_be_meant_is_blamed_on_the_file(file: Path) -> None:
    write(file, 'url = "box.home"\n')
    with pytest.raises(UsageError, match=r"config\.toml: url is 'box\.home'"):
        connection.from_environment()


def test_a_key_in_the_address_is_shown_nowhere(file: Path) -> None:
    secret = "S3cret" * 7 + "x"
    address = f"http://me:pass@127.0.0.1:9/k/hb_k3J9xQ2a_{secret}"
    daemon = connection.Daemon(url=address)
    with pytest.raises(DaemonUnreachable) as caught:
        daemon.json("GET", "/health")
    assert daemon.place == "http://...@127.0.0.1:9/k/hb_k3J9xQ2a_..." in str(caught.value)
    with pytest.raises(UsageError) as refused:
        connection.Daemon(url=f"box/k/hb_k3J9xQ2a_{secret}")
    assert secret not in str(refused.value)


def test_how_the_screens_look_is_in_tables_of_their_own(file: Path) -> None:
    write(file, 'url = "http://box"\n[ui]\ntheme = "light"\nmouse = false\n[keys]\nstop = "f9"\n')
    found = settings.screens()
    assert (found.theme, found.mouse, found.ascii, found.keys) == ("light", False, None, {"stop": "f9"})
    assert settings.load({}).url == "http://box"


def test_without_a_file_the_screens_are_as_they_are(file: Path) -> None:
    assert settings.screens() == settings.Screens()
