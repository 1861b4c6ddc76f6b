"""Does each setting say where it came from, and is a file that cannot be meant refused?"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from homebox import config
from homebox.config import Settings
from tests.client.fake_daemon import FakeDaemon

from .conftest import Shell


def test_every_setting_is_shown_with_where_it_came_from(homebox: Shell, tmp_path: Path) -> None:
    file = tmp_path / "my.toml"
    file.write_text('model = "big"\nallowed_hosts = ["box.home"]\n')
    homebox.env["HOMEBOX_DRAIN_S"] = "7"
    ran = homebox("config", "show", "--origin", "--config", str(file))
    assert ran.code == 0 and ran.err == ""
    shown = dict(line.split(" = ", 1) for line in ran.out.splitlines() if " = " in line)
    assert set(Settings.__struct_fields__) < set(shown)
    assert shown["model"].split() == ['"big"', "#", str(file)]
    assert shown["allowed_hosts"].split() == ['["box.home"]', "#", str(file)]
    assert shown["drain_s"].split() == ["7.0", "#", "environment", "HOMEBOX_DRAIN_S"]
    assert shown["max_running"].split() == ["32", "#", "default"]
    assert "#" not in homebox("config", "show").out.replace("# this client", "")
    found = json.loads(homebox("config", "show", "--json", "--config", str(file)).out)
    assert found["settings"]["model"] == "big" and found["origin"]["model"] == str(file)
    assert found["settings"]["drain_s"] == 7.0 and set(found["origin"]) == set(Settings.__struct_fields__)


def test_what_is_shown_can_be_read_again(homebox: Shell, tmp_path: Path) -> None:
    daemon, _, _ = homebox("config", "show", "--origin").out.partition("# this client")
    (tmp_path / "again.toml").write_text(daemon)
    assert homebox("config", "check", str(tmp_path / "again.toml")).code == 0


def test_the_clients_own_part_hides_its_key(homebox: Shell, tmp_path: Path) -> None:
    file = tmp_path / ".config" / "homebox" / "config.toml"
    file.parent.mkdir(parents=True)
    file.write_text('url = "http://box:1"\nkey = "hb_abcdefgh_secret"\n')
    file.chmod(0o600)
    del homebox.env["HOMEBOX_SOCKET"]
    for args in (["--origin"], ["--json"]):
        ran = homebox("config", "show", *args)
        assert ran.code == 0 and "hb_" not in ran.out and "(hidden)" in ran.out and str(file) in ran.out
    assert homebox("config", "path").out.splitlines()[-1] == str(file)


def test_a_file_is_checked_alone(homebox: Shell, tmp_path: Path) -> None:
    good, bad = tmp_path / "good.toml", tmp_path / "bad.toml"
    good.write_text("max_running = 4\n")
    bad.write_text("max_runing = 4\n")
    homebox.env["HOMEBOX_DRAIN_S"] = "never"  # of no concern to a file
    ran = homebox("config", "check", str(good))
    assert (ran.code, ran.out) == (0, f"ok: {good}: 1 key\n")
    ran = homebox("config", "check", str(bad))
    assert ran.code == 2 and "line 1: unknown key 'max_runing'\n  Did you mean 'max_running'?" in ran.err
    assert homebox("config", "check", str(tmp_path / "none.toml")).code == 2
    ran = homebox("config", "show", "--config", str(bad), "--json")
    assert ran.code == 2 and json.loads(ran.out)["error"]["code"] == "usage_error"


def test_files_are_read_in_the_order_in_which_they_are_named(tmp_path: Path) -> None:
    (tmp_path / "conf.d").mkdir()
    for name, value in (("conf.d/20-b.toml", 2), ("conf.d/10-a.toml", 1), ("config.toml", 9)):
        (tmp_path / name).write_text(f"max_running = {value}\n")
    assert [file.name for file in config.files(tmp_path)] == ["config.toml", "10-a.toml", "20-b.toml"]
    loaded = config.load(environ={}, root=tmp_path)
    assert loaded.settings.max_running == 2 and loaded.origin["max_running"].endswith("20-b.toml")


def test_a_running_daemon_is_asked_what_holds(fake: FakeDaemon, homebox: Shell) -> None:
    fake.when("GET", "/homebox/config", lambda exchange: exchange.json({"settings": {"model": "loaded"}}))
    assert homebox("config", "show", "--daemon").out == 'model = "loaded"\n'
    assert json.loads(homebox("config", "show", "--daemon", "--json").out) == {
        "settings": {"model": "loaded"}
    }
    assert homebox("config", "show", "--daemon", "--origin").code == 2


@pytest.mark.parametrize("value", ["true", "0", "maybe"])
def test_names_in_metrics_are_a_yes_or_a_no(value: str) -> None:
    if value == "maybe":
        with pytest.raises(
            config.UsageError, match="HOMEBOX_METRICS_PEOPLE is 'maybe'; it must be true or false"
        ):
            config.load(environ={"HOMEBOX_METRICS_PEOPLE": value}, root=Path("/nowhere"))
    else:
        loaded = config.load(environ={"HOMEBOX_METRICS_PEOPLE": value}, root=Path("/nowhere"))
        assert loaded.settings.metrics_people is (value == "true")
