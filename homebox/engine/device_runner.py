"""How does a plan become numbers on a device that works while the CPU plans?

    launch:   the plan's numbers into host memory > one copy > a graph (or its kernels, one by one) > a copy back, begun
    collect:  wait for that copy, read what was chosen

`launch` never looks at what the device makes. Tokens that nobody has read back are in a pool on the device, one a slot,
and the next step takes them from there; so the next step can be launched before this one is collected. Everything else
that lives from step to step (block tables, penalties) lives there as well, and changes in the order of the launches.

Where memory for a step is short, it is computed in halves, with the same result, and says how large a step fits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Protocol

import msgspec
import numpy as np
import numpy.typing as npt
import torch

from homebox.engine.adjustments import Adjustments, asks, least_tokens
from homebox.engine.graphs import Graphs, padded
from homebox.engine.numbers import (
    ITEM,
    Changes,
    Fields,
    Ints,
    Key,
    aligned,
    changed,
    fill_places,
    fill_rows,
    fill_wishes,
    layout,
)
from homebox.engine.plan import Admission, Outcome, Row, StepPlan, StepResult
from homebox.engine.sampler import NOT_A_NUMBER, NOTHING_LEFT, scores
from homebox.errors import OutOfMemory
from homebox.kernels.attention import Placed, StepWork
from homebox.kernels.device import Device
from homebox.kernels.host import HostBlocks
from homebox.kernels.sampling import BROKEN, EMPTY
from homebox.model.spec import DecoderSpec
from homebox.wire.frames import Sampling, TokenLogprob

NO_ROOM = "the device has no memory left for {}: ask without them, or lower kv_memory"
SCORED_AT_ONCE = 64  # tokens of a prompt whose logits are made together
_ERRORS = {0: "", BROKEN: NOT_A_NUMBER, EMPTY: NOTHING_LEFT}


class DeviceModel(Protocol):
    """What computes. All tensors are on the device, and nothing waits for it."""

    spec: DecoderSpec
    windows: tuple[int | None, ...]
    block_size: int

    def work(self, starts: Ints, counts: Ints) -> StepWork:
        """What attention has to do for these rows."""

    def make_room(self, work: StepWork) -> bool:
        """Have what that needs beside the cache. True where it moved, and captured steps are not valid any more."""

    def states(self, ids: torch.Tensor, positions: torch.Tensor, placed: Placed, many: bool) -> torch.Tensor:
        """Hidden states, `[tokens, hidden]`."""

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """`[rows, vocab]`, in fp32."""

    def clear(self, places: Sequence[torch.Tensor]) -> None:
        """Zero keys and values; `places[group]`: `[tokens]` int64."""


class Chooser(Protocol):
    def choose(
        self, logits: torch.Tensor, wishes: torch.Tensor, tokens: torch.Tensor, flags: torch.Tensor
    ) -> None:
        """Into `tokens`, `[rows]` int64, a token of each row of `logits`, `[rows, vocab]` fp32, as `wishes` say, `[rows, WISHES]` fp64;
        into `flags`, `[rows]` int32, 0, or BROKEN or EMPTY (kernels/sampling.py), where `tokens` holds just any token. `logits` is
        used up."""


class Computing(Protocol):
    def __call__(self, keep: Callable[[torch.Tensor], None] = ..., /) -> None:
        """`keep` is given the hidden states."""


class _Slot:
    """What the CPU remembers about the sequence in a slot."""

    def __init__(self, admission: Admission) -> None:
        self.sampling = admission.sampling
        self.made = len(admission.output)  # with those that are not read back
        self.least = least_tokens(admission.sampling)
        self.adjusted = asks(admission.sampling)
        self.refused = ""  # why it cannot be computed

    @property
    def scored(self) -> bool:
        return self.sampling.logprobs is not None and not self.refused


@dataclass
class _Turn:
    """Host memory of a step, from its launch until it is collected."""

    numbers: torch.Tensor
    results: torch.Tensor


@dataclass
class _Part:
    """A launched step or, where memory was short, some rows of it."""

    rows: tuple[Row, ...]
    slots: list[_Slot]
    key: Key
    turn: _Turn
    places: npt.NDArray[np.int64]  # in `turn`
    begin: Any
    end: Any = None
    usual: bool = True
    logits: dict[int, torch.Tensor] = field(
        default_factory=dict
    )  # by row, in host memory, where scores are asked for
    hidden: list[torch.Tensor] = field(default_factory=list)  # where prompts are scored

    def first(self, row: int) -> int:
        return sum(each.count for each in self.rows[:row])


@dataclass
class Flight:
    """`held`: host memory that the device may still read. `fits`: a step of more tokens did not fit; 0: no trouble."""

    plan: StepPlan
    parts: list[_Part] = field(default_factory=list)
    held: list[torch.Tensor] = field(default_factory=list)
    fits: int = 0
    moving: tuple[Any, Any] | None = None  # the marks before and behind the plan's moves


class DeviceRunner:
    def __init__(
        self,
        device: Device,
        model: DeviceModel,
        chooser: Chooser,
        *,
        slots: int,
        chunk: int,
        depth: int = 2,
        host: HostBlocks | None = None,
    ) -> None:
        """`chunk`: the most prompt tokens of a step; `depth`: how many steps are launched before the oldest is collected; `host`:
        where blocks go, if plans move any."""
        self._device, self._model, self._chooser, self._host = device, model, chooser, host
        self._slots: list[_Slot | None] = [None] * slots
        self._spare = slots
        self._groups, self._depth = len(model.windows), depth
        self._width = -(-model.spec.context // model.block_size)
        # Of each group `[slots, width]`: what the CPU knows, and what the device reads.
        self._tables = np.zeros((self._groups, slots + 1, self._width), np.int32)
        self._device_tables = self._zeros(*self._tables.shape, dtype=torch.int32)
        self._pool = self._zeros(slots + 1, dtype=torch.int64)
        self._graphs = Graphs(device)
        self._cleared: Any = None  # a mark: blocks were cleared since the last moves
        self._adjustments: Adjustments | None = None
        self._logits: torch.Tensor | None = None  # of a step whose scores are asked for, before adjustments
        self._most = Key(padded(chunk + slots) or chunk + slots, padded(slots) or slots, self._groups)
        self._results = self._zeros(_results_size(self._most), dtype=torch.uint8)
        self._make_buffers(2 * layout(self._most).size)

    def _make_buffers(self, size: int) -> None:
        self._known: dict[Key, tuple[Fields[torch.Tensor], torch.Tensor]] = {}
        self._numbers = self._zeros(size, dtype=torch.uint8)
        self._turns = [self._new_turn() for _ in range(self._depth + 1)]

    def _zeros(self, *shape: int, dtype: torch.dtype) -> torch.Tensor:
        return self._device.make(lambda: torch.zeros(shape, dtype=dtype, device=self._device.device))

    def _new_turn(self) -> _Turn:
        return _Turn(self._device.host(len(self._numbers)), self._device.host(_results_size(self._most)))

    # ------------------------------------------------------------------ launch

    def launch(self, plan: StepPlan) -> Flight:
        """Start the step. Raises what the device raises: the caller treats that as the end of this engine."""
        flight = Flight(plan)
        with torch.inference_mode():
            if self._host is not None and (plan.moved_out or plan.moved_in):
                flight.moving = self._move(self._host, plan)
            for admission in plan.admitted:
                self._admit(admission, flight)
            for change in plan.tables:
                end = change.index + len(change.blocks)
                self._tables[change.group, change.slot, change.index : end] = change.blocks
            changes = changed(plan.tables, self._spare + 1, self._width)
            self._launch_rows(flight, plan.rows, changes)
        for row in plan.rows:
            if row.sample:
                self._slot(row).made += 1
        return flight

    def _move(self, host: HostBlocks, plan: StepPlan) -> tuple[Any, Any]:
        """Beside the step before this one. It touches no block that moves: these are free or cached, and that a block is only when
        all steps that had it have completed (`KVSpace`)."""
        marks = self._device.beside(lambda: host.move(plan.moved_out, plan.moved_in), self._cleared)
        self._cleared = None
        self._device.follow(marks[1])
        return marks

    def _launch_rows(self, flight: Flight, rows: tuple[Row, ...], changes: Changes) -> None:
        """These rows, in halves where they do not fit together."""
        try:
            part = self._launch_part(rows, changes)
        except torch.OutOfMemoryError:
            self._settle()
            try:
                part = self._launch_part(rows, changes)
            except torch.OutOfMemoryError:
                halves = _halves(rows)
                if halves is None:
                    raise _nothing_fits() from None
                flight.fits = max(sum(row.count for row in half) for half in halves)
                for half in halves:
                    self._launch_rows(flight, half, changes)
                return
        flight.parts.append(part)

    def _launch_part(self, rows: tuple[Row, ...], changes: Changes) -> _Part:
        starts = np.fromiter((row.start for row in rows), np.int32, len(rows))
        counts = np.fromiter((row.count for row in rows), np.int32, len(rows))
        todo = self._model.work(starts, counts)
        key = self._key(rows, int(counts.sum()), todo.many)
        size = layout(key).size + aligned(todo.items.nbytes) + 2 * changes.at.nbytes
        grown = self._device.make(lambda: self._model.make_room(todo))
        if size > len(self._numbers):
            self._settle()
            self._make_buffers(2 * size)
            grown = True
        if grown:
            self._settle()
        turn = self._turns.pop() if self._turns else self._new_turn()
        fields, there = self._places(key)
        numbers = turn.numbers.numpy()
        filled = layout(key).on_host(numbers)
        self._fill(filled, rows, todo.spans)
        begins = [layout(key).size]
        for part in (todo.items, changes.at, changes.blocks):
            numbers[begins[-1] : begins[-1] + part.nbytes] = part.reshape(-1).view(np.uint8)
            begins.append(begins[-1] + (aligned(part.nbytes) if part is todo.items else part.nbytes))
        begin = self._device.mark()
        self._device.upload(turn.numbers[: begins[-1]], self._numbers[: begins[-1]])
        if len(changes.at):
            at, blocks = (self._numbers[a:b].view(torch.int64) for a, b in pairwise(begins[1:]))
            self._device.run(lambda: self._enter_changes(at, blocks))
        launched = _Part(rows, [self._slot(row) for row in rows], key, turn, filled.places, begin)
        for i, row in enumerate(rows):
            if row.sample and launched.slots[i].scored:
                launched.logits[i] = self._device.host(4 * self._model.spec.vocab_size)
        work = self._work(key, fields, there)
        if padded(key.tokens) is None or any(row.targets for row in rows):
            self._device.run(lambda: work(launched.hidden.append))
        else:
            launched.usual = not self._graphs.run(key, work)
        # Nothing from here on takes memory: what has been computed is not computed again.
        for i, host in launched.logits.items():
            self._device.download(self._kept_logits()[i : i + 1].view(torch.uint8).view(-1), host)
        size = _results_size(key)
        self._device.download(self._results[:size], turn.results[:size])
        launched.end = self._device.mark()
        return launched

    def _enter_changes(self, at: torch.Tensor, blocks: torch.Tensor) -> None:
        self._device_tables.view(-1).index_copy_(0, at, blocks.to(torch.int32))

    def _has_memory(self, work: Callable[[], None]) -> bool:
        """Do this, with what can be given back if it must be; False where it does not fit all the same."""
        for last in (False, True):
            try:
                work()
                return True
            except torch.OutOfMemoryError:
                if not last:
                    self._settle()
        return False

    def _settle(self) -> None:
        """Give back what is not needed: graphs, and what the allocator keeps for later."""
        self._device.wait(self._device.mark())
        self._graphs.forget()
        self._device.release()

    def _admit(self, admission: Admission, flight: Flight) -> None:
        slot = self._slots[admission.slot] = _Slot(admission)
        if slot.adjusted and not self._has_memory(lambda: self._admit_adjusted(admission, flight)):
            slot.adjusted, slot.refused = False, NO_ROOM.format("penalties and biases")
        if admission.sampling.logprobs is not None and not self._has_memory(self._make_room_for_logits):
            slot.refused = NO_ROOM.format("logprobs")

    def _admit_adjusted(self, admission: Admission, flight: Flight) -> None:
        if self._adjustments is None:
            vocab = self._model.spec.vocab_size
            self._adjustments = self._device.make(lambda: Adjustments(self._device, self._spare, vocab))
        flight.held.append(self._adjustments.admit(admission))

    def _make_room_for_logits(self) -> None:
        if self._logits is None:
            self._logits = self._zeros(self._most.rows, self._model.spec.vocab_size, dtype=torch.float32)

    def _key(self, rows: tuple[Row, ...], tokens: int, many: bool) -> Key:
        sampled = [self._slot(row) for row in rows if row.sample]
        # Beside prompts as many rows as there may be: the weights of the head are read once anyway, and graphs are fewer.
        count = padded(len(rows)) or len(rows) if tokens == len(rows) else self._most.rows
        return Key(
            tokens=padded(tokens) or tokens,
            rows=count,
            groups=self._groups,
            many=many,
            adjusted=any(slot.adjusted for slot in sampled),
            scored=any(slot.scored for slot in sampled),
        )

    def _places(self, key: Key) -> tuple[Fields[torch.Tensor], torch.Tensor]:
        """Where the device finds what has a fixed place, and the items behind it."""
        if key not in self._known:
            rest = self._numbers[layout(key).size :]
            items = rest[: len(rest) // (4 * ITEM) * 4 * ITEM].view(torch.int32).view(-1, ITEM)
            self._known[key] = layout(key).on_device(self._numbers), items
        return self._known[key]

    def _fill(self, out: Fields[npt.NDArray[Any]], rows: tuple[Row, ...], spans: Ints) -> None:
        fill_rows(out, rows, self._spare)
        fill_places(out, self._tables, sum(row.count for row in rows), self._model.block_size)
        fill_wishes(out, rows, lambda row: self._slot(row).sampling, self._model.spec.vocab_size)
        out.spans[:] = spans
        out.adjusted[:] = self._spare
        out.repetition[:] = 1.0
        out.presence[:] = out.frequency[:] = out.quiet[:] = 0
        for i, row in enumerate(rows):
            slot = self._slot(row)
            if row.sample and slot.adjusted:
                s = slot.sampling
                out.adjusted[i] = row.slot
                out.repetition[i] = s.repetition_penalty
                out.presence[i], out.frequency[i] = s.presence_penalty, s.frequency_penalty
                out.quiet[i] = slot.made < slot.least

    # ------------------------------------------------------------------ on the device

    def _work(self, key: Key, fields: Fields[torch.Tensor], items: torch.Tensor) -> Computing:
        """What a step of this key computes: the same launches each time, from the same places."""
        placed = Placed(
            rows=fields.rows,
            items=items,
            spans=tuple(fields.spans),
            tables=tuple(self._device_tables),
            places=tuple(fields.places),
        )
        rows, count = key.rows, key.tokens
        tokens, errors, broken = (
            part.view(torch.int32)
            for part in self._results[: _results_size(key)].split([4 * rows, 4 * rows, 4 * count])
        )

        def work(keep: Callable[[torch.Tensor], None] = lambda hidden: None) -> None:
            ids = torch.where(fields.ids >= 0, fields.ids, self._pool[fields.pool].to(torch.int32))
            hidden = self._model.states(ids, fields.positions, placed, key.many)
            broken.copy_(hidden.float().sum(dim=-1).isnan())
            logits = self._model.logits(hidden[fields.last])
            if key.scored:
                self._kept_logits()[:rows].copy_(logits)
            if key.adjusted:
                logits = self._adjusted().apply(logits, fields)
            chosen = torch.empty(rows, dtype=torch.int64, device=logits.device)
            self._chooser.choose(logits, fields.wishes, chosen, errors)
            tokens.copy_(chosen)
            if key.adjusted:
                self._adjusted().count(chosen, fields)
            # Last, and without an allocation: who runs this again for want of memory finds the pool as it was.
            self._pool.index_copy_(0, fields.into, chosen)
            keep(hidden)

        return work

    def _kept_logits(self) -> torch.Tensor:
        assert self._logits is not None, "nobody asked for scores"
        return self._logits

    def _adjusted(self) -> Adjustments:
        assert self._adjustments is not None, "nobody asked for penalties"
        return self._adjustments

    def _slot(self, row: Row) -> _Slot:
        slot = self._slots[row.slot]
        assert slot is not None, f"slot {row.slot} was never admitted"
        return slot

    # ------------------------------------------------------------------ collect

    def collect(self, flight: Flight) -> StepResult:
        """Wait for the step and read what it made."""
        found: dict[int, list[Outcome]] = {}
        with torch.inference_mode():
            for part in flight.parts:
                self._device.wait(part.end)
                for row, outcome in zip(part.rows, self._outcomes(part), strict=True):
                    found.setdefault(row.slot, []).append(outcome)
                if len(part.turn.numbers) == len(self._numbers):
                    self._turns.append(part.turn)
        return StepResult(
            flight.plan.step,
            tuple(_joined(found[row.slot]) for row in flight.plan.rows),
            sum(self._device.elapsed_ms(part.begin, part.end) for part in flight.parts),
            moved_ms=self._device.elapsed_ms(*flight.moving) if flight.moving else 0.0,
            usual=len(flight.parts) == 1 and flight.parts[0].usual,
            fits=flight.fits,
        )

    def _outcomes(self, part: _Part) -> list[Outcome]:
        rows, tokens = part.key.rows, part.key.tokens
        results = part.turn.results.numpy()[: _results_size(part.key)].view(np.int32)
        chosen, errors, broken = results[:rows], results[rows : 2 * rows], results[2 * rows :][:tokens]
        made = []
        for i, row in enumerate(part.rows):
            slot, first = part.slots[i], part.first(i)
            here = slice(first, first + row.count)
            score: TokenLogprob | None = None
            error, token = _ERRORS[int(errors[i])] if row.sample else "", int(chosen[i]) if row.sample else -1
            error = slot.refused or error
            if broken[here].any():
                error = NOT_A_NUMBER
                # Whoever gets these blocks next reads what it has not filled yet with weight 0, and 0 times NaN is NaN.
                places = [torch.from_numpy(group[here].copy()) for group in part.places]
                self._device.run(lambda places=places: self._model.clear(places))  # type: ignore[misc]
                self._cleared = self._device.mark()
            if i in part.logits and not error:
                own = part.logits[i].view(torch.float32)[None]
                score = scores(own, [token], [slot.sampling.logprobs or 0])[0]
            targets = row.targets if not error else ()
            prompt = self._score_prompt(targets, part.hidden[0][here], slot) if targets else ()
            made.append(Outcome(-1 if error else token, score, prompt, error))
        return made

    def _score_prompt(
        self, targets: tuple[int, ...], hidden: torch.Tensor, slot: _Slot
    ) -> tuple[TokenLogprob, ...]:
        """The logprobs of a prompt's own tokens."""
        top = slot.sampling.prompt_logprobs or 0
        found: list[TokenLogprob] = []
        for begin in range(0, len(targets), SCORED_AT_ONCE):
            part = targets[begin : begin + SCORED_AT_ONCE]
            rows = hidden[begin : begin + len(part)]
            found += scores(self._logits_of(rows), part, [top] * len(part))
        return tuple(found)

    def _logits_of(self, hidden: torch.Tensor) -> torch.Tensor:
        """On the CPU, at once."""
        made: list[torch.Tensor] = []
        if not self._has_memory(lambda: self._device.run(lambda: made.append(self._model.logits(hidden)))):
            if len(hidden) == 1:
                raise _nothing_fits()
            half = len(hidden) // 2
            return torch.cat((self._logits_of(hidden[:half]), self._logits_of(hidden[half:])))
        self._device.wait(self._device.mark())
        return self._device.read(made[0])

    # ------------------------------------------------------------------ before the first request

    def measure(self, tokens: int) -> float:
        """Milliseconds of a step of `tokens` prompt tokens of nobody, written where a later step writes anyway: what
        the step-time model knows before the first request."""
        admission = Admission(0, Sampling(max_tokens=1, temperature=0.0), (), ())
        row = Row("", 0, 0, 0, 0, tokens, (0,) * tokens, sample=True)
        plan = StepPlan(0, (row,), (admission,), (), 0, tokens, tokens, tokens, 0, 0.0)
        return self.collect(self.launch(plan)).step_ms


