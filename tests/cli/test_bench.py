"""Does `homebox bench` measure the box that is there, and say the next step where there is none? Its engine is scripted."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.cli.conftest import Shell
from tests.client.fake_daemon import FakeDaemon
from tests.daemon.box import Box

SMALL = ("--rounds", "1", "--max-tokens", "6", "--prompt-tokens", "40")


def test_the_box_is_measured_and_the_report_is_table_plot_json_and_picture(
    box: Box, homebox: Shell, tmp_path: Path
) -> None:
    homebox.env |= {"HOMEBOX_SOCKET": box.socket}
    files = ("--json", str(tmp_path / "r.json"), "--svg", str(tmp_path / "r.svg"))
    ran = homebox("bench", "--streams", "1,3", *SMALL, *files)
    assert ran.code == 0, ran.err
    assert ran.out.startswith("homebox 0.1.0 at ") and "static batches        3" in ran.out
    assert "output tokens a second, all streams" in ran.out
    assert "homebox: round 1 of 1, static, 3" in ran.err.splitlines()
    report = json.loads((tmp_path / "r.json").read_text())
    assert [(row["way"], row["streams"]) for row in report["rows"]] == [
        ("one", 1), ("continuous", 1), ("static", 3), ("continuous", 3),
    ]  # fmt: skip
    for row in report["rows"]:
        found = row["median"]
        assert found["tokens"] == found["asked_tokens"] == 6 * found["requests"], (
            "end tokens were not ignored"
        )
        assert 20 <= found["prompt_tokens"] <= 60 and found["ttft_p50_ms"] > 0
    server = report["server"]
    assert (server["name"], server["model"], server["quantisation"]) == ("homebox", "tiny", "F32")
    assert server["tokens_counted_by"] == "usage" and server["engine"]["block_size"] == 16
    assert "pid" not in server["engine"]
    ElementTree.parse(tmp_path / "r.svg")


def test_json_goes_to_standard_output_alone(box: Box, homebox: Shell) -> None:
    ran = homebox(
        "bench", "--streams", "2", *SMALL, "--ways", "continuous", "--arrivals", "bursts", "--lengths", "mixed", "--json", "-",
        HOMEBOX_SOCKET=box.socket,
    )  # fmt: skip
    assert ran.code == 0, ran.err
    report = json.loads(ran.out)
    assert report["load"]["arrivals"] == "bursts" and report["load"]["ways"] == ["continuous"]
    assert {row["way"] for row in report["rows"]} == {"continuous"}


def test_without_a_daemon_the_next_step_is_said(homebox: Shell) -> None:
    ran = homebox("bench")
    assert (ran.code, ran.out) == (3, "")
    assert "no daemon is running" in ran.err and "Start it with: homebox serve" in ran.err


@pytest.mark.parametrize(
    ("health", "hint"),
    [
        ({"state": "loading", "model": "tiny"}, "homebox status --wait 120 && homebox bench"),
        ({"state": "paused", "model": "tiny"}, "homebox resume"),
    ],
)
def test_a_box_that_is_not_ready_is_not_measured(
    fake: FakeDaemon, homebox: Shell, health: dict[str, str], hint: str
) -> None:
    fake.when("GET", "/health", lambda exchange: exchange.json(health))
    ran = homebox("bench")
    assert (ran.code, ran.out) == (5, "") and hint in ran.err


def test_a_server_that_is_not_there_is_said(homebox: Shell) -> None:
    ran = homebox("bench", "--url", "http://127.0.0.1:9/v1")
    assert ran.code == 3 and "nobody answers at http://127.0.0.1:9:" in ran.err


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--streams", "1,many"], "--streams '1,many'"),
        (["--streams", "0"], "from 1 to 1024"),
        (["--rounds", "0"], "--rounds 0 is not between"),
        (["--ways", "one,two"], "'two' is none of one, static, continuous"),
        (["--lengths", "odd"], "'odd' is not one of: fixed, mixed"),
        (["--key", "k"], "--key goes with --url"),
        (["--url", "box:1"], "Write it like http://localhost:8000"),
        (["--url", "http://box", "--quality"], "Leave --url out"),
    ],
)
def test_what_cannot_be_meant_is_a_usage_error(homebox: Shell, args: list[str], says: str) -> None:
    ran = homebox("bench", *args)
    assert (ran.code, ran.out) == (2, "") and says in ran.err


def test_its_help_loads_no_load_generator(homebox: Shell) -> None:
    assert not {"aiohttp", "torch", "psutil"} & set(homebox.modules("bench", "--help"))
