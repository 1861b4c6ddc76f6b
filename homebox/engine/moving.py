"""How much of what rests in host memory comes back in one step?

A conversation of many thousand tokens takes a while to copy. Beside people who read it comes back over several steps, so
much in each as they do not notice, and nothing of it is computed meanwhile; where nobody reads it comes at once. What a
move takes is learnt from what moves took.
"""

from __future__ import annotations

_GUESS_MS = 0.1  # of a block, before any was moved
_MEMORY = 0.9  # how much of what was learnt is kept in each step that moves something
_EACH = 2  # a block that comes back may send another one away


class Moving:
    def __init__(self) -> None:
        self._moves, self._ms = 1.0, _GUESS_MS

    def predict_ms(self, moves: int) -> float:
        return moves * self._ms / self._moves

    def within(self, spare_ms: float) -> int:
        """How many blocks may come back in so long; one in any case."""
        return max(1, int(spare_ms / self.predict_ms(_EACH)))

    def observe(self, moves: int, took_ms: float) -> None:
        if moves:
            self._moves = _MEMORY * self._moves + moves
            self._ms = _MEMORY * self._ms + max(took_ms, 1e-3 * moves)
