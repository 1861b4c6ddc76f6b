"""`homebox service` where there is no systemd to speak with, and which box a command means."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from homebox import config
from homebox.cli.main import run
from homebox.client.connection import Daemon
from homebox.errors import DaemonUnreachable, UsageError
from homebox.service import systemctl
from homebox.service.units import UNITS


@pytest.fixture
def no_systemd(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(systemctl, "BOOTED", tmp_path / "not-booted")


@pytest.mark.parametrize(
    "arguments",
    [[verb] for verb in ("uninstall", "start", "stop", "restart", "reload", "reset", "status", "logs")]
    + [["install", "--user"]],
    ids=" ".join,
)
def test_without_systemd_it_says_so_and_what_to_do_instead(no_systemd: None, arguments: list[str]) -> None:
    with pytest.raises(UsageError, match="does not run systemd") as refused:
        run(["service", *arguments])
    assert refused.value.hint and "homebox serve" in refused.value.hint and "WSL" in refused.value.hint


@pytest.mark.parametrize("user", [False, True], ids=["machine", "person"])
def test_a_dry_run_shows_every_file_and_command_anywhere(
    no_systemd: None,
    user: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    run(["service", "install", "--dry-run", *(["--user"] if user else [])])
    out = capsys.readouterr().out
    where = tmp_path / "systemd/user" if user else Path("/etc/systemd/system")
    systemd = "systemctl --user" if user else "systemctl"
    for name in UNITS:
        assert f"would write {where / name}\n" in out
    assert f"would run   {systemd} daemon-reload\n" in out
    assert f"would run   {systemd} enable homebox.socket homebox.service\n" in out
    assert "[Socket]" in out and list(tmp_path.iterdir()) == []


def test_root_and_the_services_user_mean_the_machines_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machines = tmp_path / "machines"
    monkeypatch.setattr(config, "SYSTEM_STATE", machines)
    for name in ("HOMEBOX_STATE_DIR", "STATE_DIRECTORY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "own"))
    own = tmp_path / "own" / "homebox"
    assert config.state_dir() == own
    machines.mkdir()
    for uid, expected in ((0, machines), (machines.stat().st_uid, machines), (54321, own)):
        monkeypatch.setattr(os, "geteuid", lambda uid=uid: uid)
        assert config.state_dir() == expected
    monkeypatch.setenv("HOMEBOX_STATE_DIR", str(tmp_path / "named"))
    assert config.state_dir() == tmp_path / "named"


def test_a_client_names_the_socket_of_the_installed_service_when_nobody_listens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machines, unit, own = tmp_path / "m.sock", tmp_path / "homebox.socket", tmp_path / "homebox" / "api.sock"
    monkeypatch.setattr(config, "SYSTEM_SOCKET", machines)
    monkeypatch.setattr(config, "SYSTEM_UNIT", unit)
    monkeypatch.setattr("homebox.client.connection.SYSTEM_SOCKET", machines)
    monkeypatch.delenv("HOMEBOX_SOCKET", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert config.find_socket() == own
    unit.touch()
    assert config.find_socket() == machines
    with pytest.raises(DaemonUnreachable) as down:
        Daemon().json("GET", "/health")
    assert down.value.hint and "sudo homebox service start" in down.value.hint
    assert "homebox service status" in down.value.hint
    own.parent.mkdir()
    own.touch()
    assert config.find_socket() == own
