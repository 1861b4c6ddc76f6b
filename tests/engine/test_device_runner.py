"""The device runner on a pretended device: whatever is launched, captured, aborted or sent away while steps are in flight,
every text is the one that its prompt determines."""

from __future__ import annotations

import itertools
import math
import random
from collections import deque
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test
from msgspec.structs import replace

from homebox.engine.blocks import KVSpace
from homebox.engine.device_runner import DeviceRunner
from homebox.engine.plan import Admission, Row, StepPlan, TableChange
from homebox.engine.scheduler import Limits, Scheduler
from homebox.kernels.host import HostBlocks
from homebox.wire.frames import Progress, Sampling, Submit
from tests.engine import null_device
from tests.engine.fake_device import FakeDevice, Lost
from tests.engine.null_device import Greedy, NullDeviceModel
from tests.engine.test_scheduler_storm import BLOCK, CONTEXT, GROUPS, House, Machine, live_through

SLOTS, CHUNK = 4, 24


class DeviceHouse(House):
    """A house whose steps a device computes."""

    def _start(self) -> None:
        blocks = [self.blocks] * len(self.groups)
        self.space = KVSpace(self.groups, blocks, BLOCK, self.hash_key, host_slots=self.host)
        limits = Limits(
            CONTEXT, max_running=SLOTS, max_chunk_tokens=CHUNK, horizon_tokens=6, moves_beside=True
        )
        self.scheduler = Scheduler(limits, self.space)
        self.device = FakeDevice(self.fails)
        windows = tuple(group.window for group in self.groups)
        self.model = model = NullDeviceModel(windows, self.blocks, BLOCK, CONTEXT)
        self.runner: Any = DeviceRunner(
            self.device,
            model,
            Greedy(),
            slots=SLOTS,
            chunk=CHUNK,
            depth=self.depth,
            host=HostBlocks(model, self.host) if self.host else None,
        )
        self.flights = deque()

    def fails(self, site: str) -> str | None:
        return None

    def _count(self) -> None:
        self.preemptions += self.scheduler.preemptions
        self.hits += self.scheduler.prefix_hit_tokens
        self.brought += self.space.brought_tokens

    def text(self, prompt: list[int], max_tokens: int, limit: int) -> list[int]:
        return null_device.expected(prompt, max_tokens, limit, [group.window for group in self.groups])


@pytest.mark.parametrize(("depth", "groups"), [(1, GROUPS[:1]), (2, GROUPS)], ids=["one", "ahead"])
def test_every_promise_holds_in_a_storm_on_a_device(depth: int, groups: list[Any]) -> None:
    house = DeviceHouse(depth, blocks=20, hash_key=hash, groups=groups)
    live_through(house, random.Random(depth), 500)
    assert house.preemptions > 0 and house.hits > 0 and len(house.ended) > 20, "the storm was a breeze"
    assert house.device.captures > 3 and house.device.replays > 50


def test_every_promise_holds_with_a_host_tier_on_a_device() -> None:
    house = DeviceHouse(2, blocks=20, hash_key=hash, groups=GROUPS, host=30)
    live_through(house, random.Random(3), 450)
    assert house.preemptions > 0 and house.brought > 0 and len(house.ended) > 20, "the storm was a breeze"


class DeviceMachine(Machine):
    house_type = DeviceHouse


