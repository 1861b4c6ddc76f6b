"""Which prompts go on in the next step, and with how much of each?

A step's time is left to them by those who read, and a few prompts share it: least remaining work first, with ageing, so
that a short question is not behind a document and the document still ends. Beside readers a chunk of a document may go
through some of the layers only, if more of it is computed that way (docs/decisions/027-chunks-cut-by-layers.md).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from homebox.engine.budget import Load, StepTime, chunk_load
from homebox.engine.pace import SLICES, Pace
from homebox.engine.request import Sequence, State

PROMPTS_PER_STEP = 3
AGEING_TOKENS = 64  # each plan that passes a prompt over makes it look so much shorter
FLOOR_TOKENS = 16  # some prompt gets this ...
FLOOR_EVERY = 8  # ... where none got anything in so many plans, whatever the budget
SLACK = 1.03  # a chunk that was cut goes on as it was planned, though a step is found to take a little more


class Share(NamedTuple):
    """A sequence's part of the step that is being planned. `layers`: how many; 0 is all of them."""

    seq: Sequence
    tokens: int
    residency: int
    layers: int = 0


class Prefill:
    def __init__(self, step_time: StepTime, pace: Pace, layers: int) -> None:
        """`layers`: how many the runner can compute one by one."""
        self.step_time, self._pace, self._layers = step_time, pace, layers
        self._starved = 0  # plans in which no prompt got anything

    def shares(
        self,
        queue: list[Sequence],
        load: Load,
        readers: int,
        *,
        most: int,
        less_ms: float,
        make_room: Callable[[Sequence, int], bool],
    ) -> list[Share]:
        """Chunks of these prompts beside `readers` whose load is given: `most` tokens together, in a time that is shorter by
        `less_ms`. `make_room` finds blocks for so many tokens of a sequence, and may send others away for that."""
        if not queue:
            self._starved = 0
            return []
        short = {seq.id for seq in queue if self._is_short(seq)}

        def turn(seq: Sequence) -> tuple[int, bool, int, int]:
            # A short question that was begun is ended first: else equals would age past each other and all end last.
            begun = seq.id in short and seq.scheduled > (seq.cached or 0)
            return seq.rank[0], not begun, seq.pending - AGEING_TOKENS * seq.passed_over, seq.serial

        queue.sort(key=turn)
        allowed = self._pace.allow(self.step_time.predict_ms(load), readers, len(short))
        must = FLOOR_TOKENS if not readers or self._starved >= FLOOR_EVERY - 1 else 0
        chunks: list[Share] = []
        for seq in queue:
            share = Share(seq, 0, seq.residency)
            if len(chunks) < PROMPTS_PER_STEP and seq.state is State.RUNNING:
                limit_ms = (allowed.short if seq.id in short else allowed.any) - less_ms
                may_cut = readers > 0 and seq.id not in short
                share = self._chunk(seq, load, most, limit_ms, must, may_cut)
            one_cut = not share.layers or not any(other.layers for other in chunks)
            if share.tokens and one_cut and make_room(seq, seq.scheduled + share.tokens):
                chunks.append(share)
                load += self.load(share)
                most -= share.tokens
                must = 0
                seq.passed_over = 0
            else:
                seq.passed_over += 1
        self._starved = 0 if chunks else self._starved + 1
        return sorted(chunks, key=lambda share: share.layers > 0)

    def load(self, share: Share) -> Load:
        load = chunk_load(share.seq.scheduled, share.tokens)
        return load.part(share.layers / self._layers) if share.layers else load

    def _chunk(
        self, seq: Sequence, load: Load, left: int, limit_ms: float, must: int, may_cut: bool
    ) -> Share:
        """Of this prompt what keeps a step of `load` and this under the limit, and `must` tokens in any case. `may_cut`: a
        chunk may go through some of the layers only, if more of the prompt is computed that way."""
        all_layers = self._layers
        if seq.depth:
            chunk, to_go = chunk_load(seq.scheduled, seq.chunk), all_layers - seq.depth
            layers = self.step_time.fit_layers(load, chunk, all_layers, to_go, limit_ms * SLACK)
            layers = min(max(layers, -(-must * all_layers // seq.chunk)), to_go)
            fits = layers and seq.chunk <= left
            return Share(seq, seq.chunk if fits else 0, seq.residency, layers)
        most = min(seq.pending, left)
        count = self.step_time.fit_chunk(load, seq.scheduled, most, limit_ms)
        count = max(count, min(must, most))
        if may_cut and count < most:
            layers = -(-all_layers // SLICES)
            longer = self.step_time.fit_chunk(load, seq.scheduled, most, limit_ms, layers / all_layers)
            if longer > 1 and longer * layers > count * all_layers:
                chunk = chunk_load(seq.scheduled, longer)
                more = self.step_time.fit_layers(load, chunk, all_layers, all_layers - 1, limit_ms)
                return Share(seq, longer, seq.residency, max(layers, more))
        return Share(seq, count, seq.residency)

    def _is_short(self, seq: Sequence) -> bool:
        """As a whole: the end of a document is no short question."""
        start = min(seq.cached or 0, seq.scheduled)
        return self._pace.is_short(self.step_time.predict_ms(chunk_load(start, seq.length - start)))
