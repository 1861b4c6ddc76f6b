"""Do status, top, streams and doctor say what the daemon says, and end with the right code?"""

from __future__ import annotations

import json
import signal
import sys
import time
from pathlib import Path

import msgspec
import pytest

from homebox import errors
from homebox.cli import figures
from homebox.cli.doctor.command import CHECKS
from homebox.library.manifest import Manifest
from homebox.wire import events
from tests.cli.conftest import Shell
from tests.cli.test_figures import ROWS, SNAPSHOT
from tests.client.fake_daemon import Exchange, FakeDaemon

READY = {"state": "ready", "model": "tiny", "running": 1, "waiting": 0, "progress": None, "detail": ""}


@pytest.fixture
def box(fake: FakeDaemon) -> FakeDaemon:
    fake.when("GET", "/health", lambda exchange: exchange.json(READY))
    fake.when("GET", "/homebox/monitor", lambda exchange: exchange.json(SNAPSHOT))
    fake.when("GET", "/homebox/streams", lambda exchange: exchange.json({"streams": ROWS}))
    fake.when(
        "DELETE", "/homebox/turns/", lambda exchange: exchange.json({"turn": "t-1", "reason": "cancelled"})
    )
    return fake


def deleted(fake: FakeDaemon) -> list[str]:
    return [asked.path for asked in fake.asked if asked.method == "DELETE"]


# ---- status


def test_status_is_one_line(box: FakeDaemon, homebox: Shell) -> None:
    ran = homebox("status")
    assert (ran.code, ran.out, ran.err) == (0, "ready  tiny  1 running  0 waiting\n", "")
    assert json.loads(homebox("status", "--json").out) == READY
    how = {"engine": {"weights": "int4 and int8", "attention": "native avx2"}}
    box.when("GET", "/health", lambda exchange: exchange.json(READY | how))
    assert homebox("status").out == "ready  tiny  1 running  0 waiting  int4 and int8, native avx2\n"
    how["engine"]["kv"] = "int8"
    assert homebox("status").out.endswith("  int4 and int8, KV in int8, native avx2\n")
    box.when("GET", "/health", lambda exchange: exchange.json({"state": "ready"}))  # what strangers are told
    assert homebox("status").out == "ready  (who asks without a key is told no more: HOMEBOX_KEY)\n"


@pytest.mark.parametrize(
    ("health", "status", "code", "line"),
    [
        (
            {"state": "loading", "model": "tiny", "progress": {"stage": "weights", "done": 3, "total": 4}},
            200,
            0,
            "loading  tiny  weights (75%)",
        ),
        ({"state": "failed", "model": "tiny", "detail": "no memory"}, 503, 1, "failed  tiny  no memory"),
        ({"state": "restarting", "model": "tiny"}, 503, 1, "restarting  tiny"),
        (
            {
                "state": "restarting",
                "model": "tiny",
                "detail": "killed by SIGKILL:\n  no memory",
                "progress": {"stage": "weights", "done": 1, "total": 4},
            },
            503,
            1,
            "restarting (killed by SIGKILL: no memory)  tiny  loading weights (25%)",
        ),
    ],
)
def test_a_box_that_loads_is_fine_and_one_that_lost_its_engine_is_1(
    fake: FakeDaemon, homebox: Shell, health: dict[str, object], status: int, code: int, line: str
) -> None:
    fake.when("GET", "/health", lambda exchange: exchange.json(health, status))
    ran = homebox("status")
    assert (ran.code, ran.out) == (code, line + "\n")


def test_waiting_ends_when_the_model_is_ready(fake: FakeDaemon, homebox: Shell) -> None:
    def third_time(exchange: Exchange) -> None:
        exchange.json(READY if len(fake.asked) > 2 else {"state": "loading", "model": "tiny"})

    fake.when("GET", "/health", third_time)
    ran = homebox("status", "--wait", "10")
    assert ran.code == 0 and ran.out.startswith("ready") and len(fake.asked) == 3


def test_waiting_in_vain_is_4_for_a_model_and_3_for_a_daemon(fake: FakeDaemon, homebox: Shell) -> None:
    fake.when("GET", "/health", lambda exchange: exchange.json({"state": "loading", "model": "tiny"}))
    assert homebox("status", "--wait", "0").code == 4
    fake.stop()
    assert homebox("status", "--wait", "0.1").code == 3


# ---- top


