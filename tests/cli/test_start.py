"""Does `scripts/start` run the whole way, stop what it started, and leave alone what it did not?"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import platformdirs
import psutil
import pytest

from homebox.bench.household import QUESTIONS

ROOT = Path(__file__).parents[2]
START = ROOT / "scripts" / "start"
MODEL = "smollm2-135m"

pytestmark = pytest.mark.skipif(
    not list((ROOT / ".venv").glob(".installed-*")),
    reason="scripts/setup has not run here: scripts/start would install",
)
Wait = Callable[[Callable[[], object]], None]


@pytest.fixture
def env(tmp_path: Path, default_model: Path) -> Iterator[dict[str, str]]:
    """The environment of somebody with an empty home who has the default model. Nothing that ran in it is left over."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HOMEBOX_", "XDG_"))}
    (tmp_path / "run").mkdir(mode=0o700)
    made = kept | {
        "HOME": str(tmp_path),
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "XDG_CACHE_HOME": str(platformdirs.user_cache_path()),  # kernels are compiled once, not for each test
        "HOMEBOX_STATE_DIR": str(default_model.parents[1]),
        "HOMEBOX_SOCKET": str(tmp_path / "run" / "api.sock"),
    }
    yield made
    left = ours(made)
    for process in left:
        process.kill()
    assert not left, f"left over: {[process.cmdline() for process in left]}"


def ours(env: dict[str, str]) -> list[psutil.Process]:
    """Every process with this test's socket in its environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("HOMEBOX_SOCKET") == env["HOMEBOX_SOCKET"]:
                found.append(process)
        except psutil.Error:
            continue
    return found


def start(env: dict[str, str], out: Path) -> subprocess.Popen[bytes]:
    with out.open("wb") as file:
        return subprocess.Popen(
            [str(START)],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def test_a_daemon_that_cannot_start_is_explained_by_its_log(env: dict[str, str], tmp_path: Path) -> None:
    done = subprocess.run(
        [str(START)],
        env=env | {"HOMEBOX_LISTEN": "127.0.0.1:0"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if done.returncode == 0:
        pytest.skip("the state directory of the tests holds a key, so that TCP may be opened")
    assert done.returncode == 1 and done.stdout == ""
    assert f"its log is {tmp_path}/state/homebox/daemon.log" in done.stderr
    assert "could not start" in done.stderr and "homebox people keys new" in done.stderr


@pytest.mark.model
@pytest.mark.long
def test_without_a_terminal_four_people_are_answered_and_nothing_is_left(
    env: dict[str, str], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    began = time.monotonic()
    process = start(env, out)
    assert process.wait(300) == 0, out.read_text()
    said = out.read_text()
    for person in QUESTIONS:
        assert re.search(rf"^{person:4} \| +\S", said, re.M), said
    assert re.search(r"^together / one at a time: \d+\.\d+ times", said, re.M)
    assert said.rstrip().endswith("homebox: stopping the daemon")
    print(f"scripts/start, set up already: {time.monotonic() - began:.1f} s in all")


@pytest.mark.model
@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_interrupted_in_mid_answer_it_stops_all_that_it_started(
    env: dict[str, str], tmp_path: Path, wait_for: Wait, number: signal.Signals
) -> None:
    out = tmp_path / "out"
    process = start(env, out)
    deadline = time.monotonic() + 120
    while " | " not in out.read_text():
        assert process.poll() is None and time.monotonic() < deadline, out.read_text()
        time.sleep(0.05)
    os.killpg(process.pid, number)
    assert process.wait(30) == 128 + number
    wait_for(lambda: not ours(env))


@pytest.mark.model
@pytest.mark.long
def test_a_daemon_that_ran_before_is_used_and_left_alone(env: dict[str, str], tmp_path: Path) -> None:
    daemon = subprocess.Popen(
        [str(ROOT / ".venv" / "bin" / "homebox"), "serve"],
        env=env,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        out = tmp_path / "out"
        waited = subprocess.run(
            [str(ROOT / ".venv" / "bin" / "homebox"), "status", "--wait", "120"], env=env, check=False
        )
        assert waited.returncode == 0
        assert start(env, out).wait(300) == 0, out.read_text()
        assert (
            "a daemon is running already" in out.read_text() and "stopping the daemon" not in out.read_text()
        )
        assert daemon.poll() is None
    finally:
        daemon.terminate()
        daemon.wait(30)
