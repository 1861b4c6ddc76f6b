"""Does everything go on after a time without an engine, whoever wanted it to be away and whatever happens meanwhile?"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
import time
from itertools import product
from pathlib import Path

import pytest

from homebox.daemon.engine_state import CLOSED, DORMANT, EngineState, Happened, after
from homebox.daemon.patience import Patience
from homebox.errors import Paused, Unavailable
from homebox.wire.pause import Pause

from .test_serve import alive
from .test_supervisor import QUICK, Bench, Ear, run, until

S = EngineState
LONG_S = 20.0


def pause(**fields: object) -> Pause:
    return Pause(by="anna", since=time.time(), **fields)  # type: ignore[arg-type]


async def whole_of(bench: Bench, text: str, max_tokens: int = 40) -> list[int]:
    """What the answer is when nothing disturbs it."""
    _, ear = bench.ask(text, max_tokens=max_tokens)
    await until(lambda: ear.ends)
    return ear.tokens


# ---- the table


def test_nothing_leads_out_of_stopped_and_only_wanting_leads_out_of_a_pause() -> None:
    for state, what in product(S, Happened):
        if state is S.STOPPED:
            assert after(state, what) is S.STOPPED
        if state is S.PAUSED and what not in (Happened.WANTED, Happened.STOPPED):
            assert after(state, what) is S.PAUSED
        if state is S.UNLOADED and what not in (Happened.WANTED, Happened.STOPPED, Happened.PAUSED):
            assert after(state, what) is S.UNLOADED


def test_a_pause_is_possible_in_every_state_of_a_running_daemon() -> None:
    for state in S:
        if state not in (S.STOPPED, S.READY, S.PAUSING):
            assert after(state, Happened.PAUSED) is S.PAUSED
    assert after(S.READY, Happened.PAUSED) is S.PAUSING
    assert after(S.PAUSING, Happened.DRAINED) is after(S.PAUSING, Happened.DIED) is S.PAUSED


# ---- pauses


def test_a_pause_lets_what_runs_finish_refuses_what_is_new_and_ends_the_process(model: Path) -> None:
    async def scenario(bench: Bench) -> None:
        box = bench.supervisor
        _, ear = bench.ask("[[forever]][[pace=10]] a story", max_tokens=30)
        await until(lambda: ear.tokens)
        pid, way = box.pid or 0, asyncio.create_task(box.pause(pause(reason="a game"), LONG_S))
        assert box.state is S.PAUSING
        with pytest.raises(Paused, match=r"paused by anna since .*: a game") as refused:
            bench.ask("late")
        assert refused.value.retry_after_s == 60 and "homebox resume" in (refused.value.hint or "")
        assert len(ear.tokens) < 30
        await way
        assert [end[0] for end in ear.ends] == ["length"] and len(ear.tokens) == 30 and not ear.pauses
        assert box.state is S.PAUSED and box.pid is None and not alive(pid)
        box.resume()
        assert await whole_of(bench, "[[say=hello]]")
        assert box.restarts == 0

    run(model, scenario)


def test_what_is_not_finished_is_held_and_goes_on_with_the_same_tokens(model: Path) -> None:
    async def scenario(bench: Bench) -> None:
        box, texts = bench.supervisor, [f"[[forever]][[pace=10]] story {i}" for i in range(3)]
        whole = [await whole_of(bench, text) for text in texts]
        ears = [bench.ask(text, max_tokens=40)[1] for text in texts]
        await until(lambda: sum(len(ear.tokens) > 3 for ear in ears) == 2)  # the third has to wait
        held = pause()
        await box.pause(held, 0.0)
        assert box.pid is None and [len(ear.ends) for ear in ears] == [0] * 3
        assert [ear.pauses for ear in ears] == [[held]] * 3 and not any(ear.losses for ear in ears)
        assert not any(stream.blocks for stream in box.streams)
        box.resume()
        await until(lambda: all(ear.ends for ear in ears))
        assert [ear.tokens for ear in ears] == whole
        assert not any(stream.deaths for stream in box.streams) and box.restarts == 0

    run(model, scenario, max_running=2)


def test_a_second_pause_with_now_cuts_the_waiting_of_the_first(model: Path) -> None:
    async def scenario(bench: Bench) -> None:
        box = bench.supervisor
        _, ear = bench.ask("[[forever]][[pace=10]] a story", max_tokens=500)
        await until(lambda: ear.tokens)
        first = asyncio.create_task(box.pause(pause(), LONG_S))
        await box.pause(pause(reason="now"), 0.0)
        await first
        assert box.state is S.PAUSED and box.pid is None and box.paused and box.paused.reason == "now"

    run(model, scenario)


def test_resuming_while_it_pauses_keeps_the_engine(model: Path) -> None:
    async def scenario(bench: Bench) -> None:
        box = bench.supervisor
        _, ear = bench.ask("[[forever]][[pace=10]] a story", max_tokens=60)
        await until(lambda: ear.tokens)
        pid, way = box.pid, asyncio.create_task(box.pause(pause(), LONG_S))
        await asyncio.sleep(0)
        box.resume()
        await way
        assert box.state is S.READY and box.pid == pid and box.paused is None
        await until(lambda: ear.ends)
        assert len(ear.tokens) == 60 and not ear.pauses and not ear.losses

    run(model, scenario)


def test_resuming_before_the_old_process_is_gone_starts_a_new_one_after_it(model: Path) -> None:
    async def scenario(bench: Bench) -> None:
        box = bench.supervisor
        _, ear = bench.ask("[[forever]][[pace=100]] a story", max_tokens=10)
        await until(lambda: ear.tokens)
        old, way = box.pid or 0, asyncio.create_task(box.pause(pause(), 0.0))
        await until(lambda: box.state is S.PAUSED)
        assert box.pid == old, "it is still in its step"
        box.resume()
        assert box.state is S.STARTING
        await way
        await until(lambda: box.state is S.READY)
        assert box.pid != old and not alive(old)
        await until(lambda: ear.ends)
        assert len(ear.tokens) == 10 and box.restarts == 0

    run(model, scenario)


def test_a_crash_during_the_drain_completes_the_pause_and_the_answer_goes_on_after_it(model: Path) -> None:
    async def scenario(bench: Bench) -> None:
        box = bench.supervisor
        whole = await whole_of(bench, "[[forever]][[pace=10]] a story")
        _, ear = bench.ask("[[forever]][[pace=10]] a story", max_tokens=40)
        await until(lambda: len(ear.tokens) > 3)
        way = asyncio.create_task(box.pause(pause(), LONG_S))
        os.kill(box.pid or 0, signal.SIGKILL)
        await way
        assert box.state is S.PAUSED and box.pid is None and len(ear.pauses) == 1
        box.resume()
        await until(lambda: ear.ends)
        assert ear.tokens == whole

    run(model, scenario)


def test_a_pause_ends_a_back_off_and_a_resume_needs_none(model: Path) -> None:
    async def scenario(bench: Bench) -> None:
        box = bench.supervisor
        await until(lambda: box.state is S.READY)
        os.kill(box.pid or 0, signal.SIGKILL)
        await until(lambda: box.state is S.RESTARTING and box.pid is None)
        await box.pause(pause(), LONG_S)
        assert box.state is S.PAUSED
        box.resume()
        assert await whole_of(bench, "[[say=hello]]")

    run(model, scenario, patience=Patience(backoff_s=(60.0,)))


def test_a_pause_while_the_model_loads_holds_who_waits_for_it(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOMEBOX_SCRIPT_LOAD", f"wait:{tmp_path / 'go'}")

    async def scenario(bench: Bench) -> None:
        box = bench.supervisor
        _, ear = bench.ask("[[say=hello]]")
        await until(lambda: box.state is S.LOADING)
        pid = box.pid or 0
        await box.pause(pause(), LONG_S)
        assert box.state is S.PAUSED and not alive(pid) and box.loading is None and ear.pauses
        (tmp_path / "go").touch()
        box.resume()
        await until(lambda: ear.ends)
        assert ear.ends[0][0] == "stop" and box.restarts == 0

    run(model, scenario)


def test_a_held_answer_can_be_stopped_at_once(model: Path) -> None:
    async def scenario(bench: Bench) -> None:
        stream, ear = bench.ask("[[forever]][[pace=5]] a story", max_tokens=500)
        await until(lambda: ear.tokens)
        await bench.supervisor.pause(pause(), 0.0)
        bench.supervisor.abort(stream)
        assert [end[0] for end in ear.ends] == ["cancelled"] and not bench.supervisor.streams

    run(model, scenario)


@pytest.mark.parametrize("kill", [True, False])
def test_a_daemon_that_stops_while_paused_ends_what_it_holds(model: Path, kill: bool) -> None:
    async def scenario(bench: Bench) -> None:
        _, ear = bench.ask("[[forever]][[pace=5]] a story", max_tokens=500)
        await until(lambda: ear.tokens)
        await bench.supervisor.pause(pause(), 0.0)
        await asyncio.wait_for(bench.supervisor.stop(kill=kill), 5)
        assert [end[0] for end in ear.ends] == ["cancelled"] and bench.supervisor.state is S.STOPPED
        with pytest.raises(Unavailable, match="stopping"):
            bench.ask("late")

    run(model, scenario)


def test_a_box_that_starts_paused_starts_no_engine_until_it_is_resumed(model: Path) -> None:
    from homebox.daemon.supervisor import Supervisor
    from homebox.wire import frames

    from .test_supervisor import SCRIPT

    async def main() -> None:
        box = Supervisor(frames.Start(str(model)), command=SCRIPT, patience=QUICK)
        box.start(pause())
        assert box.state is S.PAUSED
        box.resume()
        assert await whole_of(Bench(model, box), "[[say=hello]]")
        await box.stop()

    asyncio.run(main())


# ---- idle


def test_an_unused_engine_leaves_and_the_next_request_brings_it_back(model: Path) -> None:
    async def scenario(bench: Bench) -> None:
        box = bench.supervisor
        before = await whole_of(bench, "[[forever]] a story")
        await until(lambda: box.idle_s > 0.05)
        pid = box.pid or 0
        await box.unload()
        assert box.state is S.UNLOADED and not alive(pid) and box.load_s and box.idle_s == 0
        assert await whole_of(bench, "[[forever]] a story") == before
        assert box.pid != pid and box.restarts == 0

    run(model, scenario)


def test_a_request_that_comes_while_the_engine_leaves_is_served_by_the_next(model: Path) -> None:
    async def scenario(bench: Bench) -> None:
        box = bench.supervisor
        await until(lambda: box.state is S.READY)
        leaving = asyncio.create_task(box.unload())
        await until(lambda: box.state is S.UNLOADED)
        _, ear = bench.ask("[[say=hello]]")
        await leaving
        await until(lambda: ear.ends)
        assert ear.ends[0][0] == "stop" and not ear.losses

    run(model, scenario)


def test_an_engine_with_a_live_stream_is_never_unloaded(model: Path) -> None:
    async def scenario(bench: Bench) -> None:
        _, ear = bench.ask("[[forever]][[pace=5]] a story", max_tokens=500)
        await until(lambda: ear.tokens)
        assert bench.supervisor.idle_s == 0
        await bench.supervisor.unload()
        assert bench.supervisor.state is S.READY

    run(model, scenario)


def test_stopping_an_unloaded_box_and_pausing_it_work(model: Path) -> None:
    async def scenario(bench: Bench) -> None:
        box = bench.supervisor
        await until(lambda: box.state is S.READY)
        await box.unload()
        await asyncio.wait_for(box.pause(pause(), LONG_S), 1)
        assert box.state is S.PAUSED
        box.resume()
        await until(lambda: box.state is S.READY)
        await box.unload()
        await asyncio.wait_for(box.stop(), 1)

    run(model, scenario)


# ---- a device that is not there


def test_a_device_that_appears_late_is_waited_for_with_everybody_who_asks_meanwhile(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setenv("HOMEBOX_SCRIPT_LOAD", f"no_device:{tmp_path / 'gpu'}")

    async def scenario(bench: Bench) -> None:
        box = bench.supervisor
        await until(lambda: box.state is S.NO_DEVICE)
        _, ear = bench.ask("[[say=hello]]")
        pids = {box.pid}
        await until(lambda: pids.add(box.pid) or len(pids - {None}) > QUICK.tries + 1)
        assert box.state is S.NO_DEVICE and "sees no GPU" in box.detail and not ear.ends
        (tmp_path / "gpu").touch()
        await until(lambda: ear.ends)
        assert ear.ends[0][0] == "stop" and box.restarts == 0 and not box.hopeless.is_set()
        told = [record for record in caplog.records if "sees no GPU" in record.message]
        assert len(told) == 1, "hours without a GPU do not fill the log"

    run(model, scenario, patience=Patience(device_s=0.02, tries=QUICK.tries))


def test_who_had_a_gpu_waits_for_it_when_it_is_lost_and_is_not_served_by_the_processor(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = tmp_path / "gpu"
    gpu.touch()
    monkeypatch.setenv("HOMEBOX_SCRIPT_LOAD", f"gpu:{gpu}")

    async def scenario(bench: Bench) -> None:
        box = bench.supervisor
        await until(lambda: box.state is S.READY)
        assert box.ready and box.ready.device.startswith("cuda:0")
        gpu.unlink()
        assert box.pid
        os.kill(box.pid, signal.SIGKILL)
        await until(lambda: box.state is S.NO_DEVICE)
        _, ear = bench.ask("[[say=hello]]")
        assert "cuda:0" in box.detail and not ear.ends
        gpu.touch()
        await until(lambda: ear.ends)
        assert ear.ends[0][0] == "stop" and box.ready and box.ready.device.startswith("cuda:0")

    run(model, scenario, patience=Patience(device_s=0.02, tries=QUICK.tries))


def test_a_box_that_waits_for_its_device_can_be_paused_and_stopped(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOMEBOX_SCRIPT_LOAD", f"no_device:{tmp_path / 'gpu'}")

    async def scenario(bench: Bench) -> None:
        box = bench.supervisor
        await until(lambda: box.state is S.NO_DEVICE)
        await asyncio.wait_for(box.pause(pause(), LONG_S), 5)
        assert box.state in DORMANT
        (tmp_path / "gpu").touch()
        box.resume()
        await until(lambda: box.state is S.READY)

    run(model, scenario, patience=Patience(device_s=60.0))


# ---- everything at once


def test_whatever_order_they_come_in_every_answer_ends_whole_and_one_engine_is_left(model: Path) -> None:
    rng = random.Random(5)

    async def scenario(bench: Bench) -> None:
        box, texts = bench.supervisor, [f"[[forever]][[pace=3]] story {i}" for i in range(3)]
        whole = [await whole_of(bench, text) for text in texts]
        ears: list[tuple[int, Ear]] = []
        tasks: list[asyncio.Task[None]] = []
        for _ in range(60):
            what = rng.choice(["ask", "ask", "pause", "now", "resume", "resume", "unload", "replace"])
            if what == "ask" and box.state not in CLOSED:
                i = rng.randrange(3)
                ears.append((i, bench.ask(texts[i], max_tokens=40)[1]))
            elif what in ("pause", "now"):
                tasks.append(asyncio.create_task(box.pause(pause(), 0.0 if what == "now" else 0.05)))
            elif what == "resume":
                box.resume()
            elif what == "unload":
                tasks.append(asyncio.create_task(box.unload()))
            elif what == "replace":
                tasks.append(asyncio.create_task(box.replace("the machine slept")))
            await asyncio.sleep(rng.choice([0, 0, 0.001, 0.02, 0.1]))
        box.resume()
        await until(lambda: all(ear.ends for _, ear in ears), within_s=20)
        await asyncio.wait_for(asyncio.gather(*tasks), 5)
        assert ears and all(ear.tokens == whole[i] and len(ear.ends) == 1 for i, ear in ears)
        assert await whole_of(bench, texts[0]) == whole[0] and box.paused is None

    run(model, scenario)


# ---- a machine that slept


def test_replacing_an_engine_is_nobodys_fault_and_everybody_goes_on(model: Path) -> None:
    async def scenario(bench: Bench) -> None:
        box = bench.supervisor
        whole = await whole_of(bench, "[[forever]][[pace=10]] a story")
        for deaths in range(3):  # more often than a request may die with its engine
            _, ear = bench.ask("[[forever]][[pace=10]] a story", max_tokens=40)
            await until(lambda ear=ear: len(ear.tokens) > 3)
            await box.replace("the machine slept")
            assert box.state is S.RESTARTING and "slept" in box.detail
            await until(lambda ear=ear: ear.ends)
            assert ear.tokens == whole and ear.losses == 1 and box.restarts == deaths + 1

    run(model, scenario)
