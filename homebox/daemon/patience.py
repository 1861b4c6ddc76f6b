"""How long is waited for what, and when is the next engine tried after one has ended?"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Patience:
    """How long is waited for what, in seconds."""

    stall_s: float = 10.0  # a live stream exists and no frame comes: this, or
    stall_factor: float = 20.0  # so many times what the running step was predicted to take
    loading_s: float = 120.0  # no frame while loading
    backoff_s: tuple[float, ...] = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
    healthy_s: float = 60.0  # ready for so long: the next death starts the back-off from its beginning
    tries: int = 5  # deaths before ready, in a row, until it is called failed
    retry_failed_s: float = 30.0
    device_s: float = 5.0  # a device that is not there is looked for every so often
    stop_s: float = 5.0


class Retries:
    """One engine has ended after the other: what does that say about the next?"""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._rapid = 0  # ends without a healthy time between them
        self.failures = 0  # ends before ready, in a row

    def ended(self, ready_for_s: float | None) -> float:
        """Count an end; None if that engine was never ready. Returns the seconds until the next is tried."""
        patience = self._patience
        self.failures = self.failures + 1 if ready_for_s is None else 0
        if ready_for_s is not None and ready_for_s >= patience.healthy_s:
            self._rapid = 0
        wait_s = patience.backoff_s[min(self._rapid, len(patience.backoff_s) - 1)]
        self._rapid += 1
        return patience.retry_failed_s if self.hopeless else wait_s

    @property
    def hopeless(self) -> bool:
        return self.failures >= self._patience.tries
