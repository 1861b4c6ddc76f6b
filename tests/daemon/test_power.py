"""Pausing, sleeping and waking, seen from the box's socket: who is told what, and does every answer go on?"""

from __future__ import annotations

import json
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from homebox.daemon.keys import Keys
from homebox.daemon.pause_file import PauseFile
from homebox.daemon.sleep import SleepWatch
from homebox.wire import events
from homebox.wire.pause import Pause

from .box import QUICK, Box, read_events, running, text_of, until
from .test_serve import alive, served

STORY = "[[forever]][[pace=10]] a story"


def health(box: Any) -> dict[str, Any]:
    return box.http.get("/health").json()  # type: ignore[no-any-return]


def pause(box: Any, **body: Any) -> httpx.Response:
    return box.http.post("/homebox/pause", json=body)  # type: ignore[no-any-return]


def resume(box: Any) -> httpx.Response:
    return box.http.post("/homebox/resume", json={})  # type: ignore[no-any-return]


def paused(box: Any) -> bool:
    found = health(box)
    return found["state"] == "paused" and not found["engine_pid"]


def stream_openai(box: Box, content: str, **fields: Any) -> str:
    text = ""
    body = {"model": "tiny", "messages": [{"role": "user", "content": content}], "stream": True, **fields}
    with box.client() as http, http.stream("POST", "/v1/chat/completions", json=body) as response:
        for line in response.iter_lines():
            if line.startswith("data: {"):
                text += json.loads(line[6:])["choices"][0]["delta"].get("content") or ""
    return text


# ---- pausing with people at work


def test_a_pause_holds_every_dialects_answers_frees_the_engine_and_they_end_as_if_undisturbed(
    box: Box,
) -> None:
    whole = text_of(box.ask(STORY, max_tokens=90, seed=3))
    with ThreadPoolExecutor(1) as pool:
        turn = box.detach(STORY, max_tokens=90, seed=3)
        other = pool.submit(stream_openai, box, STORY, max_tokens=90, seed=3)
        until(lambda: sum(row["tokens_out"] > 3 for row in box.streams()) == 2)
        engine = health(box)["engine_pid"]
        began = pause(box, now=True, reason="game\n night").json()
        assert began["state"] in ("pausing", "paused") and began["live"] == 2 and began["changed"]
        until(lambda: paused(box))
        assert not alive(engine)
        now = box.snapshot()
        assert now.engine == "paused" and ": game night" in now.engine_detail and now.waiting == 2
        assert [row.blocks for row in now.streams] == [0, 0] and now.blocks is None
        assert [row.state for row in now.streams] == ["held", "held"]
        assert resume(box).json()["changed"]
        told = box.events(turn)
        assert text_of(told) == whole == other.result()
    (notice,) = [event for event in told if isinstance(event, events.Paused)]
    assert notice.pause.reason == "game night" and 3 < notice.safe_tokens < 90
    assert not any(isinstance(event, events.EngineLost) for event in told)
    assert until(box.idle) and box.snapshot().engine_restarts == 0


def test_a_pause_lets_running_answers_finish_first(model: Path, tmp_path: Path) -> None:
    with running(model, tmp_path, drain_s=20.0) as box:
        turn = box.detach(STORY, max_tokens=90)
        until(lambda: box.tokens(turn) > 3)
        assert pause(box).json()["state"] == "pausing"
        assert health(box)["state"] == "pausing" and box.chat("hello").status_code == 503
        told = box.events(turn)
        assert isinstance(told[-1], events.Finished) and told[-1].reason == "length"
        assert not any(isinstance(event, events.Paused) for event in told)
        until(lambda: paused(box))


def test_what_does_not_finish_within_the_drain_is_held(model: Path, tmp_path: Path) -> None:
    with running(model, tmp_path, drain_s=0.2) as box:
        turn = box.detach(STORY, max_tokens=500)
        until(lambda: box.tokens(turn) > 3)
        pause(box)
        until(lambda: paused(box))
        assert box.tokens(turn) > 3
        box.http.delete(f"/homebox/turns/{turn}")
        last = box.events(turn)[-1]
        assert isinstance(last, events.Finished) and last.reason == "cancelled", "a held one can be stopped"