def test_top_once_is_the_monitor(box: FakeDaemon, homebox: Shell) -> None:
    ran = homebox("top", "--once")
    assert ran.code == 0 and ran.out.splitlines()[:-1] == [
        *figures.screen(SNAPSHOT),
        ran.out.splitlines()[-2],
    ]
    assert ran.out.splitlines()[-2].startswith(" at ")
    assert msgspec.json.decode(homebox("top", "--once", "--json").out, type=events.Snapshot) == SNAPSHOT


def test_top_goes_on_with_a_picture_every_interval_until_it_is_stopped(
    box: FakeDaemon, homebox: Shell
) -> None:
    def twice(exchange: Exchange) -> None:
        assert "interval=0.5" in exchange.asked.path
        exchange.begin()
        exchange.line(events.encode(SNAPSHOT) + b"\n")
        exchange.line(events.encode(SNAPSHOT) + b"\n")
        exchange.wait_for_hang_up()

    box.when("GET", "/homebox/monitor", twice)
    process = homebox.start("top", "--jsonl", "--interval", "0.5")
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(2)]
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=10)
    assert process.returncode == 130 and err == ""
    assert [json.loads(line)["version"] for line in lines] == ["0.1.0", "0.1.0"]
    assert box.asked[-1].hung_up.wait(5)


def test_a_row_that_is_not_wanted_is_in_no_output(box: FakeDaemon, homebox: Shell) -> None:
    mine = homebox("top", "--once", "--mine").out
    assert "91c4d0" in mine and "920f1e" not in mine
    assert [
        row["id"] for row in json.loads(homebox("top", "--json", "--filter", "state=wait").out)["streams"]
    ] == ["t-920f1e22"]
    youngest_first = homebox("top", "--once", "--sort", "-age").out
    assert youngest_first.index("920f1e") < youngest_first.index("91c4d0")


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--filter", "user=dad tok_s<ten"], "filter, character 16: 'ten' is not a number"),
        (["--sort", "tokens"], "no column 'tokens' to sort by"),
        (["--json", "--jsonl"], "two different outputs"),
        (["--interval", "0"], "is not between"),
        (["--theme", "pink"], "there is no theme 'pink'"),
    ],
)
def test_what_top_cannot_do_is_said_before_anything_is_drawn(
    box: FakeDaemon, homebox: Shell, args: list[str], says: str
) -> None:
    terminal = homebox.terminal("top", *args)
    code, screen = terminal.end()
    assert code == 2 and says in screen and "\x1b" not in screen


def watched(fake: FakeDaemon) -> None:
    """The monitor's route as it goes on: one snapshot, and then silence."""

    def answer(exchange: Exchange) -> None:
        if "interval" not in exchange.asked.path:
            exchange.json(SNAPSHOT)
            return
        exchange.begin()
        exchange.line(events.encode(SNAPSHOT) + b"\n")
        exchange.wait_for_hang_up()

    fake.when("GET", "/homebox/monitor", answer)


def test_on_a_terminal_top_is_a_screen_that_gives_the_terminal_back(box: FakeDaemon, homebox: Shell) -> None:
    watched(box)
    terminal = homebox.terminal("top", LC_ALL="C.UTF-8")
    terminal.until(r"\x1b\[\?1049h")
    assert "\u2588" in terminal.until("91c4d0")
    terminal.type("q")
    code, screen = terminal.end()
    assert code == 0 and "\x1b[?1049l" in screen and "\x1b[?25h" in screen


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 0)])
def test_however_the_screen_is_ended_the_terminal_is_given_back_in_silence(
    box: FakeDaemon, homebox: Shell, number: signal.Signals, code: int
) -> None:
    watched(box)
    terminal = homebox.terminal("top")
    terminal.until("91c4d0")
    if number is signal.SIGINT:
        terminal.type("\x03")
    else:
        terminal.process.send_signal(number)
    ended, screen = terminal.end()
    assert ended == code and "\x1b[?1049l" in screen and "Traceback" not in screen


@pytest.mark.parametrize("env", [{"LC_ALL": "C"}, {"LC_ALL": "C.UTF-8", "TERM": "linux"}])
def test_a_terminal_that_may_not_show_more_gets_ascii(
    box: FakeDaemon, homebox: Shell, env: dict[str, str]
) -> None:
    watched(box)
    terminal = homebox.terminal("top", **env)
    assert terminal.until("91c4d0").isascii()
    terminal.type("q")
    assert terminal.end()[0] == 0


