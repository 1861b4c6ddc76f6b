"""Until something is so: the one way in which the tests of the screens wait."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
DEADLINE_S = 20.0


async def until(condition: Callable[[], T], within_s: float = DEADLINE_S) -> T:
    """The first true value of `condition`, while the loop goes on."""
    deadline = time.monotonic() + within_s
    while not (value := condition()):
        assert time.monotonic() < deadline, "the condition did not come true"
        await asyncio.sleep(0.01)
    return value