def test_while_paused_everything_refuses_with_who_since_when_until_when_and_what_to_do(box: Box) -> None:
    pause(box, for_s=3600, reason="a render")
    until(lambda: paused(box))
    for refused in (
        box.chat("hello"),
        box.http.post("/v1/completions", json={"prompt": "hello"}),
        box.http.post("/homebox/ask", json={"messages": [{"role": "user", "content": "hello"}]}),
        box.say("chat1", "hello", key="1"),
    ):
        error = refused.json()["error"]
        said = f"{error['message']} {error.get('hint')}"
        assert refused.status_code == 503 and error["code"] == "paused"
        assert 3500 < int(refused.headers["retry-after"]) <= 3600
        assert "paused by root since " in said and ", until " in said and ": a render" in said
        assert "homebox resume" in said
    sick = box.http.get("/health")
    assert sick.status_code == 503 and 3500 < int(sick.headers["retry-after"]) <= 3600
    assert sick.json()["pause"]["by"] == "root" and sick.json()["pause"]["reason"] == "a render"
    assert box.http.get("/v1/models").status_code == 200
    resume(box)
    until(box.ready)
    assert health(box)["pause"] is None and box.chat("[[say=hello]]").status_code == 200
    assert resume(box).json()["changed"] is False


def test_a_pause_with_a_time_ends_by_itself(box: Box) -> None:
    pause(box, for_s=0.3)
    until(lambda: health(box)["state"] == "paused")
    until(box.ready)
    assert text_of(box.ask("[[say=hello]]")) == "hello"


@pytest.mark.parametrize(
    "body", [{"for_s": 0}, {"for_s": -1}, {"for_s": 1e12}, {"reason": "x" * 201}, {"fo": 1}]
)
def test_a_pause_that_cannot_be_meant_is_refused_and_nothing_happens(box: Box, body: dict[str, Any]) -> None:
    assert pause(box, **body).status_code == 400
    assert health(box)["state"] == "ready"


def test_a_key_from_elsewhere_may_neither_pause_nor_resume(model: Path, tmp_path: Path) -> None:
    key = Keys(tmp_path).new("anna")
    with running(model, tmp_path, listen="127.0.0.1:0") as box:
        headers = {"Authorization": f"Bearer {key}"}
        for what in ("pause", "resume"):
            refused = httpx.post(f"{box.address}/homebox/{what}", json={}, headers=headers)
            assert refused.status_code == 403 and "homebox pause" in refused.json()["error"]["hint"]
        assert health(box)["state"] == "ready"
        pause(box)
        until(lambda: paused(box))
        public = httpx.get(f"{box.address}/health")
        assert public.status_code == 503 and public.json() == {"state": "paused"}, "no names without a key"


# ---- over the life of the daemon


def test_a_daemon_that_was_killed_while_paused_is_still_paused_refuses_and_resumes(
    model: Path, tmp_path: Path
) -> None:
    with served(model, tmp_path) as daemon:
        daemon.engine()
        pause(daemon, reason="a game")
        until(lambda: paused(daemon))
        daemon.process.kill()
    with served(model, tmp_path) as daemon:
        assert paused(daemon) and "a game" in health(daemon)["detail"]
        refused = daemon.ask("hello")
        assert refused.status_code == 503 and "a game" in refused.json()["error"]["message"]
        assert resume(daemon).json()["state"] == "starting"
        assert text_of(read_events(daemon.ask("[[say=hello]]").content)) == "hello"
        daemon.process.kill()
    with served(model, tmp_path) as daemon:
        assert daemon.engine(), "a pause that has ended does not come back"


def test_a_daemon_that_is_told_to_leave_while_paused_does_not_wait_for_what_it_holds(
    model: Path, tmp_path: Path
) -> None:
    with served(model, tmp_path, drain_s=60) as daemon:
        thread, told = daemon.in_background(STORY, max_tokens=900)
        pause(daemon, now=True)
        until(lambda: paused(daemon))
        daemon.process.send_signal(signal.SIGTERM)
        assert daemon.process.wait(10) == 0
        thread.join()
        assert isinstance(told[-1], events.Finished) and told[-1].reason == "cancelled" and text_of(told)


def test_a_pause_file_that_cannot_be_read_is_no_pause_and_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = PauseFile(tmp_path)
    for content in (b"", b"\xff", b'{"by": 1}', b"{}", b"[1]"):
        file.path.write_bytes(content)
        caplog.clear()
        assert file.read() is None and "not paused" in caplog.text


def test_a_pause_file_keeps_everything_and_forgets_what_is_over(tmp_path: Path) -> None:
    file, now = PauseFile(tmp_path), time.time()
    lasting = Pause(by="anna", since=now, until=now + 60, reason="a game")
    file.write(lasting)
    assert file.read() == lasting and sorted(tmp_path.iterdir()) == [file.path]
    file.write(Pause(by="anna", since=now - 60, until=now - 1))
    assert file.read() is None
    file.remove()
    file.remove()
    assert not file.path.exists()


def test_a_pause_that_cannot_be_kept_is_refused_with_the_reason(box: Box, tmp_path: Path) -> None:
    (tmp_path / "pause.json").mkdir()
    refused = pause(box)
    assert refused.status_code == 507 and "pause.json" in refused.json()["error"]["message"]
    assert health(box)["state"] == "ready"


# ---- idle