def test_a_dumb_terminal_gets_a_picture_below_the_other(box: FakeDaemon, homebox: Shell) -> None:
    watched(box)
    terminal = homebox.terminal("top", TERM="dumb")
    shown = terminal.until("Ctrl-C leaves")
    assert "\x1b" not in shown and "*anna" in shown
    terminal.type("\x03")
    assert terminal.end()[0] == 130


def test_without_a_daemon_no_screen_is_opened(homebox: Shell) -> None:
    code, screen = homebox.terminal("top").end()
    assert code == 3 and "no daemon is running" in screen and "\x1b" not in screen


@pytest.mark.parametrize("args", [["--once"], ["--json"], ["--help"]])
def test_what_needs_no_screen_imports_none(box: FakeDaemon, homebox: Shell, args: list[str]) -> None:
    assert not {"textual", "rich", "pygments"} & set(homebox.modules("top", *args))


# ---- streams


def test_streams_list_is_the_table(box: FakeDaemon, homebox: Shell) -> None:
    assert homebox("streams", "list").out.splitlines() == figures.table(ROWS)
    assert [row["id"] for row in json.loads(homebox("streams", "list", "--json").out)] == [
        "t-91c4d0aa",
        "t-920f1e22",
    ]


def test_that_nothing_runs_is_said_on_standard_error(fake: FakeDaemon, homebox: Shell) -> None:
    fake.when("GET", "/homebox/streams", lambda exchange: exchange.json({"streams": []}))
    ran = homebox("streams", "list")
    assert (ran.code, ran.out, ran.err) == (0, "", "homebox: nothing is running\n")


@pytest.mark.parametrize("name", ["t-91c4d0aa", "91c4d0", "t-91"])
def test_ones_own_stream_is_cancelled_at_once_by_any_beginning_of_its_id(
    box: FakeDaemon, homebox: Shell, name: str
) -> None:
    ran = homebox("streams", "cancel", name)
    assert (ran.code, ran.out) == (0, "t-91c4d0aa stopped\n")
    assert deleted(box) == ["/homebox/turns/t-91c4d0aa"]


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (["9"], 2, "'9' begins 2 ids"),
        (["t-nope"], 6, "no request 't-nope'"),
        ([], 2, "say what to stop"),
        (["91c", "--all-mine"], 2, "say what to stop"),
        (["920f1e"], 2, "Add --yes"),
        (["--all-mine"], 2, "Add --yes"),
    ],
)
def test_what_is_not_clear_is_not_cancelled(
    box: FakeDaemon, homebox: Shell, args: list[str], code: int, says: str
) -> None:
    ran = homebox("streams", "cancel", *args)
    assert ran.code == code and says in ran.err and deleted(box) == []


def test_somebody_elses_stream_is_cancelled_after_a_yes(box: FakeDaemon, homebox: Shell) -> None:
    terminal = homebox.terminal("streams", "cancel", "920f1e")
    terminal.until(r"Stop t-920f1e22 \(mia\)\? \[y/N\]: ")
    terminal.type("n\n")
    assert terminal.end()[0] == 0 and deleted(box) == []
    assert homebox("streams", "cancel", "920f1e", "--yes").code == 0
    assert deleted(box) == ["/homebox/turns/t-920f1e22"]


def test_all_of_ones_own_are_cancelled_and_nobody_elses(box: FakeDaemon, homebox: Shell) -> None:
    ran = homebox("streams", "cancel", "--all-mine", "--yes")
    assert ran.code == 0 and deleted(box) == ["/homebox/turns/t-91c4d0aa"]


def test_what_may_not_be_cancelled_is_said_and_the_rest_still_is(box: FakeDaemon, homebox: Shell) -> None:
    def refuse(exchange: Exchange) -> None:
        exchange.error(errors.NotAllowed("t-920f1e22 is mia's"))

    box.when("DELETE", "/homebox/turns/t-920f1e22", refuse)
    ran = homebox("streams", "cancel", "920f1e", "91c4d0", "--yes")
    assert ran.code == 7 and ran.out == "t-91c4d0aa stopped\n" and ran.err.count("t-920f1e22") == 1


def test_a_stream_that_ended_meanwhile_is_no_failure(box: FakeDaemon, homebox: Shell) -> None:
    box.when("DELETE", "/homebox/turns/", lambda exchange: exchange.error(errors.NotFound("no turn")))
    ran = homebox("streams", "cancel", "91c4d0")
    assert (ran.code, ran.out) == (0, "t-91c4d0aa had already ended\n")


# ---- doctor


