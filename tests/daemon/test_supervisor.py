"""Is an engine's end a pause for everybody but the request that causes it?"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from homebox.daemon.engine_process import EngineProcess
from homebox.daemon.streams import Stream
from homebox.daemon.supervisor import EngineState, Patience, Supervisor
from homebox.errors import EngineFailed, HomeboxError, Unavailable, UsageError
from homebox.wire import frames
from homebox.wire.pause import Pause

SCRIPT = (sys.executable, str(Path(__file__).with_name("scripted_engine.py")))
QUICK = Patience(stall_s=1.0, backoff_s=(0.0, 0.05, 0.1), tries=3, retry_failed_s=0.3)


class Ear:
    """Keeps what a stream's owner would be told."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.logprobs = 0
        self.places: list[tuple[int, tuple[str, ...]]] = []
        self.losses = 0
        self.pauses: list[Pause] = []
        self.ends: list[tuple[str, str, HomeboxError | None]] = []
        self.ended_at = 0.0

    def placed(self, position: int, waiting: int, ahead: tuple[str, ...]) -> None:
        self.places.append((position, ahead))

    def running(self) -> None: ...

    def progressed(self, progress: frames.Progress) -> None:
        self.tokens += progress.tokens
        self.logprobs += len(progress.logprobs)

    def lost(self) -> None:
        self.losses += 1

    def paused(self, pause: Pause) -> None:
        self.pauses.append(pause)

    def ended(self, reason: frames.FinishReason, detail: str, error: HomeboxError | None) -> None:
        self.ends.append((reason, detail, error))
        self.ended_at = time.monotonic()


class Bench:
    """A supervisor with a scripted engine, and the requests put to it."""

    def __init__(self, model: Path, supervisor: Supervisor) -> None:
        self.tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        self.supervisor = supervisor
        self.count = 0

    def ask(
        self, text: str, *, person: str = "anna", max_tokens: int = 20, logprobs: int | None = None
    ) -> tuple[Stream, Ear]:
        self.count += 1
        ear = Ear()
        sampling = frames.Sampling(max_tokens, seed=7, end_tokens=(0, 2), logprobs=logprobs)
        prompt = self.tokenizer.encode(text, add_special_tokens=False).ids
        return self.supervisor.submit(frames.Submit(f"r{self.count}", person, prompt, sampling), ear), ear


