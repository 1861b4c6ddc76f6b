"""Under a real systemd: does the service start, live, give way and come back as a household may expect?"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from homebox.kernels.cpu import cache
from homebox.kernels.cpu.library import SOURCES
from homebox.service.units import UNITS
from tests.kernels.cpu_builds import needs_compiler

from .conftest import MEMBER, SCRIPTED, STRANGER, Service, until


def ended(asking: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = asking.communicate(timeout=30)
    return asking.returncode, out, err


def test_the_first_question_of_a_member_starts_the_service(service: Service) -> None:
    assert (service.state("homebox.socket"), service.state()) == ("active", "inactive")
    asked = service.homebox("ask", "[[say=hello_there]]", user=MEMBER)
    assert (asked.returncode, asked.stdout) == (0, "hello there\n"), asked.stderr
    assert service.state() == "active"


def test_who_is_not_in_the_group_is_refused_and_told_how_to_get_in(service: Service) -> None:
    refused = service.homebox("ask", "hello", user=STRANGER)
    assert refused.returncode == 7 and "may not open /run/homebox/api.sock" in refused.stderr
    assert f"sudo gpasswd -a {STRANGER} homebox" in refused.stderr
    assert service.state() == "inactive"


def test_it_is_ready_at_once_and_says_how_far_the_model_is_and_who_is_served(service: Service) -> None:
    service.drop_in("load", Environment="HOMEBOX_SCRIPT_LOAD=wait:/var/lib/homebox/go")
    service.machine.path("/var/lib/homebox/go").unlink(missing_ok=True)
    service.machine.ok("systemctl", "start", "homebox.service")  # returns at READY=1
    assert service.health()["state"] in ("starting", "loading")
    until(lambda: service.said().startswith("tiny loading: weights 2/3"))
    service.machine.write("/var/lib/homebox/go", "")
    until(lambda: service.said() == "tiny ready, 0 running, 0 waiting")
    asking = service.begin("[[forever]][[pace=20]]")
    until(lambda: service.said() == "tiny ready, 1 running, 0 waiting")
    assert "tiny ready, 1 running" in service.machine.ok("systemctl", "status", "homebox.service")
    service.cancel_all()
    ended(asking)


def test_a_stopped_engine_is_replaced_and_its_streams_go_on(service: Service) -> None:
    service.start()
    daemon, engine = service.machine.show("homebox.service", "MainPID"), service.health()["engine_pid"]
    asking = service.begin("[[forever]][[pace=10]]", "--max-tokens", "120", "--json")
    service.machine.ok("kill", "-STOP", str(engine))
    until(lambda: service.health().get("restarts") == 1)
    code, out, err = ended(asking)
    assert code == 0 and '"completion_tokens":120' in out.replace(" ", ""), out + err
    assert service.machine.show("homebox.service", "MainPID") == daemon
    assert service.health()["engine_pid"] != engine


def test_a_loop_that_stands_still_trips_the_watchdog_and_the_service_comes_back(service: Service) -> None:
    service.drop_in("watchdog", WatchdogSec="2", RestartSec="100ms")
    service.start()
    asking = service.begin("[[forever]][[pace=20]]")
    question = {"key": "k", "text": "[[forever]][[pace=20]] a chat"}
    assert service.http.post("/homebox/chats/diary/turns", json=question).status_code == 200

    def answer() -> str:
        return str(service.http.get("/homebox/chats/diary").json()["messages"][-1]["content"])

    until(lambda: len(answer()) > 200)  # far more than the quarter of a second that may be lost
    seen = answer()
    service.machine.ok("systemctl", "kill", "--kill-who=main", "--signal=USR1", "homebox.service")
    code, _, err = ended(asking)
    assert code == 3 and "went away" in err
    until(lambda: service.machine.show("homebox.service", "NRestarts") != "0" and service.state() == "active")
    assert service.homebox("ask", "[[say=back_again]]", user=MEMBER).stdout == "back again\n"
    *_, kept = service.http.get("/homebox/chats/diary").json()["messages"]
    assert (kept["state"], kept["detail"]) == ("stopped", "daemon restarted")
    assert kept["content"] and (kept["content"].startswith(seen) or seen.startswith(kept["content"]))
    journal = service.machine.journal()
    assert "Fatal Python error: Aborted" in journal and "in stand_still" in journal


def test_a_service_that_only_waits_is_never_taken_for_one_that_stands_still(service: Service) -> None:
    service.drop_in("watchdog", WatchdogSec="1500ms")
    service.start()
    asking = service.begin("[[forever]][[pace=20]]", "--max-tokens", "125")  # longer than the limit
    assert ended(asking)[0] == 0
    assert service.machine.show("homebox.service", "NRestarts") == "0"


def test_stopping_lets_a_running_answer_finish_and_turns_others_away(service: Service) -> None:
    service.start()
    engine = service.health()["engine_pid"]
    asking = service.begin("[[forever]][[pace=20]]", "--max-tokens", "120", "--json")
    stopping = service.machine.popen("systemctl", "stop", *UNITS, stdout=-1, stderr=-1)
    until(lambda: service.health()["state"] == "draining")
    late = service.http.post("/homebox/ask", json={"messages": [{"role": "user", "content": "hello"}]})
    assert late.status_code == 503 and late.headers["retry-after"] and "going down" in late.text
    code, out, err = ended(asking)
    assert code == 0 and '"completion_tokens":120' in out.replace(" ", ""), out + err
    assert ended(stopping)[0] == 0
    assert (service.state(), service.machine.show("homebox.service", "Result")) == ("inactive", "success")
    assert not service.machine.path(f"/proc/{engine}").exists()


def test_what_does_not_finish_in_time_ends_with_its_text(service: Service) -> None:
    service.configure(model="tiny", drain_s=0.3)
    service.start()
    asking = service.begin("[[forever]][[pace=10]]")
    service.machine.ok("systemctl", "stop", "homebox.service")
    _, out, err = ended(asking)
    assert out.strip() and "the daemon is restarting" in err


def test_a_drain_longer_than_the_units_stop_timeout_gets_its_time(service: Service) -> None:
    service.drop_in("stop", TimeoutStopSec="1")
    service.start()
    asking = service.begin("[[forever]][[pace=20]]", "--max-tokens", "100")
    service.machine.ok("systemctl", "stop", "homebox.service")
    assert ended(asking)[0] == 0
    assert service.machine.show("homebox.service", "Result") == "success"


def test_a_daemon_that_does_not_stop_in_time_is_killed_with_its_engine(service: Service) -> None:
    service.drop_in("stop", TimeoutStopSec="1")
    service.start()
    engine = service.health()["engine_pid"]
    service.machine.ok("systemctl", "kill", "--kill-who=main", "--signal=USR1", "homebox.service")
    service.machine.ok("systemctl", "stop", "homebox.service")
    assert service.machine.show("homebox.service", "Result") == "timeout"
    assert not service.machine.path(f"/proc/{engine}").exists()
    assert service.homebox("ask", "[[say=back]]", user=MEMBER).stdout == "back\n"


def test_a_crash_loop_is_explained_and_reset(service: Service) -> None:
    broken = "/bin/sh -c 'echo the disk is on fire >&2; exit 1'"
    service.drop_in("test", ExecStart=["", broken], RestartSec="10ms")
    assert service.homebox("ask", "hello", user=MEMBER).returncode == 3
    until(lambda: service.machine.show("homebox.socket", "Result") == "service-start-limit-hit")
    said = service.homebox("service", "status")
    assert said.returncode == 1 and said.stdout.startswith("tripped")
    assert "it crashed 5 times within 5min" in said.stderr and "the disk is on fire" in said.stderr
    assert "systemctl reset-failed homebox.service homebox.socket" in said.stderr
    asked = service.homebox("ask", "hello", user=MEMBER)
    assert asked.returncode == 3 and "homebox service status" in asked.stderr
    again = service.homebox("service", "reset")
    assert again.returncode == 1 and "the disk is on fire" in again.stderr
    service.drop_in("test", ExecStart=["", f"/opt/homebox/venv/bin/python {SCRIPTED}"])
    assert service.homebox("service", "reset").stdout.startswith("running")
    assert service.homebox("ask", "[[say=well]]", user=MEMBER).stdout == "well\n"


def test_what_no_restart_would_cure_is_not_restarted(service: Service) -> None:
    service.configure(model="missing")
    refused = service.homebox("service", "restart")
    assert refused.returncode == 1 and "no model 'missing'" in refused.stderr
    assert service.machine.show("homebox.service", "NRestarts") == "0"
    assert "exit status 6" in service.homebox("service", "status").stderr


def test_a_reload_changes_a_limit_while_answers_run(service: Service) -> None:
    service.configure(model="tiny", max_running=1, queue_per_person=5)
    service.start()
    first = service.begin("[[forever]][[pace=20]]")
    second = service.machine.popen("homebox", "ask", "second", user=MEMBER, stdout=-1, stderr=-1)
    until(lambda: service.health()["waiting"] == 1)
    service.configure(model="tiny", max_running=2, queue_per_person=1)
    told = service.homebox("service", "reload")
    assert told.returncode == 0 and "new: queue_per_person" in told.stdout, told.stderr
    assert "needs a restart: max_running" in told.stdout
    third = service.homebox("ask", "third", user=MEMBER)
    assert third.returncode == 5 and f"{MEMBER} has 1 requests waiting" in third.stderr
    assert "the queue holds 1 a person" in third.stderr
    service.cancel_all()
    for asking in (first, second):
        ended(asking)


def test_a_bad_file_leaves_the_old_settings_and_is_said(service: Service) -> None:
    service.start()
    service.machine.write("/etc/homebox/config.toml", "model = 'tiny'\nqueue_per_persom = 3\n")
    refused = service.homebox("service", "reload")
    assert refused.returncode == 2 and "line 2: unknown key 'queue_per_persom'" in refused.stderr
    service.machine.ok("systemctl", "reload", "homebox.service")
    until(lambda: "configuration refused, the old settings hold" in service.said())
    assert service.said().startswith("tiny ready") and service.state() == "active"
    assert "queue_per_persom" in service.machine.journal()
    service.configure(model="tiny", queue_per_person=3)
    assert "new: queue_per_person" in service.homebox("service", "reload").stdout
    assert "refused" not in service.said()


def test_stopping_takes_the_socket_and_nothing_else(service: Service) -> None:
    service.start()
    models = service.machine.path("/var/lib/homebox/models/tiny")
    before = {file.name: file.read_bytes() for file in models.iterdir()}
    assert service.homebox("service", "stop").returncode == 0
    assert service.state("homebox.socket") == "inactive"
    assert not service.machine.path(Service.SOCKET).exists()
    assert {file.name: file.read_bytes() for file in models.iterdir()} == before
    asked = service.homebox("ask", "hello", user=MEMBER)
    assert asked.returncode == 3 and "sudo homebox service start" in asked.stderr
    assert service.homebox("service", "status").returncode == 3


def test_the_socket_outlives_a_service_that_is_stopped_alone(service: Service) -> None:
    service.start()
    service.machine.ok("systemctl", "stop", "homebox.service")
    assert service.machine.path(Service.SOCKET).is_socket()
    assert service.homebox("service", "status").stdout.startswith("listening")
    assert service.homebox("ask", "[[say=here]]", user=MEMBER).stdout == "here\n"


def test_a_restart_refuses_nobody(service: Service) -> None:
    service.start()
    restarting = service.machine.popen("homebox", "service", "restart", stdout=-1, stderr=-1)
    answers = []
    while restarting.poll() is None:
        asked = service.homebox("ask", "--timeout", "20", "[[say=here]]", user=MEMBER)
        answers.append((asked.returncode, asked.stdout, asked.stderr))
    restarting.communicate()
    assert answers and all(
        (code, out) == (0, "here\n") or "going down" in err for code, out, err in answers
    ), answers


@pytest.mark.model
def test_the_real_engine_answers_inside_the_sandbox(service: Service, default_model: Path) -> None:
    folder = service.machine.path("/var/lib/homebox/models") / default_model.name
    if not folder.exists():
        service.machine.path("/var/lib/homebox/models").mkdir(exist_ok=True)
        service.machine.ok("mkdir", "-p", f"/var/lib/homebox/models/{default_model.name}")
        for file in default_model.iterdir():
            (folder / file.name).write_bytes(file.read_bytes())
        service.machine.ok("chown", "-R", "homebox:homebox", "/var/lib/homebox")
    # Compiled here already, most likely; that the sandbox can do it is the next test.
    kernels = service.machine.path("/var/cache/homebox/kernels")
    kernels.mkdir(mode=0o700, parents=True, exist_ok=True)
    for library in cache.folder(os.environ).glob("*.so"):
        (kernels / library.name).write_bytes(library.read_bytes())
    service.machine.ok("chown", "-R", "homebox:homebox", "/var/cache/homebox")
    service.configure(model=default_model.name)
    service.drop_in("test", RestartSec="100ms")  # the program is the real one again
    asked = service.homebox("ask", "--max-tokens", "8", "--timeout", "60", "Name a colour.", user=MEMBER)
    assert asked.returncode == 0 and asked.stdout.strip(), asked.stderr
    until(lambda: service.said().startswith(f"{default_model.name} ready"))  # said at most once a second


COMPILING = """
import os
from pathlib import Path
from homebox.kernels.cpu.library import decide
print("kernels:", decide(Path("/opt/tiny-kernels"), os.environ, lambda *_: None))
"""


@needs_compiler
def test_kernels_are_compiled_and_loaded_inside_the_sandbox_and_kept_where_the_service_may_write(
    service: Service,
) -> None:
    service.machine.write("/opt/tiny-kernels/level.cpp", (SOURCES / "level.cpp").read_text())
    service.machine.write("/opt/tiny-kernels/compile.py", COMPILING)
    service.drop_in("compile", ExecStartPre="/opt/homebox/venv/bin/python /opt/tiny-kernels/compile.py")
    service.start()
    (said,) = [line for line in service.machine.journal().splitlines() if "kernels: " in line]
    assert "Native(" in said and "/var/cache/homebox/kernels/homebox-cpu-" in said
