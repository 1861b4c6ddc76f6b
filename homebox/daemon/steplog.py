"""What did each step of the engine do, and when? One JSON line a step in a file, for benchmarks and for whoever asks
afterwards why an answer stood still. Counts and times only. Opened by the setting `step_log`, off by default."""

from __future__ import annotations

from pathlib import Path

import msgspec

from homebox.errors import UsageError
from homebox.wire.frames import FromEngine, StepDone


class StepLine(msgspec.Struct, frozen=True):
    """`at_s` is CLOCK_MONOTONIC at the launch of the step."""

    step: int
    at_s: float
    step_ms: float
    plan_ms: float
    decode_rows: int
    prefill_tokens: int
    running: int
    waiting: int
    blocks_used: int


class StepLog:
    def __init__(self, path: Path) -> None:
        """Raises UsageError where the file cannot be written."""
        try:
            self._file = path.open("ab", buffering=0)
        except OSError as error:
            raise UsageError(f"step_log: {path}: {error.strerror}") from None

    def frame(self, frame: FromEngine) -> None:
        if not isinstance(frame, StepDone) or not frame.step:
            return
        line = StepLine(
            step=frame.step,
            at_s=frame.started_at,
            step_ms=frame.step_ms,
            plan_ms=frame.plan_ms,
            decode_rows=frame.decode_rows,
            prefill_tokens=frame.prefill_tokens,
            running=frame.running,
            waiting=frame.waiting,
            blocks_used=frame.pool.used,
        )
        self._file.write(msgspec.json.encode(line) + b"\n")
