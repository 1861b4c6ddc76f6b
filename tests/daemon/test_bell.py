"""Is whoever waits for news woken once, and told when there were none?"""

from __future__ import annotations

import asyncio

from homebox.daemon.bell import Bell

LONG_S, SHORT_S = 30.0, 0.02


def test_many_rings_before_somebody_looks_are_one_piece_of_news() -> None:
    async def main() -> None:
        bell = Bell()
        for _ in range(3):
            bell.ring()
        assert await bell.rung(LONG_S)
        assert not await bell.rung(SHORT_S)

    asyncio.run(main())


def test_who_waits_hears_a_ring_at_once_and_silence_in_time() -> None:
    async def main() -> None:
        bell = Bell()
        for _ in range(100):  # the timer of an early wait is still set in the later ones
            asyncio.get_running_loop().call_soon(bell.ring)
            assert await bell.rung(LONG_S)
        assert not await bell.rung(SHORT_S)
        asyncio.get_running_loop().call_soon(bell.ring)
        assert await bell.rung(LONG_S)

    asyncio.run(main())


def test_a_wait_outlives_the_timer_of_the_one_before() -> None:
    async def main() -> None:
        bell = Bell()
        asyncio.get_running_loop().call_soon(bell.ring)
        assert await bell.rung(SHORT_S)
        asyncio.get_running_loop().call_later(3 * SHORT_S, bell.ring)  # after the old timer went off
        assert await bell.rung(LONG_S)

    asyncio.run(main())


def test_a_waiter_that_is_given_up_leaves_the_bell_to_the_next() -> None:
    async def main() -> None:
        bell = Bell()
        waiting = asyncio.create_task(bell.rung(LONG_S))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        bell.ring()
        assert await bell.rung(LONG_S)

    asyncio.run(main())