def test_an_idle_box_unloads_says_so_and_comes_back_with_the_next_request(
    model: Path, tmp_path: Path
) -> None:
    with running(model, tmp_path, idle_unload_s=0.3) as box:
        engine = health(box)["engine_pid"]
        until(lambda: box.snapshot().engine == "unloaded" and not alive(engine))
        well = box.http.get("/health")
        assert well.status_code == 200 and well.json()["state"] == "unloaded"
        assert "the next request loads the model, in about" in well.json()["detail"]
        assert text_of(box.ask("[[say=hello]]")) == "hello"
        assert health(box)["engine_pid"] not in (None, engine) or box.snapshot().engine == "unloaded"


def test_a_long_answer_is_not_idleness(model: Path, tmp_path: Path) -> None:
    with running(model, tmp_path, idle_unload_s=0.1) as box:
        told = box.ask("[[forever]][[pace=50]] slow", max_tokens=10)
        assert isinstance(told[-1], events.Finished) and told[-1].reason == "length"
        assert not any(isinstance(event, events.EngineLost) for event in told)


def test_resuming_an_unloaded_box_loads_it(model: Path, tmp_path: Path) -> None:
    with running(model, tmp_path, idle_unload_s=0.3) as box:
        until(lambda: box.snapshot().engine == "unloaded")
        assert resume(box).json() | {"drain_s": 0} == {
            "state": "starting", "changed": True, "live": 0, "drain_s": 0, "pause": None,
        }  # fmt: skip


# ---- sleep


class Clocks:
    boot = mono = 100.0

    def watch(self) -> SleepWatch:
        return SleepWatch(lambda: self.boot, lambda: self.mono)


def test_a_sleep_is_seen_once_and_a_second_more_or_less_is_none() -> None:
    clocks = Clocks()
    watch = clocks.watch()
    clocks.boot, clocks.mono = 160.0, 160.0
    assert watch.slept_s() == 0
    clocks.boot = 164.0
    assert watch.slept_s() == 0
    clocks.boot += 3600
    assert watch.slept_s() == 3604 and watch.slept_s() == 0


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_after_a_suspend_an_engine_on_a_gpu_is_replaced_and_every_answer_goes_on(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    monkeypatch.setenv("HOMEBOX_SCRIPT_DEVICE", device)
    with running(model, tmp_path, idle_unload_s=2.0) as box:  # it looks four times as often as that is long
        whole = text_of(box.ask(STORY, max_tokens=90, seed=3))
        clocks = Clocks()
        box.house.power._sleep = clocks.watch()
        turn = box.detach(STORY, max_tokens=90, seed=3)
        until(lambda: box.tokens(turn) > 3)
        engine = health(box)["engine_pid"]
        clocks.boot += 3600
        told = box.events(turn)
        assert text_of(told) == whole
        lost = any(isinstance(event, events.EngineLost) for event in told)
        assert (lost, alive(engine)) == ((True, False) if device == "cuda:0" else (False, True))


# ---- a device that is late


def test_a_gpu_that_appears_late_is_waited_for_and_everybody_can_see_why(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOMEBOX_SCRIPT_LOAD", f"no_device:{tmp_path / 'gpu'}")
    with running(model, tmp_path, ready=False, patience=replace(QUICK, device_s=0.05)) as box:
        sick = until(lambda: (h := box.http.get("/health")).json()["state"] == "waiting for the GPU" and h)
        assert sick.status_code == 503
        until(lambda: "sees no GPU" in health(box)["detail"])
        turn = box.detach("[[say=hello]]")
        (tmp_path / "gpu").touch()
        assert text_of(box.events(turn)) == "hello" and box.ready()


# ---- the owner's cap


def test_the_owners_cap_on_answers_holds_in_every_dialect_and_says_length(
    model: Path, tmp_path: Path
) -> None:
    with running(model, tmp_path, max_answer_tokens=7) as box:
        for wish in ({}, {"max_tokens": 500}):
            chat = box.chat("[[forever]]", **wish).json()
            plain = box.http.post("/v1/completions", json={"prompt": "[[forever]]", **wish}).json()
            for answer in (chat, plain):
                assert answer["choices"][0]["finish_reason"] == "length"
                assert answer["usage"]["completion_tokens"] == 7
            told = box.ask("[[forever]]", **wish)[-1]
            said = box.events(box.say("c", "[[forever]]", key=str(wish), options=wish).json()["turn"])[-1]
            for last in (told, said):
                assert isinstance(last, events.Finished) and last.reason == "length"
                assert last.usage.completion_tokens == 7
        newer = box.chat("[[forever]]", max_completion_tokens=500).json()
        assert newer["usage"]["completion_tokens"] == 7
        assert box.chat("[[forever]]", max_tokens=3).json()["usage"]["completion_tokens"] == 3