TestDeviceMachine = DeviceMachine.TestCase
TestDeviceMachine.settings = settings(
    max_examples=12, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


class Tight(DeviceHouse):
    """Memory is there for so many tokens at once, and no more."""

    MOST = 8

    def fails(self, site: str) -> str | None:
        return (
            "out of memory"
            if site in ("run", "capture", "replay") and self.model.tokens > self.MOST
            else None
        )


class Unlucky(DeviceHouse):
    """Memory runs out for a moment, or the device is lost, now and then and anywhere."""

    def __init__(self, failing: str, seed: int, **house: Any) -> None:
        self.failing, self.odds, self.failed, self.quiet = failing, random.Random(seed), 0, 0
        self.lost, self.often = 0, 0.1 if failing == "out of memory" else 0.02
        super().__init__(**house)

    def _start(self) -> None:
        self.armed = False
        super()._start()
        self.armed = True

    def fails(self, site: str) -> str | None:
        # What has been given already needs no memory.
        spared = ("upload", "download", "replay", "wait", "beside") if self.failing == "out of memory" else ()
        if not self.armed or site in spared:
            return None
        self.quiet -= 1  # a moment later there is memory again, for one try at least
        if self.quiet > 0 or self.odds.random() > self.often:
            return None
        self.failed += 1
        self.quiet = 8
        return self.failing

    def launch(self) -> None:
        try:
            super().launch()
        except Lost:
            self.lost += 1
            self.crash()

    def collect(self) -> None:
        try:
            super().collect()
        except Lost:
            self.lost += 1
            self.crash()


def test_where_memory_is_short_steps_become_smaller_and_nothing_else_changes() -> None:
    house = Tight(2, blocks=20, hash_key=hash, groups=GROUPS)
    live_through(house, random.Random(5), 250)
    assert house.scheduler.limits.max_chunk_tokens < CHUNK, "the scheduler was meant to be told"
    assert len(house.ended) > 10 and "error" not in house.ended.values()


@pytest.mark.parametrize("failing", ["out of memory", "lost"])
def test_a_fault_anywhere_loses_no_answer(failing: str) -> None:
    house = Unlucky(failing, seed=4, depth=2, blocks=20, hash_key=hash, groups=GROUPS)
    live_through(house, random.Random(6), 350)
    assert house.failed > 5 and len(house.ended) > 10 and "error" not in house.ended.values()
    assert (house.lost > 5) == (failing == "lost"), (
        "who is short of memory for a moment goes on; who is lost starts anew"
    )


class FailsOnce(DeviceHouse):
    """At the n-th place that takes memory, once, so many operations after its work began."""

    def __init__(self, place: int, after: int) -> None:
        self.left, self.at, self.after = place, "", after
        super().__init__(2, blocks=20, hash_key=hash, groups=GROUPS[:1])

    def _start(self) -> None:
        super()._start()
        self.device.after = self.after

    def fails(self, site: str) -> str | None:
        if site not in ("host", "make", "run", "capture"):
            return None
        self.left -= 1
        if self.left == 0:
            self.at = site
            return "out of memory"
        return None

    def _take(self, progress: list[Progress]) -> None:
        for p in progress:  # the run without a fault says what is right
            self.received[p.id] += p.tokens
            if p.finish:
                self._end(p.id, p.finish)

    def answers(self) -> dict[str, list[int]]:
        """To requests that ask for all that takes memory."""
        wishes: list[dict[str, Any]] = [
            {}, {"presence_penalty": 5.0, "repetition_penalty": 1.5}, {"logprobs": 2}, {"prompt_logprobs": 1},
        ]  # fmt: skip
        for i, wish in enumerate(wishes):
            sampling = Sampling(max_tokens=8, temperature=0.0, end_tokens=(null_device.END,), **wish)
            self.submit(Submit(f"r{i}", "abc"[i % 3], [(i * 7 + j) % 45 for j in range(3 + 9 * i)], sampling))
            self.launch()
        self.finish()
        return self.received


@pytest.mark.parametrize("after", [0, 30])
def test_memory_may_run_out_once_at_every_single_place(after: int) -> None:
    right = FailsOnce(0, after).answers()
    assert len(right["r1"]) > 3 and right["r1"] != right["r0"]
    places: list[str] = []
    for place in itertools.count(11):  # the first are the runner's own, before anybody is served
        house = FailsOnce(place, after)
        assert house.answers() == right, (place, house.at)
        if house.left > 0:
            break
        places.append(house.at)
    assert len(places) > 15 and set(places) == {"run", "capture", "host", "make"}


class Breaks(NullDeviceModel):
    """Its states are no numbers."""

    def states(self, *step: Any) -> torch.Tensor:
        return super().states(*step) * math.nan


def test_what_comes_back_into_a_block_that_is_cleared_comes_after_that() -> None:
    device, model = FakeDevice(), Breaks((None,), 4, BLOCK, CONTEXT)
    host = HostBlocks(model, 1)
    runner = DeviceRunner(device, model, Greedy(), slots=1, chunk=CHUNK, host=host)
    device.early = 1.0
    (block,) = blocks = (2,)
    model.memories[0][0][block] = 77
    sampling = Sampling(max_tokens=4, temperature=0.0)
    row = Row("a", 0, 0, 0, 0, BLOCK, tuple(range(BLOCK)), sample=True)
    first = StepPlan(
        1, (row,), (Admission(0, sampling, (), ()),), (TableChange(0, 0, 0, blocks),), 0, BLOCK, BLOCK, BLOCK, 0,
        0.0, moved_out=((0, block, 0),),
    )  # fmt: skip
    assert "not a number" in runner.collect(runner.launch(first)).outcomes[0].error
    # Clearing is given to the device, and not done yet.
    elsewhere = (TableChange(0, 0, 0, (3,)),)
    back = replace(first, step=2, admitted=(), tables=elsewhere, moved_out=(), moved_in=((0, block, 0),))
    runner.collect(runner.launch(back))
    assert (model.memories[0][0][block] == 77).all()


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_three_hundred_lives_on_a_device_break_no_promise() -> None:
    run_state_machine_as_test(DeviceMachine, settings=settings(TestDeviceMachine.settings, max_examples=300))


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("failing", ["", "out of memory", "lost"])
@pytest.mark.parametrize("host", [0, 12], ids=["no tier", "a small tier"])
def test_every_promise_holds_for_a_long_life_on_a_device(failing: str, host: int) -> None:
    common: dict[str, Any] = {"depth": 2, "blocks": 20, "hash_key": hash, "groups": GROUPS, "host": host}
    house = Unlucky(failing, seed=8, **common) if failing else DeviceHouse(**common)
    live_through(house, random.Random(9), 12_000)
    assert len(house.ended) > 1000
