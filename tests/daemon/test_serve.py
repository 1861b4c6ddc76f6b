"""Does the daemon start, listen and leave as a process should?"""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from homebox.cli import people
from homebox.daemon.serve import bind, parse_address
from homebox.errors import UsageError
from homebox.wire import events

from .box import read_events, state_with, text_of, until

SERVE = str(Path(__file__).with_name("serve_scripted.py"))


class Process:
    def __init__(self, process: subprocess.Popen[str], path: Path) -> None:
        self.process, self.path = process, path
        self.http = httpx.Client(
            transport=httpx.HTTPTransport(uds=str(path)), base_url="http://box", timeout=20
        )

    def ask(self, content: str, **options: object) -> httpx.Response:
        return self.http.post(
            "/homebox/ask", json={"messages": [{"role": "user", "content": content}], "options": options}
        )

    def in_background(self, content: str, **options: object) -> tuple[threading.Thread, list[events.Event]]:
        told: list[events.Event] = []
        thread = threading.Thread(
            target=lambda: told.extend(read_events(self.ask(content, **options).content))
        )
        thread.start()
        until(lambda: any(row["tokens_out"] for row in self.http.get("/homebox/streams").json()["streams"]))
        return thread, told

    def engine(self) -> int:
        return until(lambda: int(self.http.get("/health").json().get("engine_pid") or 0))


