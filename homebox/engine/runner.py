"""How does a plan become numbers?

`launch(plan) -> handle`, `collect(handle) -> result`: the loop may launch the next step before it reads this one. The
runner keeps what must not travel with every plan: the model, the KV memory, and for each slot its block tables, how its
tokens are chosen and which token came last, so that a step can be launched whose input nobody has read back yet.

On the CPU a launch computes at once and the handle is the result; the order of calls is all that the interface promises.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from itertools import accumulate
from typing import NamedTuple

import torch

from homebox.engine.batch import Batch
from homebox.engine.plan import Outcome, Row, StepPlan, StepResult
from homebox.engine.sampler import NOT_A_NUMBER, SlotState, choose, scores
from homebox.kernels.attention import Attention, BatchShape
from homebox.kernels.host import HostBlocks
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
        host: HostBlocks | None = None,
    ) -> None:
        """`host`: where blocks go, if plans move any."""
        self._decoder = decoder
        self._attention = attention
        self._sampling = sampling
        self._host = host
        self._slots: list[SlotState | None] = [None] * slots
        width = -(-decoder.spec.context // attention.cache.block_size)
        self._batch = Batch(slots, len(attention.windows), width)
        self._device = decoder.device
        # Of a slot, the tokens of a chunk behind the layers that it has passed, `[count, hidden]`.
        self._under_way: dict[int, torch.Tensor] = {}

    def launch(self, plan: StepPlan) -> Handle:
        """Start the step. Raises what the device raises: the caller treats that as the end of this engine."""
        with torch.inference_mode():
            begun = time.perf_counter()
            if self._host is not None:
                self._host.move(plan.moved_out, plan.moved_in)
            started = time.perf_counter()
            for admission in plan.admitted:
                self._slots[admission.slot] = SlotState(admission)
                self._under_way.pop(admission.slot, None)
            self._batch.change(plan.tables)
            outcomes = self._run(plan.rows)
        step_ms = (time.perf_counter() - started) * 1e3
        return Handle(StepResult(plan.step, tuple(outcomes), step_ms, (started - begun) * 1e3))

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
            ids = torch.zeros(tokens, dtype=torch.int32, device=self._device)
            hidden = self._decoder.forward(ids, torch.arange(tokens, device=self._device), self._attention)
            self._decoder.logits(hidden[-1:])
        return (time.perf_counter() - started) * 1e3

    def _block_size(self) -> int:
        return self._attention.cache.block_size

    def _run(self, rows: tuple[Row, ...]) -> list[Outcome]:
        shape = self._batch.fill(rows)
        ids, positions = self._batch.ids.to(self._device), self._batch.positions.to(self._device)
        layers = rows[-1].layers
        if layers is not None:
            return self._run_cut(rows, shape, ids, positions, *layers)
        self._attention.plan(shape)
        return self._outcomes(rows, self._decoder.forward(ids, positions, self._attention))

    def _run_cut(
        self,
        rows: tuple[Row, ...],
        shape: BatchShape,
        ids: torch.Tensor,
        positions: torch.Tensor,
        begin: int,
        end: int,
    ) -> list[Outcome]:
        """A step whose last row has layers `begin` to `end` only: the others go through those before and behind alone."""
        decoder, cut, last = self._decoder, rows[-1], self._decoder.spec.layers
        others = len(ids) - cut.count
        x = decoder.embed(ids)
        if begin:
            x[others:] = self._under_way.pop(cut.slot)

        def alone(layers: range) -> None:
            if others and layers:
                self._attention.plan(shape.first(len(rows) - 1))
                x[:others] = decoder.through(layers, x[:others], positions[:others], self._attention)

        alone(range(begin))
        self._attention.plan(shape)
        x = decoder.through(range(begin, end), x, positions, self._attention)
        if end == last:
            return self._outcomes(rows, decoder.norm(x))
        self._under_way[cut.slot] = x[others:]
        alone(range(end, last))
        made = self._outcomes(rows[:-1], decoder.norm(x[:others])) if others else []
        return [*made, Outcome(error=NOT_A_NUMBER if self._broken((cut,), x[others:]) else "")]

    def _outcomes(self, rows: tuple[Row, ...], hidden: torch.Tensor) -> list[Outcome]:
        broken = self._broken(rows, hidden)
        prompted = self._score_prompts(rows, hidden)
        sampled = [row for row in rows if row.sample]
        chosen: list[Outcome] = []
        if sampled:
            last = hidden
            if len(sampled) < len(hidden):
                ends = [end - 1 for row, end in zip(rows, _ends(rows), strict=True) if row.sample]
                last = hidden[torch.tensor(ends, device=self._device)]
            chosen = self._choose(sampled, last)
        if not broken and not prompted and len(sampled) == len(rows):
            return chosen
        made = iter(chosen)
        outcomes = []
        for i, row in enumerate(rows):
            outcome = next(made) if row.sample else Outcome()
            error = NOT_A_NUMBER if i in broken else outcome.error
            outcomes.append(Outcome(outcome.token, outcome.logprob, prompted.get(i, ()), error))
        return outcomes

    def _choose(self, rows: list[Row], hidden: torch.Tensor) -> list[Outcome]:
        """The next token of each row, `hidden` its last state. The slots remember it."""
        states = [self._state(row) for row in rows]
        positions = [row.start + row.count for row in rows]
        chosen = choose(self._decoder.logits(hidden), states, positions, self._sampling)
        last_tokens = self._batch.last_tokens
        for row, state, outcome in zip(rows, states, chosen, strict=True):
            state.add(outcome.token)
            last_tokens[row.slot] = max(outcome.token, 0)
        return chosen

    def _broken(self, rows: tuple[Row, ...], hidden: torch.Tensor) -> set[int]:
        """Which rows hold a NaN. Their keys and values are cleared: whoever gets these blocks next reads the slots
        that it has not filled yet with weight 0, and 0 times NaN is NaN."""
        if not math.isnan(float(hidden.sum())):  # a NaN anywhere is a NaN in the sum, and one pass finds it
            return set()
        parts = torch.isnan(hidden).any(dim=-1).split([row.count for row in rows])
        broken = {i for i, part in enumerate(parts) if part.any()}
        for i in broken:
            row = rows[i]
            self._attention.cache.clear(self._batch.table(row.slot), row.start, row.count)
        return broken

    def _state(self, row: Row) -> SlotState:
        state = self._slots[row.slot]
        assert state is not None, f"slot {row.slot} was never admitted"
        return state

    def _score_prompts(
        self, rows: tuple[Row, ...], hidden: torch.Tensor
    ) -> dict[int, tuple[TokenLogprob, ...]]:
        """Of each row that asks for them: the logprobs of the prompt's own tokens."""
        if not any(row.targets for row in rows):
            return {}
        found = {}
        for i, (row, end) in enumerate(zip(rows, _ends(rows), strict=True)):
            if row.targets:
                begin = end - row.count
                found[i] = self._score(row, hidden[begin : begin + len(row.targets)])
        return found

    def _score(self, row: Row, hidden: torch.Tensor) -> tuple[TokenLogprob, ...]:
        """A few tokens at a time: the logits of a whole chunk would be larger than all that the step needs besides."""
        top = self._state(row).sampling.prompt_logprobs or 0
        made: list[TokenLogprob] = []
        for some in hidden.split(len(self._slots)):
            targets = row.targets[len(made) : len(made) + len(some)]
            made += scores(self._decoder.logits(some), targets, [top] * len(targets), self._sampling)
        return tuple(made)


def _ends(rows: tuple[Row, ...]) -> Iterator[int]:
    """Of each row the index behind its last token in the flat batch."""
    return accumulate(row.count for row in rows)
