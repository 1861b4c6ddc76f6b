"""What did a benchmark find? The report as `--json` writes it, and how figures of rounds become one.

The schema is in docs/bench.md; `SCHEMA` grows when a field changes its meaning. A figure that could not be had is null.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from homebox.bench.figures import median

SCHEMA = 1
Way = Literal["one", "static", "continuous"]
WAYS: tuple[Way, ...] = ("one", "static", "continuous")
TITLES: dict[Way, str] = {"one": "one at a time", "static": "static batches", "continuous": "continuous"}


class Used(msgspec.Struct, frozen=True):
    """How busy the server was: means over the samples of the phase, `_most` their highest."""

    device: str = ""  # gpu or cpu, as the daemon's monitor has it
    device_percent: float | None = None
    machine_cpu_percent: float | None = None  # of all cores of this machine, with this client's own work
    running: float | None = None  # answers in the batch
    waiting: float | None = None
    step_ms: float | None = None
    blocks: float | None = None
    blocks_most: int | None = None
    blocks_total: int | None = None


class Figures(msgspec.Struct, frozen=True):
    """One phase. Percentiles are over all answers of the phase."""

    tok_s: float  # output tokens / wall time
    ttft_p50_ms: float | None
    ttft_p95_ms: float | None
    gap_p50_ms: float | None  # between deliveries of one stream
    gap_p95_ms: float | None
    wall_s: float
    requests: int
    tokens: int
    asked_tokens: int  # more than `tokens` where the server ended answers early
    prompt_tokens: float | None  # of one prompt, mean
    used: Used


class Row(msgspec.Struct, frozen=True):
    """One way of asking at one number of streams. Each figure of `median` is the median of the rounds' own."""

    way: Way
    streams: int
    median: Figures
    rounds: list[Figures]


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """`server`, `load` and `machine` are what was measured, with what, and on what."""

    schema: int = SCHEMA
    homebox: str  # version of this program
    at: float  # unix seconds
    machine: dict[str, Any]
    server: dict[str, Any]
    load: dict[str, Any]
    rows: list[Row] = []
    quality: dict[str, Any] | None = None
    notes: list[str] = []

    @property
    def quantisation(self) -> str:
        """Of the file, and of what is computed with; as far as the server says."""
        file, weights = self.server.get("quantisation"), (self.server.get("engine") or {}).get("weights")
        return " as ".join(str(part) for part in (file, weights) if part)


def middle(rounds: Sequence[Figures]) -> Figures:
    """Field by field the median of those rounds that have the figure."""
    return msgspec.convert(_middle([msgspec.to_builtins(each) for each in rounds]), Figures, strict=False)


def _middle(values: Sequence[Any]) -> Any:
    known = [value for value in values if value is not None]
    if not known or isinstance(known[0], str):
        return known[0] if known else None
    if isinstance(known[0], dict):
        return {name: _middle([value[name] for value in known]) for name in known[0]}
    found = median(known)
    return round(found) if isinstance(known[0], int) else found


def encode(report: Report) -> str:
    return msgspec.json.format(msgspec.json.encode(report), indent=1).decode()
