"""What have all engines together found in the prefix cache, and how often did an answer give way?

Each engine begins these counters anew; the monitor and the metrics say them over the whole life of the daemon, so that
none ever goes back and the two agree. It knows only frames.
"""

from __future__ import annotations

from homebox.wire import frames


class PoolTotals:
    def __init__(self) -> None:
        self._before = self._now = (0, 0, 0, 0)

    def hear(self, pool: frames.PoolState) -> None:
        self._now = (
            pool.prefix_hit_tokens,
            pool.prefix_query_tokens,
            pool.preemptions,
            pool.host_hit_tokens,
        )

    def begin_again(self) -> None:
        """The engine that counted is gone."""
        self._before, self._now = self.totals, (0, 0, 0, 0)

    @property
    def totals(self) -> tuple[int, int, int, int]:
        """Hit tokens, query tokens, preemptions, tokens that came back from the host."""
        hits, queries, preemptions, host = (a + b for a, b in zip(self._before, self._now, strict=True))
        return hits, queries, preemptions, host