def install(state: Path, name: str) -> None:
    folder = state / "models" / name
    folder.mkdir(parents=True)
    manifest = Manifest(
        name=name,
        source="test",
        format="gguf",
        architecture="llama",
        quantisation="F32",
        context=128,
        vocab_size=8,
        parameters=1,
        files=[],
    )
    (folder / "manifest.json").write_bytes(msgspec.json.encode(manifest))


def findings(homebox: Shell) -> tuple[int, dict[str, dict[str, object]]]:
    ran = homebox("doctor", "--json")
    found = json.loads(ran.out)
    assert found["ok"] == (ran.code == 0) and ran.err == ""
    return ran.code, {finding["check"]: finding for finding in found["findings"]}


def test_where_all_is_well_the_doctor_says_so(box: FakeDaemon, homebox: Shell, tmp_path: Path) -> None:
    install(tmp_path / "state", "smollm2-135m")
    code, found = findings(homebox)
    assert code == 0, found
    assert list(found) == list(CHECKS)
    assert all(set(finding) <= {"check", "ok", "found", "fix"} for finding in found.values())
    ran = homebox("doctor")
    assert ran.code == 0 and "FAIL" not in ran.out
    assert sum(line.startswith(("ok ", "note")) for line in ran.out.splitlines()) == len(CHECKS)


def test_without_a_daemon_and_a_model_each_has_its_fix(homebox: Shell) -> None:
    code, found = findings(homebox)
    assert code == 1
    assert found["socket"]["fix"] == "Start it with: homebox serve"
    assert found["model"]["fix"] == "homebox models pull smollm2-135m"
    assert found["engine"]["ok"] is False
    assert "FAIL socket" in homebox("doctor").out


@pytest.mark.parametrize(
    ("health", "fix"),
    [
        ({"state": "failed", "detail": "out of memory"}, "Look at the daemon's log"),
        ({"state": "loading"}, "homebox status --wait"),
        ({"state": "paused", "detail": "by anna since 20:14"}, "homebox resume"),
        ({"state": "waiting for the GPU", "detail": "torch sees none"}, "nvidia-smi"),
    ],
)
def test_an_engine_that_is_not_ready_is_found(
    fake: FakeDaemon, homebox: Shell, health: dict[str, object], fix: str
) -> None:
    fake.when("GET", "/health", lambda exchange: exchange.json(health, 503))
    code, found = findings(homebox)
    assert code == 1 and fix in str(found["engine"]["fix"])


def test_a_damaged_model_is_found(box: FakeDaemon, homebox: Shell, tmp_path: Path) -> None:
    install(tmp_path / "state", "smollm2-135m")
    (tmp_path / "state" / "models" / "smollm2-135m" / "manifest.json").write_text("{broken")
    code, found = findings(homebox)
    assert code == 1 and "manifest.json" in str(found["model"]["found"]) and found["model"]["fix"]


def test_a_state_directory_of_somebody_else_is_no_fault_while_their_daemon_answers(
    box: FakeDaemon, homebox: Shell, tmp_path: Path
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    homebox.env["HOMEBOX_STATE_DIR"] = str(blocked)
    assert findings(homebox)[1]["disk"]["ok"] is True
    box.stop()
    disk = findings(homebox)[1]["disk"]
    assert disk["ok"] is False and "cannot be written" in str(disk["found"])


def test_the_doctor_is_quick_and_has_a_word_for_everything_that_is_wrong(
    homebox: Shell, tmp_path: Path
) -> None:
    homebox.env |= {"HOMEBOX_LISTEN": "nonsense", "HOMEBOX_DRAIN_S": "soon"}
    began = time.monotonic()
    code, found = findings(homebox)
    assert time.monotonic() - began < 3 and code == 1
    assert "HOMEBOX_DRAIN_S is 'soon'" in str(found["config"]["found"])
    own = tmp_path / ".config" / "homebox" / "config.toml"
    own.parent.mkdir(parents=True)
    own.write_text("ulr = 1")
    code, found = findings(homebox)
    assert code == 1 and "unknown key 'ulr'" in str(found["client"]["found"])


def test_of_a_box_elsewhere_only_that_is_said_which_can_be_known(homebox: Shell) -> None:
    homebox.env["HOMEBOX_URL"] = "http://127.0.0.1:9"
    code, found = findings(homebox)
    assert code == 1 and list(found) == ["socket", "engine", "version", "clock"]


def test_the_doctor_looks_for_torch_without_importing_it(homebox: Shell) -> None:
    assert "torch" not in homebox.modules("doctor", "--json")
    assert findings(homebox)[1]["torch"]["found"] == f"found for {sys.executable}"
