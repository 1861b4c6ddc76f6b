"""How does a plan become numbers?

`launch(plan) -> handle`, `collect(handle) -> result`: the loop may launch the next step before it reads this one. The
runner keeps what must not travel with every plan: the model, the KV memory, and for each slot its block tables, how its
tokens are chosen and which token came last, so that a step can be launched whose input nobody has read back yet.

On the CPU a launch computes at once and the handle is the result; the order of calls is all that the interface promises.
"""

from __future__ import annotations

import math
import time
from typing import NamedTuple

import torch

from homebox.engine.plan import Outcome, Row, StepPlan, StepResult, TableChange
from homebox.engine.sampler import NOT_A_NUMBER, SlotState, choose, scores
from homebox.kernels.attention import Attention, BatchShape
from homebox.kernels.sampling import REFERENCE, SamplingKernel
from homebox.model.decoder import Decoder
from homebox.model.native import NativeDecoder
from homebox.wire.frames import TokenLogprob


class Handle(NamedTuple):
    result: StepResult


class Runner:
    def __init__(
        self,
        decoder: Decoder | NativeDecoder,
        attention: Attention,
        slots: int,
        sampling: SamplingKernel = REFERENCE,
    ) -> None:
        width = -(-decoder.spec.context // attention.cache.block_size)
        self._decoder = decoder
        self._attention = attention
        self._sampling = sampling
        self._slots: list[SlotState | None] = [None] * slots
        self._last_tokens = [0] * slots
        self._tables = tuple(torch.zeros(slots, width, dtype=torch.int32) for _ in attention.windows)
        self._device = decoder.device

    def launch(self, plan: StepPlan) -> Handle:
        """Start the step. Raises what the device raises: the caller treats that as the end of this engine."""
        started = time.perf_counter()
        for admission in plan.admitted:
            self._slots[admission.slot] = SlotState(admission)
        with torch.inference_mode():
            self._change_tables(plan.tables)
            outcomes = self._run(plan.rows)
        return Handle(StepResult(plan.step, tuple(outcomes), (time.perf_counter() - started) * 1e3))

    def collect(self, handle: Handle) -> StepResult:
        """Wait for the step and read back what it made."""
        return handle.result

    def measure(self, tokens: int) -> float:
        """Milliseconds of a step of `tokens` prompt tokens of nobody, written where a later step writes anyway: what
        the step-time model knows before the first request. Also brings the weights into memory."""
        size = -(-tokens // self._block_size())
        groups = len(self._attention.windows)
        shape = BatchShape.of([0], [tokens], [[range(size)]] * groups)
        started = time.perf_counter()
        with torch.inference_mode():
            self._attention.plan(shape)
            ids = torch.zeros(tokens, dtype=torch.int64, device=self._device)
            hidden = self._decoder.forward(ids, torch.arange(tokens, device=self._device), self._attention)
            self._decoder.logits(hidden[-1:])
        return (time.perf_counter() - started) * 1e3

    def _block_size(self) -> int:
        return self._attention.cache.block_size

    def _change_tables(self, changes: tuple[TableChange, ...]) -> None:
        for change in changes:
            end = change.index + len(change.blocks)
            self._tables[change.group][change.slot, change.index : end] = torch.tensor(
                change.blocks, dtype=torch.int32
            )

    def _run(self, rows: tuple[Row, ...]) -> list[Outcome]:
        ids: list[int] = []
        positions: list[int] = []
        for row in rows:
            ids += row.tokens or (self._last_tokens[row.slot],)
            positions += range(row.start, row.start + row.count)
        self._attention.plan(
            BatchShape(
                slots=torch.tensor([row.slot for row in rows], dtype=torch.int32),
                starts=torch.tensor([row.start for row in rows], dtype=torch.int32),
                counts=torch.tensor([row.count for row in rows], dtype=torch.int32),
                tables=self._tables,
            )
        )
        hidden = self._decoder.forward(
            torch.tensor(ids, device=self._device),
            torch.tensor(positions, device=self._device),
            self._attention,
        )
        return self._outcomes(rows, hidden)

    def _outcomes(self, rows: tuple[Row, ...], hidden: torch.Tensor) -> list[Outcome]:
        ends: list[int] = []
        prompt_scores: list[tuple[TokenLogprob, ...]] = []
        offset = 0
        broken = self._broken(rows, hidden)
        for row in rows:
            prompt_scores.append(self._score_prompt(row, hidden[offset : offset + len(row.targets)]))
            offset += row.count
            if row.sample:
                ends.append(offset - 1)
        chosen: list[Outcome] = []
        sampled = [row for row in rows if row.sample]
        if sampled:
            logits = self._decoder.logits(hidden[torch.tensor(ends, device=self._device)])
            states = [self._state(row) for row in sampled]
            chosen = choose(logits, states, [row.start + row.count for row in sampled], self._sampling)
            for row, state, outcome in zip(sampled, states, chosen, strict=True):
                state.add(outcome.token)
                self._last_tokens[row.slot] = max(outcome.token, 0)
        made = iter(chosen)
        outcomes = []
        for row, prompted, bad in zip(rows, prompt_scores, broken, strict=True):
            outcome = next(made) if row.sample else Outcome()
            error = NOT_A_NUMBER if bad else outcome.error
            outcomes.append(Outcome(outcome.token, outcome.logprob, prompted, error))
        return outcomes

    def _broken(self, rows: tuple[Row, ...], hidden: torch.Tensor) -> list[bool]:
        """Which rows hold a NaN. Their keys and values are cleared: whoever gets these blocks next reads the slots
        that it has not filled yet with weight 0, and 0 times NaN is NaN."""
        if not math.isnan(float(hidden.sum())):  # a NaN anywhere is a NaN in the sum, and one pass finds it
            return [False] * len(rows)
        tokens = torch.isnan(hidden).any(dim=-1)
        broken = [bool(part.any()) for part in tokens.split([row.count for row in rows])]
        for row, bad in zip(rows, broken, strict=True):
            if bad:
                self._attention.cache.clear([table[row.slot] for table in self._tables], row.start, row.count)
        return broken

    def _state(self, row: Row) -> SlotState:
        state = self._slots[row.slot]
        assert state is not None, f"slot {row.slot} was never admitted"
        return state

    def _score_prompt(self, row: Row, hidden: torch.Tensor) -> tuple[TokenLogprob, ...]:
        if not row.targets:
            return ()
        top = self._state(row).sampling.prompt_logprobs or 0
        logits = self._decoder.logits(hidden)
        return tuple(scores(logits, row.targets, [top] * len(row.targets), self._sampling))
