"""Does the daemon start, listen and leave as a process should?"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import httpx
import psutil
import pytest

from homebox import config
from homebox.cli import people
from homebox.daemon import logs
from homebox.daemon.keys import Keys
from homebox.daemon.listen import bind, parse_address
from homebox.daemon.serve import run
from homebox.daemon.supervisor import Patience
from homebox.errors import UsageError
from homebox.wire import events
from tests import forks
from tests.forks import COMMAND, SERVER, Fork

from .box import SCRIPT, read_events, state_with, text_of, until

SERVE = str(Path(__file__).with_name("serve_scripted.py"))


class Process:
    def __init__(self, process: subprocess.Popen[str], path: Path) -> None:
        self.process, self.path = process, path
        self.http = httpx.Client(
            transport=httpx.HTTPTransport(uds=str(path), verify=False), base_url="http://box", timeout=20
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
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with Fork(command, imports=SERVER, **pipes) as process:
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


def test_an_engine_that_can_never_start_ends_the_daemon_with_what_it_said(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOMEBOX_SCRIPT_LOAD", "misfit")
    socket_path = tmp_path / "run" / "api.sock"
    settings = config.Settings(
        state_dir=str(state_with(model, tmp_path)), socket=str(socket_path), model="tiny"
    )
    with pytest.raises(UsageError, match="not supported yet"):
        asyncio.run(asyncio.wait_for(run(settings, command=SCRIPT), 10))
    assert not socket_path.exists()


def test_a_signal_while_the_model_loads_waits_for_nothing(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOMEBOX_SCRIPT_LOAD", "hang")
    with served(model, tmp_path) as daemon:
        engine = daemon.engine()
        daemon.process.send_signal(signal.SIGTERM)
        assert daemon.process.wait(Patience().stop_s - 1) == 0 and not alive(engine)


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
    env = os.environ | {"HOMEBOX_STATE_DIR": str(state)}
    return forks.run([*COMMAND, *arguments], imports=SERVER, env=env, text=True, timeout=20)


def test_the_command_checks_before_it_opens_anything(model: Path, tmp_path: Path) -> None:
    missing = serve_command("serve", "--check", "--model", "tiny", state=tmp_path)
    assert missing.returncode == 6 and "no model 'tiny'" in missing.stderr
    assert "homebox models list" in missing.stderr and "models pull tiny" not in missing.stderr
    default = serve_command("serve", "--check", state=tmp_path)
    assert default.returncode == 6 and "homebox models pull smollm2-135m" in default.stderr
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
    monkeypatch.setenv("HOMEBOX_SOCKET", str(tmp_path / "no.sock"))
    people.new("anna")
    key, warning = capsys.readouterr()
    assert key.startswith("hb_") and "cannot be shown again" in warning
    people.list_keys()
    listed = capsys.readouterr().out
    assert "anna" in listed and key.strip() not in listed and key.split("_")[1] in listed
    people.revoke(key.split("_")[1])
    assert "anna" in capsys.readouterr().out
    people.list_keys()
    nothing = capsys.readouterr()
    assert nothing.out == "" and "nobody has a key" in nothing.err


def test_a_key_that_cannot_be_shown_is_taken_back(tmp_path: Path) -> None:
    for target in (">/dev/full", ">&-"):
        script = f"exec {sys.executable} -c 'from homebox.cli.main import main; main()' people keys new anna {target}"
        done = subprocess.run(
            ["sh", "-c", script],
            env=os.environ
            | {"HOMEBOX_STATE_DIR": str(tmp_path), "HOMEBOX_SOCKET": str(tmp_path / "no.sock")},
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
        assert done.returncode == 1 and "it was taken back" in done.stderr
        assert Keys(tmp_path).all() == []


SETTINGS = [
    ("device", "tpu"),
    ("device", "cuda:first"),
    ("kv_memory", "lots"),
    ("kv_memory", "0"),
    ("kv_memory", "1KiB"),
    ("kv_memory", "5000GiB"),
    ("kv_host_memory", "some"),
    ("kv_host_memory", "5000GiB"),
    ("socket", "/tmp/" + "x" * 120),
    ("drain_s", -5),
    ("drain_s", float("nan")),
    ("threads", 5000),
    ("max_context", 10),
    ("max_context", -1),
    ("kv_type", "int4"),
    ("quantize", "bf16"),
    ("kernels", "fast"),
    ("log_format", "xml"),
    ("max_running", 0),
    ("attention", "flash"),
    ("max_running", 1_000_000),
    ("max_chunk_tokens", 0),
    ("max_answer_tokens", -1),
    ("queue_total", 0),
    ("allowed_origins", ["*"]),
]


@pytest.mark.parametrize(("key", "value"), SETTINGS)
def test_a_value_that_no_daemon_could_run_with_names_its_key_and_where_it_was_said(
    tmp_path: Path, key: str, value: object
) -> None:
    file = tmp_path / "config.toml"
    file.write_text(f"{key} = {json.dumps(value) if isinstance(value, str) else value}\n")
    for said, loading in (
        (f"{file}: {key}", partial(config.load, config=file, environ={})),
        (f"HOMEBOX_{key.upper()}", partial(config.load, environ={f"HOMEBOX_{key.upper()}": str(value)})),
        (f"--{key.replace('_', '-')}", partial(config.load, {key: value}, environ={})),
    ):
        with pytest.raises(UsageError) as caught:
            loading(root=tmp_path / "none")
        assert caught.value.message.startswith(said), caught.value.message


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("kv_memory = 5", 'kv_memory is 5; it must be text in quotes, like "2GiB"'),
        ('max_running = "many"', "max_running is 'many'; it must be a whole number"),
        ("max_running = true", "max_running is True; it must be a whole number"),
        ('drain_s = "long"', "drain_s is 'long'; it must be a number"),
        ("allowed_hosts = 1", "allowed_hosts is 1; it must be a list"),
        ("allowed_hosts = [1]", "allowed_hosts is [1]; it must be text"),
    ],
)
def test_a_value_of_the_wrong_kind_is_said_in_a_persons_words(tmp_path: Path, line: str, says: str) -> None:
    file = tmp_path / "config.toml"
    file.write_text(line)
    with pytest.raises(UsageError) as caught:
        config.load(config=file, environ={})
    assert caught.value.message.startswith(f"{file}: {says}")


def test_values_at_the_edges_are_taken(tmp_path: Path) -> None:
    kept = {
        "max_running": 1,
        "threads": 0,
        "max_context": 16,
        "drain_s": 0,
        "kv_memory": "1MiB",
        "kv_host_memory": "0",
        "device": "cpu",
    }
    settings = config.load(kept, environ={}, root=tmp_path).settings
    assert {key: getattr(settings, key) for key in kept} == kept


def test_the_check_refuses_what_serve_would_refuse(model: Path, tmp_path: Path) -> None:
    state_with(model, tmp_path)
    for arguments in (["--device", "tpu"], ["--max-running", "0"], ["--listen", "nowhere"]):
        for check in ([], ["--check"]):
            refused = serve_command("serve", "--model", "tiny", *arguments, *check, state=tmp_path)
            assert refused.returncode == 2 and arguments[1] in refused.stderr, refused.stderr


@pytest.mark.parametrize("inside", ["", "deeper", "deeper/still"])
def test_a_state_directory_that_cannot_be_written_is_said_by_everything_that_needs_it(
    tmp_path: Path, inside: str
) -> None:
    (tmp_path / "file").write_text("no directory")
    state = tmp_path / "file" / inside if inside else tmp_path / "file"
    for command in (
        ["serve"],
        ["serve", "--check"],
        ["people", "keys", "new", "anna"],
        ["models", "pull", "smollm2-135m"],
        ["doctor"],
    ):
        done = serve_command(*command, state=state)
        said = f"the state directory {state} cannot be written: "
        assert said in done.stdout + done.stderr and "HOMEBOX_STATE_DIR" in done.stdout + done.stderr
        assert done.returncode == (1 if command == ["doctor"] else 2)


def test_looking_whether_the_state_directory_can_be_written_leaves_nothing(tmp_path: Path) -> None:
    config.check_state_dir(tmp_path / "a" / "b")
    assert list(tmp_path.iterdir()) == []


def test_a_hint_stays_within_the_line_of_its_record(capsys: pytest.CaptureFixture[str]) -> None:
    log = logging.getLogger("homebox.engine")
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        logs.configure("text")
        log.warning("the engine is gone: %s; %d live", "no room\n  Make some.", 0)
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
    assert capsys.readouterr().err.endswith(
        " warning engine: the engine is gone: no room - Make some.; 0 live\n"
    )


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


def test_who_has_heard_the_end_of_an_answer_is_not_told_that_the_daemon_goes_down(
    model: Path, tmp_path: Path
) -> None:
    with served(model, tmp_path, drain_s=2) as daemon:
        ask = {"messages": [{"role": "user", "content": "[[forever]][[deaf]][[pace=10]]"}], "detach": True}
        turn = daemon.http.post("/homebox/ask", json=ask).json()["turn"]
        until(lambda: any(row["tokens_out"] for row in daemon.http.get("/homebox/streams").json()["streams"]))
        # The engine never confirms this abort: the answer is over for its reader, and its blocks are not free.

        def withdraw() -> None:
            with contextlib.suppress(httpx.HTTPError):  # it waits for the blocks until the daemon is gone
                daemon.http.delete(f"/homebox/turns/{turn}")

        cancel = threading.Thread(target=withdraw)
        cancel.start()
        before = read_events(daemon.http.get(f"/homebox/turns/{turn}/events").content)
        assert isinstance(before[-1], events.Finished)
        daemon.process.send_signal(signal.SIGTERM)
        until(lambda: daemon.http.get("/health").json()["state"] == "draining")
        assert read_events(daemon.http.get(f"/homebox/turns/{turn}/events").content) == before
        daemon.process.send_signal(signal.SIGTERM)
        assert daemon.process.wait(10) == 0
        cancel.join()


def test_a_second_daemon_for_the_same_state_is_refused(model: Path, tmp_path: Path) -> None:
    with served(model, tmp_path) as daemon:
        elsewhere = ["--model", "tiny", "--socket", str(tmp_path / "other.sock")]
        second = serve_command("serve", *elsewhere, state=tmp_path)
        assert second.returncode == 5
        assert f"process {daemon.process.pid} works on the state directory" in second.stderr
        assert daemon.http.get("/health").status_code == 200


def test_long_documents_read_side_by_side_leave_no_memory_behind(model: Path, tmp_path: Path) -> None:
    with served(model, tmp_path) as daemon:
        until(lambda: daemon.http.get("/health").json()["state"] == "ready")
        memory = psutil.Process(daemon.process.pid).memory_info

        def paste() -> int:
            document = {"model": "tiny", "prompt": "a long word " * 6_000}
            with Process(daemon.process, daemon.path).http as http:
                return http.post("/v1/completions", json=document).status_code

        assert paste() == 400  # what is loaded at the first request is loaded
        before = memory().rss
        with ThreadPoolExecutor(6) as people:
            assert {answer.result() for answer in [people.submit(paste) for _ in range(6)]} == {400}
        assert memory().rss < before + 32 * 2**20