@contextmanager
def served(model: Path, folder: Path, drain_s: float = 5.0) -> Iterator[Process]:
    state = folder if (folder / "models").exists() else state_with(model, folder)
    path = folder / "run" / "api.sock"
    command = [sys.executable, SERVE, str(state), str(path), str(drain_s)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout and process.stdout.readline() == "ready\n"
            yield Process(process, path)
        finally:
            process.kill()


def alive(pid: int) -> bool:
    """Whether this process is still there, other than as a corpse that nobody has collected."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_first_signal_lets_running_answers_finish_and_turns_new_ones_away(
    model: Path, tmp_path: Path
) -> None:
    with served(model, tmp_path) as daemon:
        engine = daemon.engine()
        thread, told = daemon.in_background("[[forever]][[pace=10]]", max_tokens=80)
        daemon.process.send_signal(signal.SIGTERM)
        health = until(lambda: (h := daemon.http.get("/health")).status_code == 503 and h)
        assert health.json()["state"] == "draining"
        refused = daemon.ask("hello")
        assert refused.status_code == 503 and refused.headers["retry-after"]
        assert refused.json()["error"]["code"] == "engine_unavailable"
        thread.join()
        finished = told[-1]
        assert isinstance(finished, events.Finished) and finished.reason == "length"
        assert any(isinstance(event, events.GoingDown) for event in told)
        out, err = daemon.process.communicate(timeout=10)
        assert daemon.process.returncode == 0 and not daemon.path.exists() and not alive(engine)
        assert out == "heavy: []\n"
        lines = [json.loads(line) for line in err.splitlines()]
        line = next(line for line in lines if line["message"] == "finished")
        assert line["tokens_out"] == 80 and line["reason"] == "length" and line["person"]
        assert "forever" not in err


def test_what_is_not_finished_in_time_ends_with_its_text(model: Path, tmp_path: Path) -> None:
    with served(model, tmp_path, drain_s=0.2) as daemon:
        thread, told = daemon.in_background("[[forever]][[pace=10]]", max_tokens=900)
        daemon.process.send_signal(signal.SIGINT)
        thread.join()
        finished = told[-1]
        assert isinstance(finished, events.Finished) and finished.reason == "cancelled"
        assert "restarting" in finished.detail and text_of(told)
        assert daemon.process.wait(10) == 0


def test_a_second_signal_leaves_at_once(model: Path, tmp_path: Path) -> None:
    with served(model, tmp_path, drain_s=60) as daemon:
        engine = daemon.engine()
        thread, told = daemon.in_background("[[forever]][[pace=50]]", max_tokens=900)
        daemon.process.send_signal(signal.SIGTERM)
        until(lambda: daemon.http.get("/health").json()["state"] == "draining")
        daemon.process.send_signal(signal.SIGTERM)
        assert daemon.process.wait(5) == 0
        thread.join()
        assert told and not alive(engine) and not daemon.path.exists()


def test_an_engine_never_outlives_its_daemon(model: Path, tmp_path: Path) -> None:
    with served(model, tmp_path) as daemon:
        engine = daemon.engine()
        assert alive(engine)
        daemon.process.kill()
        until(lambda: not alive(engine))


def test_a_dead_daemons_socket_is_replaced_and_a_living_ones_is_not(model: Path, tmp_path: Path) -> None:
    with served(model, tmp_path) as daemon:
        daemon.process.kill()
        daemon.process.wait()
        assert daemon.path.is_socket()
    with served(model, tmp_path) as daemon:
        with pytest.raises(UsageError, match="another daemon is listening"):
            bind(daemon.path)
        assert daemon.http.get("/health").status_code == 200
        assert stat.S_IMODE(daemon.path.stat().st_mode) == 0o660
        assert stat.S_IMODE(daemon.path.parent.stat().st_mode) == 0o750


def test_of_daemons_that_start_at_once_one_wins_and_the_others_say_so(tmp_path: Path) -> None:
    path = tmp_path / "api.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    won: list[socket.socket] = []
    lost: list[UsageError] = []

    def start() -> None:
        try:
            won.append(bind(path))
        except UsageError as error:
            lost.append(error)

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1 and all("another daemon is listening" in error.message for error in lost)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
    won[0].close()


def test_a_file_that_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "api.sock").write_text("mine")
    with pytest.raises(UsageError, match="not a socket"):
        bind(tmp_path / "api.sock")
    assert (tmp_path / "api.sock").read_text() == "mine"
    with pytest.raises(UsageError, match="cannot open the socket"):
        bind(tmp_path / ("x" * 200))


@pytest.mark.parametrize(
    ("text", "address"),
    [("127.0.0.1:80", ("127.0.0.1", 80)), ("[::1]:80", ("::1", 80)), ("box:0", ("box", 0))],
)
def test_addresses_are_read(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["", "80", ":80", "host", "host:http", "host:99999"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_address(text)


def serve_command(*arguments: str, state: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from homebox.cli.main import main; main()", *arguments],
        env=os.environ | {"HOMEBOX_STATE_DIR": str(state)}, capture_output=True, text=True, timeout=20,
    )  # fmt: skip


def test_the_command_checks_before_it_opens_anything(model: Path, tmp_path: Path) -> None:
    missing = serve_command("serve", "--check", "--model", "tiny", state=tmp_path)
    assert (
        missing.returncode == 6 and "models pull tiny" in missing.stderr and "Traceback" not in missing.stderr
    )
    state_with(model, tmp_path)
    assert serve_command("serve", "--check", "--model", "tiny", state=tmp_path).stdout.startswith(
        "ok: model tiny"
    )
    closed = serve_command("serve", "--model", "tiny", "--listen", "127.0.0.1:0", state=tmp_path)
    assert closed.returncode == 2 and "people keys new" in closed.stderr


def test_keys_are_made_listed_and_revoked_by_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOMEBOX_STATE_DIR", str(tmp_path))
    people.new("anna")
    key, warning = capsys.readouterr()
    assert key.startswith("hb_") and "cannot be shown again" in warning
    people.list_keys()
    listed = capsys.readouterr().out
    assert "anna" in listed and key.strip() not in listed and key.split("_")[1] in listed
    people.revoke(key.split("_")[1])
    assert "anna" in capsys.readouterr().out
    people.list_keys()
    assert capsys.readouterr().out == ""


def test_a_socket_that_is_in_use_is_said_in_one_line(model: Path, tmp_path: Path) -> None:
    state_with(model, tmp_path)
    with socket.socket(socket.AF_UNIX) as somebody:
        somebody.bind(str(tmp_path / "api.sock"))
        somebody.listen()
        taken = serve_command(
            "serve", "--model", "tiny", "--socket", str(tmp_path / "api.sock"), state=tmp_path
        )
    assert (
        taken.returncode == 2
        and "another daemon is listening" in taken.stderr
        and "Traceback" not in taken.stderr
    )