async def until(condition: Callable[[], object], within_s: float = 10.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        await asyncio.sleep(0.005)


def run(
    model: Path,
    scenario: Callable[[Bench], Awaitable[None]],
    *,
    max_running: int = 8,
    patience: Patience = QUICK,
    command: tuple[str, ...] = SCRIPT,
) -> None:
    async def main() -> None:
        supervisor = Supervisor(
            frames.Start(str(model), max_running=max_running), command=command, patience=patience
        )
        supervisor.start()
        try:
            await asyncio.wait_for(scenario(Bench(model, supervisor)), 30)
        finally:
            await supervisor.stop()
        assert supervisor.pid is None

    asyncio.run(main())


def test_an_engine_that_was_started_before_the_supervisor_is_its_first_one(model: Path) -> None:
    async def main() -> None:
        early = await EngineProcess.spawn(SCRIPT)
        supervisor = Supervisor(frames.Start(str(model)), command=("/nowhere",), early=early)
        supervisor.start()
        await until(lambda: supervisor.state is EngineState.READY)
        assert supervisor.pid == early.pid
        await supervisor.stop()
        await early.gone()  # whoever started it makes sure, and may do so twice

    asyncio.run(main())


def test_a_box_that_was_paused_lets_an_engine_that_was_started_early_go(model: Path) -> None:
    async def main() -> None:
        early = await EngineProcess.spawn(SCRIPT)
        supervisor = Supervisor(frames.Start(str(model)), command=SCRIPT, early=early)
        supervisor.start(Pause(by="mia", since=0.0))
        assert await early.left(10.0)
        supervisor.resume()
        await until(lambda: supervisor.state is EngineState.READY)
        assert supervisor.pid != early.pid
        await supervisor.stop()

    asyncio.run(main())


def test_a_stream_that_lost_its_engine_goes_on_with_the_same_tokens(model: Path) -> None:
    async def scenario(bench: Bench) -> None:
        _, whole = bench.ask("[[forever]][[pace=10]] a story", logprobs=2)
        await until(lambda: whole.ends)
        _, cut = bench.ask("[[forever]][[pace=10]] a story", logprobs=2)
        await until(lambda: len(cut.tokens) >= 5)
        os.kill(bench.supervisor.pid or 0, signal.SIGKILL)
        await until(lambda: bench.supervisor.state is EngineState.RESTARTING)
        await until(lambda: cut.ends)
        assert cut.losses == 1
        assert cut.tokens == whole.tokens and len(whole.tokens) == 20
        assert cut.logprobs == 20
        assert cut.ends[0][0] == whole.ends[0][0] == "length"
        assert bench.supervisor.restarts == 1

    run(model, scenario)


@pytest.mark.parametrize("death", ["die=4", "die=0", "stall=2", "die_planning"])
def test_a_request_that_kills_every_engine_ends_alone(model: Path, death: str) -> None:
    async def scenario(bench: Bench) -> None:
        neighbours = [bench.ask(f"[[forever]][[pace=5]] a story {i}", max_tokens=80)[1] for i in range(3)]
        await until(lambda: all(ear.tokens for ear in neighbours))
        _, poison = bench.ask(f"[[{death}]][[forever]][[pace=5]] poison", max_tokens=80)
        late: list[Ear] = []
        await until(lambda: bench.supervisor.restarts == 1)
        late.append(bench.ask("[[say=hello]] late")[1])
        await until(lambda: all(ear.ends for ear in [*neighbours, poison, *late]))
        reason, _, error = poison.ends[0]
        assert reason == "error" and isinstance(error, EngineFailed)
        assert [ear.ends[0][0] for ear in neighbours] == ["length"] * 3
        assert [len(ear.tokens) for ear in neighbours] == [80] * 3
        assert late[0].ends[0][0] == "stop"
        # Between steps anybody may have been the cause: only the second such death is the poison's alone.
        assert bench.supervisor.restarts == (3 if death == "die_planning" else 2)

    run(model, scenario)


def test_two_deaths_with_much_written_between_them_end_nobody(model: Path) -> None:
    async def scenario(bench: Bench) -> None:
        ears = [bench.ask(f"[[forever]][[pace=2]] a story {i}", max_tokens=300)[1] for i in range(3)]
        for death in range(2):
            written = [len(ear.tokens) for ear in ears]
            await until(lambda w=written: all(len(e.tokens) > n + 70 for e, n in zip(ears, w, strict=True)))
            os.kill(bench.supervisor.pid or 0, signal.SIGKILL)
            await until(lambda n=death: bench.supervisor.restarts == n + 1)
        await until(lambda: all(ear.ends for ear in ears))
        assert [ear.ends[0][0] for ear in ears] == ["length"] * 3
        assert [len(ear.tokens) for ear in ears] == [300] * 3

    run(model, scenario)


def test_an_engine_is_not_killed_because_the_daemon_itself_stood_still(model: Path) -> None:
    async def scenario(bench: Bench) -> None:
        _, ear = bench.ask("[[forever]][[pace=20]] a story", max_tokens=60)
        await until(lambda: len(ear.tokens) > 2)
        time.sleep(QUICK.stall_s + 0.5)  # noqa: ASYNC251  # as after Ctrl-Z and fg: nothing was read meanwhile
        await until(lambda: ear.ends)
        assert bench.supervisor.restarts == 0 and len(ear.tokens) == 60

    run(model, scenario)


def test_settings_that_no_engine_can_start_with_are_reported_and_not_tried_again(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOMEBOX_SCRIPT_LOAD", "misfit")

    async def scenario(bench: Bench) -> None:
        await asyncio.wait_for(bench.supervisor.hopeless.wait(), 10)
        await until(lambda: bench.supervisor.state is EngineState.FAILED)
        assert isinstance(bench.supervisor.refused, UsageError) and "tpu" in str(bench.supervisor.refused)
        assert bench.supervisor.restarts == 1

    run(model, scenario)


def test_what_listens_to_a_stream_cannot_break_the_house(model: Path) -> None:
    class Broken(Ear):
        def lost(self) -> None:
            raise RuntimeError("a defect in what listens")

    async def scenario(bench: Bench) -> None:
        stream, _ = bench.ask("[[forever]][[pace=5]] a story", max_tokens=100)
        broken = Broken()
        stream.listener = broken
        _, neighbour = bench.ask("[[forever]][[pace=5]] another", max_tokens=100)
        await until(lambda: broken.tokens and neighbour.tokens)
        os.kill(bench.supervisor.pid or 0, signal.SIGKILL)
        await until(lambda: broken.ends and neighbour.ends)
        assert broken.ends[0][0] == "error" and neighbour.ends[0][0] == "length"

    run(model, scenario)


def test_a_single_death_is_survived_by_the_request_that_caused_it(model: Path) -> None:
    async def scenario(bench: Bench) -> None:
        _, ear = bench.ask("[[die_once=3]][[forever]] once", max_tokens=10)
        await until(lambda: ear.ends)
        assert ear.ends == [("length", "", None)] and len(ear.tokens) == 10

    run(model, scenario)


def test_requests_wait_while_the_engine_loads_and_know_their_place(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOMEBOX_SCRIPT_LOAD", f"wait:{tmp_path / 'go'}")

    async def scenario(bench: Bench) -> None:
        first, second = bench.ask("one", person="dad")[1], bench.ask("two", person="leo")[1]
        await until(lambda: bench.supervisor.state is EngineState.LOADING)
        assert first.places[-1] == (1, ()) and second.places[-1] == (2, ("dad",))
        (tmp_path / "go").touch()
        await until(lambda: first.ends and second.ends)

    run(model, scenario)


def test_aborts_are_confirmed_by_the_engine_and_end_once(model: Path) -> None:
    async def scenario(bench: Bench) -> None:
        stream, ear = bench.ask("[[forever]][[pace=10]] on", max_tokens=500)
        await until(lambda: ear.tokens)
        bench.supervisor.abort(stream)
        bench.supervisor.abort(stream)
        await until(lambda: ear.ends)
        assert ear.ends[0][0] == "cancelled" and not bench.supervisor.streams

    run(model, scenario)


def test_an_abort_that_the_engine_ignores_counts_as_a_stall(model: Path) -> None:
    async def scenario(bench: Bench) -> None:
        deaf, ear = bench.ask("[[deaf]][[forever]][[pace=5]] a", max_tokens=900)
        _, other = bench.ask("[[forever]][[pace=5]] b", max_tokens=300)
        await until(lambda: ear.tokens and other.tokens)
        bench.supervisor.abort(deaf)
        await until(lambda: ear.ends and other.ends)
        assert ear.ends[0][0] == "cancelled" and other.ends[0][0] == "length"
        assert bench.supervisor.restarts == 1

    run(model, scenario)


def test_an_aborted_stream_is_not_replayed(model: Path) -> None:
    async def scenario(bench: Bench) -> None:
        stream, ear = bench.ask("[[deaf]][[forever]][[pace=5]] a", max_tokens=900)
        await until(lambda: ear.tokens)
        bench.supervisor.abort(stream)
        os.kill(bench.supervisor.pid or 0, signal.SIGKILL)
        await until(lambda: ear.ends)
        assert ear.ends[0][0] == "cancelled" and ear.losses == 0

    run(model, scenario)


def test_a_refusal_ends_the_request_with_the_engines_own_words(model: Path) -> None:
    async def scenario(bench: Bench) -> None:
        _, ear = bench.ask("[[refuse=context_length_exceeded]]")
        await until(lambda: ear.ends)
        error = ear.ends[0][2]
        assert (
            error is not None
            and error.code == "context_length_exceeded"
            and "refused as told" in error.message
        )

    run(model, scenario)


def test_an_engine_that_never_starts_is_called_failed_with_its_reason_and_tried_again(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOMEBOX_SCRIPT_LOAD", "fail")

    async def scenario(bench: Bench) -> None:
        _, ear = bench.ask("hello")
        await until(lambda: bench.supervisor.state is EngineState.FAILED)
        error = ear.ends[0][2]
        assert isinstance(error, Unavailable) and "the weights are damaged" in error.message
        with pytest.raises(Unavailable):
            bench.ask("again")
        monkeypatch.setenv("HOMEBOX_SCRIPT_LOAD", "")
        await until(lambda: bench.supervisor.state is EngineState.READY)
        _, better = bench.ask("[[say=hello]]")
        await until(lambda: better.ends)
        assert better.ends[0][0] == "stop"

    run(model, scenario)


def test_a_program_that_cannot_be_run_is_reported_in_words(model: Path) -> None:
    async def scenario(bench: Bench) -> None:
        await until(lambda: bench.supervisor.state is EngineState.FAILED)
        assert "cannot be started" in bench.supervisor.detail

    run(model, scenario, command=("/nowhere/engine",))


def test_silence_while_loading_is_not_waited_for_for_ever(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOMEBOX_SCRIPT_LOAD", "hang")

    async def scenario(bench: Bench) -> None:
        await until(lambda: bench.supervisor.state is EngineState.RESTARTING)
        assert "stalled" in bench.supervisor.detail

    run(model, scenario, patience=Patience(loading_s=0.5, backoff_s=(0.05,), stop_s=0.1))


def test_an_idle_engine_is_never_taken_for_stalled(model: Path) -> None:
    async def scenario(bench: Bench) -> None:
        _, ear = bench.ask("[[say=hello]]")
        await until(lambda: ear.ends)
        await asyncio.sleep(0.35)  # the thing under test is that nothing happens in this time
        assert bench.supervisor.restarts == 0

    run(model, scenario, patience=Patience(stall_s=0.1))
