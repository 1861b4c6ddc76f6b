"""Which tokens does the next step compute?

State and budget in, an immutable `StepPlan` out; results in, `Progress` out. Pure: no clock of its own, no tensors, no
sockets, so that a million steps can be played in a test. In this order, each plan:

1. everyone who is decoding gets a token;
2. waiting requests are admitted while slots and blocks last, whose turn it is by class and person;
3. what is known of a prompt and rests in host memory comes back, as much as the readers do not notice;
4. prefill gets what is left of the step's *time*, split over a few prompts, least remaining work first, with ageing.

Out of blocks, cached ones are evicted first, then the newest sequence of the lowest class gives way (its blocks go on in
the host tier, where there is one; else it is computed again later); the oldest of the highest class never does, so it
always finishes. Any number of steps may be launched before the oldest is collected: a sequence counts its tokens in
flight, and what a running step may still touch is freed when that step completes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from homebox.engine.admission import AdmissionControl, held_by
from homebox.engine.blocks import Hit, KVSpace
from homebox.engine.budget import Load, StepTime
from homebox.engine.fairness import INPUT_COST, OUTPUT_COST, Ledger
from homebox.engine.moving import Moving
from homebox.engine.pace import DECODE_MS, PREFILL_MS, Pace
from homebox.engine.plan import Admission, Outcome, Row, StepPlan, StepResult, TableChange
from homebox.engine.prefill import FLOOR_TOKENS, Prefill, Share
from homebox.engine.queue import WaitingRoom
from homebox.engine.request import Sequence, State
from homebox.wire.frames import (
    FinishReason,
    Holding,
    Holdings,
    Place,
    PoolState,
    Progress,
    Refused,
    Submit,
)


@dataclass(frozen=True)
class Limits:
    """`decode_step_ms`, `prefill_step_ms`: what a step may take in any case, with readers and without (pace.py).
    `horizon_tokens`: admission looks this far beyond the prompt, not to max_tokens. `layers`: how many the runner can
    compute one by one; 1 means that a row always passes all of them in one step. `moves_beside`: a step's moves go on while
    the step before it is computed."""

    max_context: int
    max_running: int = 32
    max_chunk_tokens: int = 512
    decode_step_ms: float = DECODE_MS
    prefill_step_ms: float = PREFILL_MS
    horizon_tokens: int = 256
    layers: int = 1
    moves_beside: bool = False


class Scheduler:
    def __init__(self, limits: Limits, space: KVSpace, step_time: StepTime | None = None) -> None:
        self.limits = limits
        self.space = space
        self.moving = Moving()
        self.pace = Pace(limits.decode_step_ms, limits.prefill_step_ms)
        self.ledger = Ledger()
        self.waiting = WaitingRoom(self.ledger)
        self.admission = AdmissionControl(space, self.waiting, limits.horizon_tokens)
        self.prefill = Prefill(step_time or StepTime(), self.pace, limits.layers)
        self.running: list[Sequence] = []  # by rank
        self.live: dict[str, Sequence] = {}
        self.preemptions = 0
        self.prefix_hit_tokens = 0
        self.prefix_query_tokens = 0
        self.queue_changed = False
        self.holders_changed = False
        self._slots = list(range(limits.max_running - 1, -1, -1))
        self._serial = 0
        self._residency = 0
        self._step = 0
        self._launched_ms = 0.0  # of the last step that was launched, as predicted
        self._suspects: list[Sequence] = []  # running, and asked to be alone at first
        self._entered: list[Sequence] = []  # admitted, and the runner does not know yet
        self._ended: list[tuple[int, Progress]] = []  # (deliver once this step completed, the last progress)

    @property
    def step_time(self) -> StepTime:
        return self.prefill.step_time

    # ------------------------------------------------------------------ requests come and go

    def submit(self, request: Submit) -> Refused | None:
        """Queue a request, or say why it can never run here."""
        tokens = len(request.prompt) + len(request.output)
        capacity = self.space.capacity_tokens()
        if request.id in self.live:
            return Refused(request.id, "invalid_request", f"a request {request.id!r} is already running")
        if request.kind != "generate" or request.grammar or request.adapter:
            return Refused(
                request.id, "invalid_request", "embeddings, grammars and adapters are not built yet"
            )
        if not request.prompt:
            return Refused(
                request.id, "invalid_request", "the prompt is empty: there is nothing to go on from"
            )
        if tokens >= self.limits.max_context:
            return Refused(
                request.id,
                "context_length_exceeded",
                f"This model's maximum context length is {self.limits.max_context} tokens; the prompt has {tokens} "
                f"and no room is left for an answer.",
            )
        if tokens >= capacity:
            return Refused(
                request.id,
                "context_length_exceeded",
                f"This model's maximum context length is {capacity} tokens on this machine, which has so much memory "
                f"set aside for it; the prompt has {tokens}.",
            )
        self._serial += 1
        limit = min(self.limits.max_context, capacity, len(request.prompt) + request.sampling.max_tokens)
        seq = Sequence(request, self._serial, limit)
        self.live[request.id] = seq
        self.ledger.arrive(seq.person)
        self.waiting.join(seq)
        self.queue_changed = True
        if (ending := seq.ending()) is not None:  # replayed, and it had all its tokens already
            self._end(seq, *ending)
        return None

    def abort(self, request_id: str) -> None:
        """End a request now; an unknown or ended one is ignored. Its last progress is delivered when its blocks are
        free."""
        if (seq := self.live.get(request_id)) is not None:
            self._end(seq, "cancelled")

    def take_ended(self) -> list[Progress]:
        """The last progress of requests that ended outside `commit` and whose blocks are free."""
        ready = [progress for step, progress in self._ended if step <= self.space.completed]
        self._ended = [entry for entry in self._ended if entry[0] > self.space.completed]
        return ready

    def places(self) -> Iterator[Place]:
        return self.waiting.places(held_by(self.running))

    def pool_state(self) -> PoolState:
        pools = self.space.pools
        return PoolState(
            total=sum(p.total for p in pools),
            used=sum(p.used for p in pools),
            cached=sum(p.cached for p in pools),
            free=sum(p.free for p in pools),
            prefix_hit_tokens=self.prefix_hit_tokens,
            prefix_query_tokens=self.prefix_query_tokens,
            preemptions=self.preemptions,
            host_total=sum(p.tier.total for p in pools),
            host_used=sum(p.tier.used for p in pools),
            host_hit_tokens=self.space.brought_tokens,
        )

    def holdings(self) -> Holdings:
        """Who uses the used blocks. Takes time in the length of all block tables: not for every step."""
        people, shared = self.space.holders(self.running)
        return Holdings(tuple(Holding(person, *counts) for person, counts in people.items()), shared)

    # ------------------------------------------------------------------ one step

    def plan(self, now: float) -> StepPlan | None:
        """The next step, or None where nothing can be computed now. `now` is seconds on any steady clock."""
        self._admit(now)
        suspect = self._suspect()
        if suspect is not None and self.space.launched > self.space.completed:
            return None  # if it kills the engine, no other step may die with it
        able = [suspect] if suspect is not None else list(self.running)
        work: list[Share] = []
        prompts: list[Sequence] = []
        preemptions, read, awaited = self.preemptions, 0, 0
        # Who waits for a block that a running step still reads has it before a higher rank can want it.
        for seq in sorted(able, key=lambda s: -s.passed_over):
            length, through = seq.length, seq.scheduled + 1
            if length > through:
                prompts.append(seq)
            elif length == through and length < seq.limit and seq.state is State.RUNNING:
                if self._make_room(seq, through, awaited):
                    work.append(Share(seq, 1, seq.residency))
                    read += through
                    seq.passed_over = 0
                elif seq.state is State.RUNNING:
                    awaited += 1
                    seq.passed_over += 1
        load, readers = Load(len(work), read, read), len(work)
        decode_ms = self.step_time.predict_ms(load)
        unnoticed_ms = self.pace.spare_ms(decode_ms) + self._hidden_ms()
        moves = self.moving.within(unnoticed_ms) if readers else self.space.pools[0].total
        prompts = [s for s in prompts if s.state is State.RUNNING]
        for seq in sorted((s for s in prompts if s.returning), key=lambda s: s.rank):
            moves -= self._bring_back(seq, self.space.match(seq), moves)
        work += self.prefill.shares(
            [s for s in prompts if not s.returning], load, readers, most=self.limits.max_chunk_tokens,
            less_ms=max(0.0, self.moving.predict_ms(self.space.noted_moves()) - self._hidden_ms()),
            make_room=self._make_room,
        )  # fmt: skip
        for share in work[readers:]:
            load += self.prefill.load(share)
        self.pace.took(decode_ms, readers, self.step_time.predict_ms(load))
        if self.preemptions > preemptions:
            # Making room for one may have sent away another who had a share already.
            work = [s for s in work if s.seq.state is State.RUNNING and s.seq.residency == s.residency]
        return self._launch(work) if work else None

    def _suspect(self) -> Sequence | None:
        """Who runs with nobody else, if there is one."""
        return next((seq for seq in self._suspects if seq.alone), None)

    def commit(self, plan: StepPlan, result: StepResult) -> list[Progress]:
        """Step `plan` has completed. Steps are committed in the order in which they were planned."""
        if result.usual:
            self.step_time.observe(Load(plan.tokens, plan.kv_tokens, plan.query_key_pairs), result.step_ms)
        if result.fits:
            fits = max(FLOOR_TOKENS, min(self.limits.max_chunk_tokens, result.fits))
            self.limits = replace(self.limits, max_chunk_tokens=fits)
        self.moving.observe(len(plan.moved_out) + len(plan.moved_in), result.moved_ms)
        progress: list[Progress] = []
        for row, outcome in zip(plan.rows, result.outcomes, strict=True):
            seq = self.live.get(row.id)
            if seq is not None and seq.serial == row.serial:
                progress.append(self._commit_row(seq, row, outcome))
        if self.space.complete(plan.step):
            self.admission.look_again()
        return progress

    # ------------------------------------------------------------------ planning

    def _admit(self, now: float) -> None:
        while self.waiting and self._suspect() is None and self._admit_one(now):
            pass

    def _admit_one(self, now: float) -> bool:
        """Let in whoever is next and fits, or who may take somebody's place; False where nobody can come in."""
        found = self.admission.next(self.running, len(self._slots), now)
        if found is None:
            return False
        for victim in found.giving_way:
            self._preempt(victim)
        if found.giving_way and not self.admission.fits_now(found.seq, self.running, len(self._slots)):
            return False
        self._enter(found.seq, now)
        for other in found.overtaken:
            other.passed_over += 1
        return True

    def _enter(self, seq: Sequence, now: float) -> None:
        self.waiting.remove(seq)
        self.waiting.admitted()
        self.queue_changed = True
        known = self.space.match(seq)
        self._bring_back(seq, known, 0)
        if seq.cached is None:
            seq.cached = min(len(known[0]) * self.space.block_size, seq.prompt_tokens)
            self.prefix_hit_tokens += seq.cached
            self.prefix_query_tokens += seq.prompt_tokens
            seq.charged = max(seq.charged, seq.cached)  # a cached prefix is free, wherever it is
        self._residency += 1
        seq.residency = self._residency
        seq.state, seq.slot = State.RUNNING, self._slots.pop()
        seq.admitted_at, seq.made, seq.passed_over = now, 0, 0
        self.running.append(seq)
        if seq.submit.exclusive:
            self._suspects.append(seq)
        self.holders_changed = True
        self.running.sort(key=lambda s: s.rank)
        self._entered.append(seq)

    def _bring_back(self, seq: Sequence, known: list[list[Hit]], moves: int) -> int:
        """Take what is known of its tokens, as far as there are blocks, with so many moves at most. Returns how many it took;
        `returning` says whether another plan may go on with that."""
        hits, moved = self.space.first(seq, known, moves)
        self.space.adopt(seq, hits)
        seq.returning = len(hits[0]) < len(known[0]) and moved == moves
        return moved

    def _hidden_ms(self) -> float:
        """How long moves of this plan may take before its step waits for them."""
        running = self.space.launched > self.space.completed
        return self._launched_ms if self.limits.moves_beside and running else 0.0

    def _make_room(self, seq: Sequence, tokens: int, awaited: int = 0) -> bool:
        """Blocks for the first `tokens` of `seq`, at the cost of lower ranks if it must be. `awaited`: of the blocks
        that the running steps will free, how many others of this plan wait for already."""
        while not self.space.extend(seq, tokens):
            if self.space.missing(seq, tokens) + awaited <= self.space.available() + self.space.arriving():
                return False  # enough is freed when the running steps complete
            victim = self.running[-1]
            if victim is not seq:
                self._preempt(victim)
            else:
                # Alone it fits once the running steps have completed: `limit` is never above the pool.
                if len(self.running) > 1:
                    self._preempt(seq)
                return False
        return True

    def _preempt(self, seq: Sequence) -> None:
        """Give the blocks back and wait again; the tokens are kept, and what is no longer found of the blocks' contents is
        computed anew later."""
        self._leave(seq)
        seq.state = State.WAITING
        self.preemptions += 1
        self.waiting.join(seq)
        self.queue_changed = True

    def _launch(self, work: list[Share]) -> StepPlan:
        self._step += 1
        admitted = [s for s in self._entered if s.state is State.RUNNING]
        self._entered = []
        rows: list[Row] = []
        tables: list[TableChange] = []
        decode_rows = prefill_tokens = 0
        load = Load()
        for share in work:
            load += self.prefill.load(share)
            row = self._row(share)
            if row.count == 1:
                decode_rows += 1
            elif self._is_last(row):
                prefill_tokens += row.count
            rows.append(row)
            tables += [TableChange(row.slot, *change) for change in self.space.news(share.seq)]
        moves = list(enumerate(self.space.moves()))
        self.space.launch(self._step)
        self._launched_ms = self.step_time.predict_ms(load)
        return StepPlan(
            step=self._step,
            rows=tuple(rows),
            admitted=tuple(
                Admission(
                    s.slot, s.submit.sampling, tuple(s.submit.prompt), tuple(s.tokens[s.prompt_tokens :])
                )
                for s in admitted
            ),
            tables=tuple(tables),
            decode_rows=decode_rows,
            prefill_tokens=prefill_tokens,
            tokens=load.tokens,
            kv_tokens=load.kv_tokens,
            query_key_pairs=load.query_key_pairs,
            predicted_ms=self._launched_ms,
            moved_out=tuple((group, *pair) for group, each in moves for pair in each.out),
            moved_in=tuple((group, *pair) for group, each in moves for pair in each.into),
        )

    def _row(self, share: Share) -> Row:
        seq, count = share.seq, share.tokens
        start = seq.scheduled
        end = start + count
        layers = (seq.depth, seq.depth + share.layers) if share.layers else None
        last = layers is None or layers[1] == self.limits.layers
        targets: tuple[int, ...] = ()
        if last and seq.submit.sampling.prompt_logprobs is not None and start < seq.prompt_tokens - 1:
            targets = tuple(seq.submit.prompt[start + 1 : end + 1])
        sample = last and end == seq.length
        row = Row(
            id=seq.id,
            serial=seq.serial,
            residency=seq.residency,
            slot=seq.slot,
            start=start,
            count=count,
            tokens=tuple(seq.tokens[start:end]),
            sample=sample,
            targets=targets,
            layers=layers,
        )
        if last:
            seq.scheduled, seq.chunk, seq.depth = end, 0, 0
        elif layers:
            seq.chunk, seq.depth = count, layers[1]
        seq.in_flight += 1
        seq.unknown += sample
        return row

    # ------------------------------------------------------------------ results

    def _commit_row(self, seq: Sequence, row: Row, outcome: Outcome) -> Progress:
        seq.in_flight -= 1
        if row.sample:
            seq.unknown -= 1
        ending: tuple[FinishReason, str] | None = None
        if outcome.error:
            ending = "error", outcome.error
        elif self._is_last(row):
            if row.count > 1:
                self.admission.look_again()  # more of a prompt is known, which others may share
            if seq.residency == row.residency and seq.state is State.RUNNING:
                seq.computed = row.start + row.count
                if seq.charged < seq.prompt_tokens:
                    self._charge_prompt(seq)
            if row.sample:
                seq.tokens.append(outcome.token)
                seq.made += 1
                self.ledger.charge(seq.person, OUTPUT_COST, seq.submit.weight)
                ending = seq.ending()
            if seq.residency == row.residency and seq.state is State.RUNNING:
                self.space.settle(seq)
        prompt_logprobs = outcome.prompt_logprobs
        if prompt_logprobs:
            prompt_logprobs = prompt_logprobs[max(0, seq.scored - row.start) :]
            seq.scored = max(seq.scored, row.start + len(outcome.prompt_logprobs))
        progress = Progress(
            id=seq.id,
            prefilled=min(seq.computed, seq.prompt_tokens),
            cached=seq.cached or 0,
            tokens=(outcome.token,) if row.sample and not outcome.error else (),
            logprobs=(outcome.logprob,) if outcome.logprob is not None and not outcome.error else (),
            prompt_logprobs=prompt_logprobs,
            finish=ending[0] if ending else None,
            detail=ending[1] if ending else "",
            blocks=0 if ending else self.space.held(seq),
            charged=seq.charged,
        )
        if ending:
            self._close(seq)
        return progress

    def _is_last(self, row: Row) -> bool:
        """Whether the row's tokens are computed then: they have passed the last layer."""
        return row.layers is None or row.layers[1] == self.limits.layers

    def _charge_prompt(self, seq: Sequence) -> None:
        done = min(seq.computed, seq.prompt_tokens)
        if done > seq.charged:
            self.ledger.charge(seq.person, INPUT_COST * (done - seq.charged), seq.submit.weight)
            seq.charged = done

    def _end(self, seq: Sequence, reason: FinishReason, detail: str = "") -> None:
        """End a request between steps."""
        progress = Progress(
            id=seq.id,
            prefilled=min(seq.computed, seq.prompt_tokens),
            cached=seq.cached or 0,
            finish=reason,
            detail=detail,
            charged=seq.charged,
        )
        self._close(seq)
        self._ended.append((self.space.launched, progress))

    def _close(self, seq: Sequence) -> None:
        if seq.state is State.WAITING:
            self.waiting.remove(seq)
            self.queue_changed = True
        else:
            self._leave(seq)
        seq.state = State.FINISHED
        del self.live[seq.id]
        self.ledger.leave(seq.person)

    def _leave(self, seq: Sequence) -> None:
        self.space.release(seq)
        self.admission.look_again()
        self._slots.append(seq.slot)
        self.running.remove(seq)
        if seq.submit.exclusive:
            self._suspects.remove(seq)
        self.holders_changed = True
        seq.slot = -1

    def check(self) -> None:
        """The invariant of blocks and slots; raises AssertionError."""
        self.space.check(self.running)
        slots = sorted(self._slots + [s.slot for s in self.running])
        assert slots == list(range(self.limits.max_running)), "a slot is lost or held twice"
        assert [s.rank for s in self.running] == sorted(s.rank for s in self.running)
        assert len(self.live) == len(self.running) + len(self.waiting)