def _nothing_fits() -> OutOfMemory:
    return OutOfMemory(
        "the device has no memory left to compute a single token",
        hint="Lower kv_memory, or choose a smaller model.",
    )


def _results_size(key: Key) -> int:
    """Bytes of what comes back: tokens and errors by row, and whether a token's hidden state is broken."""
    return 4 * (2 * key.rows + key.tokens)


def _halves(rows: tuple[Row, ...]) -> tuple[tuple[Row, ...], tuple[Row, ...]] | None:
    """The same work in two steps, or None where it cannot be less."""
    longest = max(rows, key=lambda row: row.count)
    if longest.count > 1:
        count = longest.count // 2
        replace = msgspec.structs.replace
        first = replace(
            longest, count=count, tokens=longest.tokens[:count], targets=longest.targets[:count], sample=False
        )
        second = replace(
            longest, start=longest.start + count, count=longest.count - count, tokens=longest.tokens[count:],
            targets=longest.targets[count:],
        )  # fmt: skip
        return tuple(first if row is longest else row for row in rows), (second,)
    if len(rows) == 1:
        return None
    return rows[: len(rows) // 2], rows[len(rows) // 2 :]


def _joined(outcomes: list[Outcome]) -> Outcome:
    """Of the parts of a row, in order."""
    if len(outcomes) == 1:
        return outcomes[0]
    error = next((each.error for each in outcomes if each.error), "")
    prompt = tuple(score for each in outcomes for score in each.prompt_logprobs)
    return Outcome(outcomes[-1].token, outcomes[-1].logprob, prompt, error)
