"""The device runner on a pretended device: whatever is launched, captured, aborted or sent away while steps are in flight,
every text is the one that its prompt determines."""

from __future__ import annotations

import random
from collections import deque
from typing import Any

import pytest

from homebox.engine.blocks import KVSpace
from homebox.engine.device_runner import DeviceRunner
from homebox.engine.scheduler import Limits, Scheduler
from tests.engine import null_device
from tests.engine.fake_device import FakeDevice
from tests.engine.null_device import Greedy, NullDeviceModel
from tests.engine.test_scheduler_storm import BLOCK, CONTEXT, GROUPS, House, live_through

SLOTS, CHUNK = 4, 24


class DeviceHouse(House):
    """A house whose steps a device computes."""

    def _start(self) -> None:
        self.space = KVSpace(self.groups, [self.blocks] * len(self.groups), BLOCK, self.hash_key)
        limits = Limits(CONTEXT, max_running=SLOTS, max_chunk_tokens=CHUNK, horizon_tokens=6)
        self.scheduler = Scheduler(limits, self.space)
        self.device = FakeDevice()
        windows = tuple(group.window for group in self.groups)
        model = NullDeviceModel(windows, self.blocks, BLOCK, CONTEXT)
        self.runner: Any = DeviceRunner(
            self.device, model, Greedy(), slots=SLOTS, chunk=CHUNK, depth=self.depth
        )
        self.flights = deque()

    def _count(self) -> None:
        self.preemptions += self.scheduler.preemptions
        self.hits += self.scheduler.prefix_hit_tokens

    def text(self, prompt: list[int], max_tokens: int, limit: int) -> list[int]:
        return null_device.expected(prompt, max_tokens, limit, [group.window for group in self.groups])


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("groups", [GROUPS[:1], GROUPS], ids=["full", "with a window"])
def test_every_promise_holds_in_a_storm_on_a_device(depth: int, groups: list[Any]) -> None:
    house = DeviceHouse(depth, blocks=20, hash_key=hash, groups=groups)
    live_through(house, random.Random(depth), 2000)
    assert house.preemptions > 0 and house.hits > 0 and len(house.ended) > 60, "the storm was a breeze"
    assert house.device.captures > 3 and house.device.replays > 50
