"""How does a route wait for a turn? A watcher that wakes it whenever the turn has moved."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from homebox.daemon.bell import Bell
from homebox.daemon.turns import Turn, TurnState, Watcher


class Waiter(Watcher):
    def __init__(self) -> None:
        self._bell = Bell()
        self.grew = self.done = self._bell.ring  # type: ignore[method-assign]  # each token comes through here

    async def moved(self, within_s: float | None = None) -> bool:
        """Wait for news since the last call; False if there were none in time."""
        return await self._bell.rung(within_s)

    async def until_done(self, turn: Turn) -> None:
        while turn.state is not TurnState.DONE:
            await self.moved()


async def until_placed(turn: Turn) -> None:
    """Return once the turn has its place in the queue; raise what refused it, if nothing was said yet. Headers go
    out after this, so that a refusal has a status of its own."""
    await turn.placed_once.wait()
    if turn.error and not turn.tokens_out:
        raise turn.error


@contextlib.contextmanager
def while_connected(turn: Turn) -> Iterator[None]:
    """Nobody generates for a client that has left: whatever ends this block, the turn ends with it."""
    try:
        yield
    finally:
        turn.cancel("the client left")
